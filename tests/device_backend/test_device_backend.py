"""The test process group has NCCL's manners: each is tried in a real pair of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("manners_script.py")


def run_pair(mode: str, folder: Path) -> tuple[list[int], list[str], list[dict[str, Any]]]:
    """Exit codes, what was printed, what was seen."""
    processes = []
    for rank in range(2):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "STORE": str(folder / "store"),
            "RESULT": str(folder / f"result-{rank}.json"),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        processes.append(
            subprocess.Popen([sys.executable, str(SCRIPT), mode], env=environment, stderr=subprocess.PIPE, text=True)
        )
    said = [process.communicate(timeout=120)[1] for process in processes]
    results = [folder / f"result-{rank}.json" for rank in range(2)]
    seen = [json.loads(path.read_text()) if path.exists() else {} for path in results]
    return [process.returncode for process in processes], said, seen


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[str], list[dict[str, Any]]]:
    return run_pair("stuck", tmp_path_factory.mktemp("pair"))


Pair = tuple[list[int], list[str], list[dict[str, Any]]]


def test_results_are_right_while_the_host_waits(pair: Pair) -> None:
    for rank, seen in enumerate(pair[2]):
        part = [0.0, 2.0] if rank == 0 else [4.0, 6.0]
        assert seen["results"] == [[3.0] * 3, [0.0, 0.0, 1.0, 1.0], part, [1.0]]
        assert seen["gradient"] == [[0.5, 0.5]]


def test_calls_and_waits_return_at_once_and_the_device_goes_in_order(pair: Pair) -> None:
    ahead, behind = pair[2]
    assert ahead["calls_took"] < 0.3
    # enqueued, started, completed: rank 0 stands in the first, the device of rank 1 has not come to it.
    assert ahead["late"] == [3, 1, 0]
    assert behind["late"][0] == 3
    assert ahead["then"] == behind["then"] == [3, 3, 3]
    assert ahead["in_order"]
    assert behind["in_order"]


def test_the_host_runs_three_steps_ahead_and_is_held_up_by_the_full_queue(pair: Pair) -> None:
    for seen in pair[2]:
        assert seen["lead"] >= 3
        assert seen["held_up_s"] > 0.1
        assert seen["steps_in_order"]


def test_a_replayed_graph_is_done_and_neither_hooks_nor_recorder_hear_of_it(pair: Pair) -> None:
    assert [seen["replay"] for seen in pair[2]] == [[True, 1, 1]] * 2


def test_a_kernel_that_does_not_end_ends_innocent_and_culprit_by_the_watchdog(pair: Pair) -> None:
    codes, said, seen = pair
    assert [item["stuck"] for item in seen] == [[1, 1, 0], [1, 0, 0]]
    assert codes == [-signal.SIGABRT] * 2
    for rank, text in enumerate(said):
        assert f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" in text
        assert "OpType=ALLREDUCE, NumelIn=7, NumelOut=7, Timeout(ms)=4000)" in text


def test_a_peer_that_leaves_ends_its_innocent_peer(tmp_path: Path) -> None:
    codes, said, _ = run_pair("gone", tmp_path)
    assert codes == [-signal.SIGABRT, 0]
    assert "ncclRemoteError" in said[0]
