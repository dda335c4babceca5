"""A capture of a run is judged again, and another verdict than its own is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processors.job.synthetic_job import FOREVER, WALL_NS, SyntheticJob
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Block, Event
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import Phase
from whichrank.transport.embedded import EmbeddedBus

from .verdicts_again import judge_again, main

HUNG = (("rank_not_entered", (2,), "open"),)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What ``whichrank run`` leaves of a job whose rank 2 stands still."""
    folder = tmp_path / "a scenario" / "0" / "out"
    stamp_ns = [0]
    job = SyntheticJob(
        steps=40, delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 25, Phase.FORWARD) else 0.0]
    )
    bus = EmbeddedBus(folder / "capture", start_wall_ns=WALL_NS, monotonic_ns=lambda: stamp_ns[0])
    for record in job.records():
        assert isinstance(record.payload, Block | Event)
        stamp_ns[0] = max(stamp_ns[0], record.stamp_ns - WALL_NS)
        bus.append(TOPIC_BLOCKS, "job", encode_payloads([record.payload]))
    bus.close()
    return folder


def write_down(run: Path, rank: int) -> None:
    document = {
        "id": "i",
        "revision": 1,
        "bucket": "communication_hang",
        "kind": "rank_not_entered",
        "state": "open",
        "suspects": [{"rank": rank}],
    }
    (run / "incidents.jsonl").write_text(json.dumps(document) + "\n")


def test_the_same_verdict_is_the_same(run: Path, tmp_path: Path) -> None:
    write_down(run, 2)
    again = judge_again(run)
    assert (again.trouble, again.before, again.now) == ("", HUNG, HUNG)
    assert main([str(tmp_path), "--processes", "1"]) == 0


def test_another_one_is_told(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_down(run, 1)
    assert main([str(tmp_path), "--processes", "1"]) == 1
    told = capsys.readouterr().out
    assert "was rank_not_entered of [1], open" in told
    assert "is  rank_not_entered of [2], open" in told
    assert "0 of 1 verdicts are the same" in told


def test_no_captures_are_no_success(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 2
