"""Ends and starts of device groups from a flight recorder's numbers, which need not run in step with ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.instrumentation.ring_groups import RingReader
from whichrank.instrumentation.collectives_status import LOOKS_AHEAD, LOOKS_BEHIND, FlightRecorderStatus, parse_status
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.vocabulary import Op

Look = Callable[[int, int, int], tuple[int, int]]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[RingWriter, Look]]:
    """A ring with one group of six calls, and a look at the recorder: numbers in, (completed, started) out."""
    writer = RingWriter.create(tmp_path, rank=0, local_rank=0, world_size=2, identity={})
    writer.define_group({"name": "0", "size": 2})
    writer.track_completion(True)
    for _ in range(6):
        writer.enqueue(0, int(Op.ALL_REDUCE), 4, 6, -1, 0)
    status = FlightRecorderStatus(writer)
    reader = RingReader(writer.path)

    def look(enqueued: int, started: int, completed: int) -> tuple[int, int]:
        entry = {
            "last_enqueued_collective": enqueued,
            "last_started_collective": started,
            "last_completed_collective": completed,
        }
        status._by_backend["nccl"] = parse_status(json.dumps({"pg_status": {"0": entry}}))
        status.complete_group(0, "nccl", 0, writer.enqueued(0), 4)
        row = reader.group(0)
        return row["completed"], row["started"] if row["started"] < 1 << 63 else -1

    yield writer, look
    reader.close()
    writer.close()


def test_equal_counts_are_taken_as_they_are(group: tuple[RingWriter, Look]) -> None:
    look = group[1]
    assert look(6, -1, -1) == (0, -1)
    assert look(6, 1, 0) == (0, 1)
    assert look(6, 3, 2) == (2, 3)
    assert look(6, 6, 6) == (6, 3)


def test_without_start_times_only_ends_are_told(group: tuple[RingWriter, Look]) -> None:
    assert group[1](6, -1, 4) == (4, -1)


def test_a_host_that_stands_inside_a_call_does_not_freeze_the_ends(group: tuple[RingWriter, Look]) -> None:
    look = group[1]
    for completed in range(1, 5):
        assert look(5, completed + 1, completed) == (completed, completed + 1)
    assert look(5, 5, 5)[0] == 5  # the sixth has not been launched: it must not look ended
    for _ in range(LOOKS_AHEAD // 2):
        assert look(5, 5, 5)[0] == 5


def test_calls_that_only_the_recorder_counts_are_taken_off_once_they_are_known(
    group: tuple[RingWriter, Look],
) -> None:
    look = group[1]
    for _ in range(LOOKS_BEHIND - 1):
        assert look(9, 6, 5) == (0, -1)
    assert look(9, 6, 5) == (2, 3)
    assert look(9, 9, 9)[0] == 6


def test_calls_that_only_we_count_do_not_stay_open(group: tuple[RingWriter, Look]) -> None:
    look = group[1]
    for _ in range(LOOKS_AHEAD):
        seen = look(4, 4, 4)
    assert seen[0] == 6
