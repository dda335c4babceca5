"""Draining: no event twice, none out of order, every missing one counted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichrank.agents.base.health import AgentHealth
from whichrank.agents.ranks.drain import drain_rings
from whichrank.agents.ranks.watched_rank import WatchedRank
from whichrank.agents.rings.ring_file import RingFile
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry import ring_layout as L
from whichrank.telemetry.records import Identity
from whichrank.telemetry.vocabulary import EventKind

SLOTS = 16


def _ring(directory: Path, slots: int = SLOTS) -> tuple[RingWriter, WatchedRank]:
    writer = RingWriter.create(directory, rank=0, local_rank=0, world_size=1, identity={}, slots=slots, group_rows=2)
    rank = WatchedRank(ring=RingFile(writer.path), slot=3, identity=Identity(), pid=0, start_ticks=0)
    return writer, rank


def _write(writer: RingWriter, first: int, count: int) -> None:
    for number in range(first, first + count):
        writer.append_event(EventKind.MARK, seq=number)


def _drain(rank: WatchedRank, health: AgentHealth) -> list[int]:
    rank.look(1)
    drained = drain_rings([rank], health)
    assert set(drained.ring.tolist()) <= {3}
    return drained.events["seq"].tolist()  # type: ignore[no-any-return]


def _patch(rank: WatchedRank, index: int, word: int, value: int) -> None:
    offset = rank.ring.header.events_offset + (index % SLOTS) * L.EVENT_BYTES + 8 * word
    with rank.ring.path.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<Q", value))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bursts=st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_read_plus_lost_is_written(tmp_path_factory: pytest.TempPathFactory, bursts: list[int]) -> None:
    writer, rank = _ring(tmp_path_factory.mktemp("rings"))
    health = AgentHealth()
    written = 0
    got: list[int] = []
    for burst in bursts:
        _write(writer, written, burst)
        written += burst
        new = _drain(rank, health)
        assert new == list(range(written - min(burst, SLOTS), written))
        got += new
    assert len(got) + health.events_lost == written
    assert got == sorted(set(got))
    assert health.events_torn == 0
    writer.close()
    rank.close()


def test_an_unfinished_event_is_waited_for_and_then_skipped(tmp_path: Path) -> None:
    writer, rank = _ring(tmp_path)
    health = AgentHealth()
    _write(writer, 0, 5)
    _patch(rank, 2, L.E_BEGIN, 0)  # its thread was interrupted before it wrote
    assert _drain(rank, health) == [0, 1]
    assert _drain(rank, health) == []
    _patch(rank, 2, L.E_BEGIN, 3)  # it comes back
    assert _drain(rank, health) == [2, 3, 4]
    assert health.events_torn == 0
    _write(writer, 5, 3)
    _patch(rank, 6, L.E_END, 0)  # this one never does
    assert _drain(rank, health) == [5]
    assert [_drain(rank, health) for _ in range(3)] == [[], [], [7]]
    assert health.events_torn == 1


def test_a_dead_writer_is_not_waited_for_and_read_past_its_head(tmp_path: Path) -> None:
    writer, rank = _ring(tmp_path)
    health = AgentHealth()
    _write(writer, 0, 6)
    _patch(rank, 1, L.E_END, 0)
    with rank.ring.path.open("r+b") as file:  # died between slot and head
        file.seek(L.H_EVENT_HEAD)
        file.write(struct.pack("<Q", 4))
    rank.alive = False
    assert _drain(rank, health) == [0, 2, 3, 4, 5]
    assert health.events_torn == 1
    assert _drain(rank, health) == []


@pytest.mark.parametrize("head", [3, 1 << 40, (1 << 64) - 1])
def test_a_head_that_cannot_be_believed(tmp_path: Path, head: int) -> None:
    writer, rank = _ring(tmp_path)
    health = AgentHealth()
    _write(writer, 0, 5)
    assert _drain(rank, health) == [0, 1, 2, 3, 4]
    _write(writer, 5, 4)
    with rank.ring.path.open("r+b") as file:
        file.seek(L.H_EVENT_HEAD)
        file.write(struct.pack("<Q", head))
    assert _drain(rank, health) == [5, 6, 7, 8]
    assert _drain(rank, health) == []
    (problem,) = health.problems
    assert str(rank.ring.path) in problem


def test_several_rings_stay_contiguous(tmp_path: Path) -> None:
    health = AgentHealth()
    writers, ranks = [], []
    for number in range(3):
        directory = tmp_path / str(number)
        directory.mkdir()
        writer, rank = _ring(directory)
        rank.slot = number
        _write(writer, 100 * number, number + 1)
        rank.look(1)
        writers.append(writer)
        ranks.append(rank)
    drained = drain_rings(ranks, health)
    assert drained.ring.tolist() == [0, 1, 1, 2, 2, 2]
    assert drained.events["seq"].tolist() == [0, 100, 101, 200, 201, 202]
    assert health.events_read == 6
