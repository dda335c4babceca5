"""Two nodes as namespaces of this machine, clocks 28 h apart, a job without torch: one of them loses power."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.nodes import NAMES, make_nodes, missing

SCRIPT = Path(__file__).with_name("ring_job.py")


def revisions(folder: Path) -> list[dict[str, Any]]:
    path = folder / "incidents.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.skipif(bool(missing()), reason=missing() or "namespaces can be made")
def test_a_node_that_loses_power_is_named_within_seconds(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("WHICHRANK_", "OTEL_"))}
    (tmp_path / "meeting").mkdir()
    with contextlib.ExitStack() as stack:
        nodes = make_nodes(tmp_path, environ)
        for node in nodes:
            stack.callback(node.end)
        started = []
        for place, node in enumerate(nodes):
            meets = {"RANK": str(place), "WORLD_SIZE": "2", "MASTER_ADDR": NAMES[0], "MASTER_PORT": "29500"}
            job = [sys.executable, str(SCRIPT), str(tmp_path / "meeting"), ("0-1", "2-3")[place], "4", "2000"]
            whichrank = [
                sys.executable,
                "-m",
                "whichrank.commands.main",
                "run",
                "--out",
                str(tmp_path / f"out-{place}"),
            ]
            started.append(node.start([*whichrank, "--", *job], environ | meets, tmp_path / f"console-{place}.txt"))
        _wait(lambda: "2 of 2 nodes seen" in (tmp_path / "console-0.txt").read_text())
        # Then each whichrank has to find its ranks, which takes long on a busy machine: those never seen are not named.
        made = max((int(path.suffix[1:]) for path in (tmp_path / "meeting").glob("0.*")), default=0)
        _wait(lambda: (tmp_path / "meeting" / f"0.{made + 60}").exists())
        gone = time.time()
        nodes[1].gone()
        _wait(lambda: revisions(tmp_path / "out-0"))
        took_s = time.time() - gone
        started[0].terminate()
        assert started[0].wait(30) == 128 + 15
    (incident,) = {revision["id"]: revision for revision in revisions(tmp_path / "out-0")}.values()
    (suspect,) = incident["suspects"]
    assert (incident["kind"], incident["scope"], suspect["id"], suspect["ranks"]) == (
        "node_lost",
        "node",
        NAMES[1],
        "2-3",
    )
    assert took_s <= 5.0
    assert abs(incident["times"]["onset"] - gone) < 1.0
    assert incident["state"] == "resolved"
    assert revisions(tmp_path / "out-1" / f"node-{NAMES[1]}") == []


def _wait(done: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "did not come"
        time.sleep(0.02)
