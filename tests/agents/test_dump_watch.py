"""Dumps that torch wrote unasked: found where a rank stands or has ended, read in a process of their own, told once."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess, Watched
from tests.diagnosis.flight_recorder.played_job import STARTED, PlayedJob
from whichrank.agents.evidence import dump_reader, dump_watch
from whichrank.agents.evidence.dump_watch import MOST_TOLD
from whichrank.agents.evidence.flight_dumps import DUMP_BYTES
from whichrank.agents.user_files.user_files import read_as_user
from whichrank.diagnosis.flight_recorder.dump_facts import MAX_FACTS_BYTES, read_facts
from whichrank.telemetry.records import Event
from whichrank.telemetry.vocabulary import EventName

ON: dict[str, Any] = {"requests_per_minute": 20}
Start = Callable[..., RankProcess]
Watch = Callable[..., Watched]


def played() -> PlayedJob:
    job = PlayedJob(2)
    for _ in range(30):
        job.call("0")
    job.call("0", by=[0], state=STARTED)
    return job


def dump(rank: int = 0) -> bytes:
    return pickle.dumps(played().dump(rank), protocol=2)


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where ranks dump; a rank counts as standing at once, and looks are frequent."""
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))
    monkeypatch.setattr(dump_watch, "STANDS_NS", 0)
    monkeypatch.setattr("whichrank.agents.evidence.evidence_desk.LOOK_S", 0.1)
    return str(tmp_path / "trace_")


def told(watched: Watched) -> list[Event]:
    return watched.events(EventName.RANK_FLIGHT_RECORDER)


def watch_ranks(start_rank: Start, watch: Watch, count: int = 2, **settings: Any) -> tuple[list[RankProcess], Watched]:
    ranks = [start_rank(rank, count) for rank in range(count)]
    watched = watch(**{**ON, **settings})
    watched.run_until(lambda: len(watched.events(EventName.RANK_STARTED)) == count)
    return ranks, watched


def test_each_ranks_dump_is_told_once_as_facts(start_rank: Start, watch: Watch, prefix: str) -> None:
    _, watched = watch_ranks(start_rank, watch)
    for rank in (0, 1):
        Path(f"{prefix}{rank}").write_bytes(dump(rank))
    watched.run_until(lambda: len(told(watched)) == 2, 30.0)
    watched.run_for(1.0)
    events = {event.identity.rank: event for event in told(watched)}
    assert (len(told(watched)), set(events)) == (2, {0, 1})
    facts = read_facts(events[0].attributes["facts"], 0, "")
    assert (facts.groups["0"].ranks, facts.entries[-1].sequence, facts.entries[-1].is_open) == ((0, 1), 31, True)
    assert abs(events[0].attributes["written_ns"] - time.time_ns()) < 60e9
    assert len(events[0].attributes["facts"]) < MAX_FACTS_BYTES


def test_a_dump_of_a_rank_that_has_ended_is_told(start_rank: Start, watch: Watch, prefix: str) -> None:
    ranks, watched = watch_ranks(start_rank, watch)
    watched.run_for(1.0)  # where it would dump is looked up while it lives
    ranks[0].kill()
    watched.run_until(lambda: watched.events(EventName.RANK_EXIT))
    Path(f"{prefix}0").write_bytes(dump())
    watched.run_until(lambda: told(watched), 30.0)
    assert told(watched)[0].identity.rank == 0


def test_a_dump_of_the_last_moment_is_told_at_the_agents_end(start_rank: Start, watch: Watch, prefix: str) -> None:
    _, watched = watch_ranks(start_rank, watch, 1)
    Path(f"{prefix}0").write_bytes(dump())
    watched.agent.close()
    assert told(watched)[0].attributes["facts"]


