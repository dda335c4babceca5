"""A hang of a real job with dumps of torch's own recorder: they join the incident live, and alone where rings are off.

gloo does not dump by itself: a thread of each rank writes what the recorder holds, by torch's own serializer, to where
torch's watchdog writes it. Three jobs at once, that mostly wait: half a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import written_documents

JOB = """
    import os, threading, time, torch, torch.distributed as dist
    from torch._C import _distributed_c10d as c10d
    dist.init_process_group("gloo")
    rank, parameter = dist.get_rank(), torch.nn.Parameter(torch.ones(16))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    stands = threading.Event()
    def write(path, content):
        with open(path + ".part", "wb") as file:
            file.write(content)
        os.rename(path + ".part", path)
    def dump():
        stands.wait()
        time.sleep(9.0)
        path = os.environ["TORCH_FR_DUMP_TEMP_FILE"]
        own = c10d._dump_fr_trace(True, False, False)  # looking up the lines of stacks takes torch a minute
        write(f"{path}own_{rank}", own)
        if os.environ["SHIFTED"] == "1":
            time.sleep(2.0)
            own = open(f"{path}own_{(rank - 1) % 3}", "rb").read()
        write(f"{path}{rank}", own)
        time.sleep(6.0)
        os._exit(1)
    threading.Thread(target=dump, daemon=True).start()
    for step in range(60):
        if step == 40:
            stands.set()
            if rank == 1:
                time.sleep(600)
        parameter.sum().backward()
        dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
"""
#: Level of the rings, and whether each rank's file has the dump of the rank before it.
CASES = {"agrees": ("events", False), "names": ("off", False), "contradicts": ("events", True)}


def whichrank(*words: str) -> subprocess.CompletedProcess[bytes]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("WHICHRANK_", "OTEL_", "TORCH_FR", "TORCH_NC"))}
    return subprocess.run(
        [sys.executable, "-m", "whichrank.commands.main", *words],
        capture_output=True,
        env={**environ, "OMP_NUM_THREADS": "1"},
        timeout=180,
    )


def run(folder: Path, level: str, *, is_shifted: bool) -> None:
    """A job of which rank 1 hangs."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(textwrap.dedent(JOB))
    variables = [f"TORCH_FR_DUMP_TEMP_FILE={folder}/dump_", f"SHIFTED={int(is_shifted)}"]
    job = ["env", *variables, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = whichrank("run", "--view", "none", "--level", level, "--out", str(folder / "run"), "--", *job, str(script))
    assert done.returncode != 0, done.stderr.decode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorder")
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(run, folder / name, level, is_shifted=odd) for name, (level, odd) in CASES.items()]:
            done.result()
    return folder


def rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in document["evidence"] if row["signal"].startswith("flight_recorder.")]


@pytest.mark.parametrize("opinion", CASES)
def test_the_recorder_speaks_in_the_incident(runs: Path, opinion: str) -> None:
    documents = written_documents(runs / opinion / "run" / "incidents.jsonl")
    last = documents[-1]
    (row,) = rows(last)
    assert (row["signal"], row["trust"]) == (f"flight_recorder.{opinion}", "user")
    assert "3 of 3 ranks" in row["shows"]
    assert f"rank {2 if opinion == 'contradicts' else 1} did not enter" in row["shows"]
    assert (last["kind"], [one["rank"] for one in last["suspects"]]) == ("rank_not_entered", [1])
    assert last["bucket"] == "communication_hang"
    if opinion != "names":
        before = next(each for each in reversed(documents) if not rows(each))
        assert (last["confidence"] > before["confidence"]) == (opinion == "agrees")


@pytest.mark.parametrize("opinion", CASES)
def test_a_replay_says_the_same_byte_for_byte(runs: Path, opinion: str) -> None:
    folder = runs / opinion / "run"
    assert whichrank("replay", str(folder), "--json").returncode in (0, 1)
    assert (folder / "replay-1" / "incidents.jsonl").read_bytes() == (folder / "incidents.jsonl").read_bytes()
