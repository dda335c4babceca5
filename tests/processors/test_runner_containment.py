"""What an operator raises is one key's trouble: set aside, told, a dead letter, muted when it comes again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.processors.runner_examples import Clock, Docket, Watcher, encode_events, open_bus, output_line, rank_event
from whichrank.processors.operator import Context, Operator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry import attributes as names
from whichrank.telemetry.records import Event, Finding, Incident, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_DLQ
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import Message
from whichrank.transport.embedded import EmbeddedBus

BAD = 66


class Fragile(Watcher):
    """Fails on events of one rank, after it has changed its rows."""

    error: type[Exception] = KeyError

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        super().process(records, ctx)
        if any(isinstance(r.payload, Event) and r.payload.identity.rank == BAD for r in records):
            raise self.error("no such thing")


class Bench:
    def __init__(self, path: Path, error: type[Exception] = KeyError) -> None:
        self.path, self.clock, self.outputs, self.said = path, Clock(), list[Record](), list[str]()
        self.watcher = Fragile()
        self.watcher.error = error
        self.bus = open_bus(path / "bus", self.clock)
        self.runner = self.start()

    def start(self) -> EmbeddedRunner:
        operators: list[Operator] = [self.watcher, Docket()]
        return EmbeddedRunner(
            self.bus, self.path / "state", operators, self.outputs.append, live=True, report=self.said.append
        )

    def put(self, rank: int, job: str, times: int = 1) -> None:
        for _ in range(times):
            self.bus.append(TOPIC_BLOCKS, job, encode_events(rank_event(rank, job=job)))
            self.runner.drain()
            self.clock.advance(0.1)

    def counted(self, job: str) -> dict[str, int]:
        rows = self.runner._state.open_table(("watcher", job, "counts")).rows()  # noqa: SLF001
        return {rank: int(count) for rank, count in rows}

    def reported(self) -> list[bool]:
        """Of findings that tell of a failure, whether they clear it."""
        said = [r.payload for r in self.outputs if isinstance(r.payload, Finding) and "fails" in r.payload.key]
        return [finding.cleared for finding in said]

    def letters(self) -> list[Message]:
        return [message for message in self.bus.read(0, 10_000) if message.topic == TOPIC_DLQ]


@pytest.mark.parametrize("error", [KeyError, MemoryError, RecursionError, UnicodeError])
def test_one_key_fails_and_the_others_go_on(tmp_path: Path, error: type[Exception]) -> None:
    bench = Bench(tmp_path, error)
    bench.put(1, "sound")
    bench.put(1, "broken", 2)
    bench.put(BAD, "broken")
    bench.put(1, "sound")
    assert bench.counted("sound") == {"1": 2}
    assert bench.counted("broken") == {}
    bench.put(2, "broken")
    assert bench.counted("broken") == {"2": 1}
    assert bench.runner.contained == 1
    assert bench.runner.muted == 0
    (letter,) = bench.letters()
    assert error.__name__ in letter.headers[names.DLQ_REASON].decode()
    assert "no such thing" in letter.headers[names.DLQ_TRACEBACK].decode()
    assert bench.reported() == [False, True]
    assert sum(isinstance(r.payload, Incident) and "fails" in r.payload.document["id"] for r in bench.outputs) == 2


def test_what_was_set_aside_is_kept_and_the_position_moves_over_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, "broken", 2)
    bench.put(BAD, "broken")
    bench.runner.close()
    with closing(sqlite3.connect(tmp_path / "state")) as database:
        rows = database.execute("SELECT operator, key, why, tbl, row, value FROM aside").fetchall()
    assert ("watcher", "broken", "KeyError: 'no such thing'", "counts", "1", b"2") in rows
    bench.runner = bench.start()
    bench.put(1, "sound")
    assert bench.counted("sound") == {"1": 1}
    assert bench.runner.contained == 0
    bench.put(BAD, "broken")  # the second time, as the state remembers
    bench.put(1, "broken", 3)
    assert bench.runner.muted == 3
    assert bench.counted("broken") == {}
    bench.clock.advance(3601)
    bench.put(1, "broken")
    assert bench.counted("broken") == {"1": 1}


def test_many_failures_are_told_as_one_and_remembered_within_a_bound(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(100):
        bench.put(BAD, f"broken-{number}")
    told = {r.payload.key for r in bench.outputs if isinstance(r.payload, Finding) and "fails" in r.payload.key}
    assert len(told) == 33
    assert len(bench.letters()) == 100
    assert sum("contained" in line for line in bench.said) == 32


def test_a_replay_concludes_the_same(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for rank in (1, BAD, 2, BAD, 3, 3):
        bench.put(rank, "broken")
        bench.put(rank if rank != BAD else 1, "sound")
    bench.runner.close()
    bench.bus.close()
    again: list[Record] = []
    operators: list[Operator] = [Fragile(), Docket()]
    bus = EmbeddedBus(tmp_path / "bus", read_only=True)
    runner = EmbeddedRunner(bus, None, operators, again.append, live=False, report=print)
    runner.drain()
    assert runner.muted == 2
    assert [output_line(record) for record in again] == [output_line(record) for record in bench.outputs]


def test_the_key_that_was_idle_longest_makes_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, "busy")
    for number in range(120):
        bench.put(1, f"job-{number}")
        bench.put(1, "busy")
    assert bench.runner.forgotten == 21
    assert bench.counted("busy") == {"1": 121}
    assert bench.counted("job-20") == {}
    assert bench.counted("job-21") == {"1": 1}
    bench.runner.close()
    with closing(sqlite3.connect(tmp_path / "state")) as database:
        assert database.execute("SELECT COUNT(*) FROM rows WHERE operator = 'watcher'").fetchone() == (100,)


def test_a_row_that_cannot_be_made_is_its_key_s_trouble(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def fail() -> bytes:
        raise OverflowError("too large")

    bench.put(1, "sound")
    bench.runner._state.open_table(("watcher", "broken", "late")).put_later("row", fail)  # noqa: SLF001
    bench.put(1, "sound")
    bench.runner.close()
    with closing(sqlite3.connect(tmp_path / "state")) as database:
        assert dict(database.execute("SELECT key, value FROM rows WHERE operator = 'watcher'")) == {"sound": b"2"}
        assert database.execute("SELECT key, value FROM aside").fetchall() == [
            ("broken", b"could not be made: OverflowError")
        ]
        failed = database.execute("SELECT value FROM rows WHERE operator = 'runner' AND tbl = 'failed'").fetchone()
    assert json.loads(failed[0])["times"] == 1
    assert bench.reported() == []
    bench.runner = bench.start()  # it was contained by the last commit: the next process tells of it, once
    bench.put(1, "sound", 2)
    assert bench.reported() == [False, True]


@pytest.mark.parametrize("table", ["owners", "failed", "notices"])
@pytest.mark.parametrize(
    "row", [b"", b"{", b"[]", b"7", b"\xff", b'{"x": 1}', b'{"plain": 1, "by": [], "first_ns": "x"}']
)
def test_rows_of_the_runner_itself_that_cannot_be_read_keep_it_from_nothing(
    tmp_path: Path, table: str, row: bytes
) -> None:
    bench = Bench(tmp_path)
    bench.put(1, "sound")
    bench.runner.close()
    with closing(sqlite3.connect(tmp_path / "state")) as database, database:
        database.execute("INSERT OR REPLACE INTO rows VALUES ('runner', '', ?, 'odd', ?)", (table, row))
    bench.runner = bench.start()
    bench.put(BAD, "broken")
    bench.put(1, "sound")
    assert bench.counted("sound") == {"1": 2}
    assert sum("table owners" in line for line in bench.said) == (table == "owners")


def test_what_one_owner_has_much_of_pushes_out_nothing_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watcher, "most_keys", 10)
    bench = Bench(tmp_path)

    def put(job: str, owner: str) -> None:
        event = rank_event(1, job=job)
        bench.bus.append(
            TOPIC_BLOCKS, job, encode_events(replace(event, identity=replace(event.identity, owner=owner)))
        )
        bench.runner.drain()
        bench.clock.advance(0.1)

    put("quiet", "quinn")
    for number in range(40):
        put(f"tiny-{number}", "eve")
    assert bench.runner.forgotten == 31
    assert bench.counted("quiet") == {"1": 1}
    assert bench.counted("tiny-39") == {"1": 1}
    assert bench.counted("tiny-3") == {}


@pytest.mark.parametrize(("kept", "clusters"), [({"c0"}, {"c0", "c4", "c5"}), ({"c0", "c1", "c2"}, {"c0", "c1", "c2"})])
def test_what_can_be_spared_makes_room_where_a_key_is_too_much_to_be_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: set[str], clusters: set[str]
) -> None:
    """Names of clusters are words of whoever sends records: many of them keep no real one out."""
    monkeypatch.setattr(Docket, "contains_itself", True)
    monkeypatch.setattr(Docket, "most_keys", 3)
    monkeypatch.setattr(Docket, "spare", lambda _, ctx: ctx.key not in kept)
    bench = Bench(tmp_path)
    for number in range(6):
        event = rank_event(1, job=f"job-{number}")
        event = replace(event, name=EventName.RANK_EXIT, identity=replace(event.identity, cluster=f"c{number}"))
        bench.bus.append(TOPIC_BLOCKS, f"job-{number}", encode_events(event))
        bench.runner.drain()
        bench.clock.advance(0.1)
    bench.runner.close()
    with closing(sqlite3.connect(tmp_path / "state")) as database:
        rows = database.execute("SELECT DISTINCT key FROM rows WHERE operator = 'docket'").fetchall()
    assert {key for (key,) in rows} == clusters