def test_a_dump_that_is_written_again_is_told_again_a_few_times(start_rank: Start, watch: Watch, prefix: str) -> None:
    _, watched = watch_ranks(start_rank, watch, 1)
    for number in range(MOST_TOLD):
        Path(f"{prefix}0").write_bytes(dump())
        watched.run_until(lambda wanted=number + 1: len(told(watched)) == wanted, 30.0)  # type: ignore[misc]
    Path(f"{prefix}0").write_bytes(dump())
    watched.run_for(2.0)
    assert len(told(watched)) == MOST_TOLD


@pytest.mark.parametrize("settings", [{"requests_per_minute": 0}, {"withheld": frozenset({"stacks"})}])
def test_who_switches_evidence_off_tells_of_no_dump(
    start_rank: Start, watch: Watch, prefix: str, settings: dict[str, Any]
) -> None:
    _, watched = watch_ranks(start_rank, watch, 1, **settings)
    Path(f"{prefix}0").write_bytes(dump())
    watched.run_for(2.0)
    watched.agent.close()
    assert told(watched) == []


def test_a_rank_that_moves_is_not_looked_at(
    start_rank: Start, watch: Watch, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on: whatever lies there is of no hang, and looking costs."""
    monkeypatch.setattr(dump_watch, "STANDS_NS", 60_000_000_000)
    _, watched = watch_ranks(start_rank, watch, 1)
    Path(f"{prefix}0").write_bytes(dump())
    watched.run_for(2.0)
    assert told(watched) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"cposix\nsystem\n(S'touch /tmp/hacked'\ntR.", "GLOBAL"),
        (dump()[:-300], "refused"),
        (b"\x80\x02" + b"\x8f" * 3_900_000 + b".", "holds"),
        (b"[" * 1_000_000, "JSON"),
        (b'{"entries": [' + b"{}," * 300_000 + b"{}]}", ""),
        (pickle.dumps({"version": "2.10", "rank": 1, "entries": [], "pg_config": {}}, protocol=2), "rank 0 alone"),
        (json.dumps({"0": played().dump(0), "1": played().dump(1)}).encode(), "rank 0 alone"),
        (b"\0" * 4096, ""),
    ],
    ids=["code", "cut", "sets", "nested", "empties", "another rank's", "two ranks'", "zeros"],
)
def test_what_a_hostile_dump_costs_is_one_line(
    start_rank: Start, watch: Watch, prefix: str, content: bytes, says: str
) -> None:
    ranks, watched = watch_ranks(start_rank, watch)
    Path(f"{prefix}0").write_bytes(content)
    Path(f"{prefix}1").write_bytes(dump(1))
    watched.run_until(lambda: len(told(watched)) == 2, 60.0)
    events = {event.identity.rank: event.attributes for event in told(watched)}
    assert says in events[0].get("problem", ""), events[0]
    assert "facts" not in events[0] or not read_facts(events[0]["facts"], 0, "").entries
    assert read_facts(events[1]["facts"], 1, "").entries
    assert all(rank.process.poll() is None for rank in ranks)


def test_a_file_that_is_too_large_is_not_read(start_rank: Start, watch: Watch, prefix: str) -> None:
    _, watched = watch_ranks(start_rank, watch, 1)
    Path(f"{prefix}0").touch()
    os.truncate(f"{prefix}0", DUMP_BYTES + 1)
    watched.run_for(2.0)
    assert told(watched) == []


@pytest.mark.deselect_if(os.geteuid() != 0)
def test_the_reader_gives_up_what_its_user_has_not() -> None:
    """A dump that takes longer than the reader may is ended, and its user's id is what it runs with."""
    status, out, errors = read_as_user(dump_reader.__name__, dump(), ["rank_0", "0"], 12_345, 20.0, 64 << 10)
    assert (status, errors) == (0, b"")
    assert read_facts(out.decode(), 0, "").entries
    words = ["-c", "import os; from whichrank.agents.user_files.rights import become_reader; "
             "become_reader(['12345', '12345', '']); print(os.getresuid(), os.getgroups(), os.nice(0))"]  # fmt: skip
    said = subprocess.run([sys.executable, *words], capture_output=True, check=True, text=True).stdout
    assert said == "(12345, 12345, 12345) [] 10\n"
