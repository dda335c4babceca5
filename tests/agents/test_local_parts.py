"""The small deciding parts: local verdicts, whose stack to take, group identity, evidence folder, settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.agents.base.health import MAX_PROBLEMS, AgentHealth
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.evidence.evidence_store import EvidenceStore
from whichrank.agents.processes.processes import ProcessStat
from whichrank.agents.ranks.local_verdicts import judge_stale, judge_stop, process_look_due, stacks_wanted
from whichrank.agents.ranks.rank_events import joining_attributes
from whichrank.agents.ranks.watched_rank import WatchedRank
from whichrank.agents.reduction.collect_progress import group_progress_rows
from whichrank.agents.reduction.group_identity import AgentGroupRegistry, group_from_definition, group_uid
from whichrank.agents.rings.progress_page import GroupRow
from whichrank.agents.rings.ring_file import HotWords, RingFile
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry import ring_layout as L
from whichrank.telemetry.records import Identity
from whichrank.telemetry.vocabulary import HookState, Level, ProcessState

S = 1_000_000_000
SETTINGS = AgentSettings()
ROW = GroupRow(5, 0, 1, 1, 1, -1, 1, 5, 0, 1, -1, 0, 0)


def _rank(tmp_path: Path, slot: int = 0) -> WatchedRank:
    directory = tmp_path / str(slot)
    directory.mkdir()
    writer = RingWriter.create(directory, rank=slot, local_rank=0, world_size=9, identity={}, slots=16, group_rows=2)
    ring = RingFile(writer.path)
    writer.close()
    return WatchedRank(ring=ring, slot=slot, identity=Identity(), pid=1, start_ticks=1, moved_ns=1)


def _see(rank: WatchedRank, state: ProcessState, now_ns: int, traced: bool = False) -> bool | None:
    rank.process = ProcessStat(state, traced, 1, 0, 1, 0)
    rank.process_read_ns = now_ns
    return judge_stop(rank, now_ns, SETTINGS)


def test_a_stop_needs_two_equal_looks(tmp_path: Path) -> None:
    rank = _rank(tmp_path)
    assert _see(rank, ProcessState.STOPPED, 1 * S) is None
    assert judge_stop(rank, 2 * S, SETTINGS) is None  # not looked at again
    assert _see(rank, ProcessState.SLEEPING, 3 * S) is None
    assert _see(rank, ProcessState.STOPPED, 4 * S) is None
    assert _see(rank, ProcessState.STOPPED, 4 * S + 50_000_000) is True
    assert _see(rank, ProcessState.STOPPED, 5 * S) is None
    assert _see(rank, ProcessState.RUNNING, 6 * S) is False
    assert _see(rank, ProcessState.RUNNING, 7 * S) is None


def test_a_moments_tracing_is_no_stop(tmp_path: Path) -> None:
    rank = _rank(tmp_path)
    assert _see(rank, ProcessState.STOPPED, 1 * S, traced=True) is None
    assert _see(rank, ProcessState.STOPPED, 1 * S + 100_000_000, traced=True) is None
    assert _see(rank, ProcessState.STOPPED, 2 * S, traced=True) is True


def _beat(rank: WatchedRank, time_ns: int) -> None:
    rank.heartbeat_ns = time_ns


def test_silence_is_told_once_and_again_after_a_beat(tmp_path: Path) -> None:
    rank = _rank(tmp_path)
    assert not judge_stale(rank, 99 * S, SETTINGS, True)  # never promised a heartbeat
    _beat(rank, 10 * S)
    assert not judge_stale(rank, 11 * S, SETTINGS, True)
    assert not judge_stale(rank, 12 * S, SETTINGS, False)  # it let go of its ring
    assert judge_stale(rank, 12 * S, SETTINGS, True)
    assert not judge_stale(rank, 13 * S, SETTINGS, True)
    _beat(rank, 14 * S)
    assert not judge_stale(rank, 14 * S, SETTINGS, True)
    assert judge_stale(rank, 16 * S, SETTINGS, True)
    rank.stale = False
    rank.stopped = True
    assert not judge_stale(rank, 17 * S, SETTINGS, True)


def test_a_rank_that_moves_or_gets_no_core_is_not_silent(tmp_path: Path) -> None:
    rank = _rank(tmp_path)
    _beat(rank, 10 * S)
    rank.moved_ns = 12 * S
    assert not judge_stale(rank, 12 * S + S // 2, SETTINGS, True)  # only its heartbeat thread is late
    rank.process = ProcessStat(ProcessState.RUNNING, False, 1, 0, 1, 0)
    rank.cpu_samples.extend([(12 * S, 0), (14 * S, S // 10)])
    assert not judge_stale(rank, 14 * S, SETTINGS, True)  # runnable, but not run
    rank.cpu_samples.append((15 * S, 3 * S))
    assert judge_stale(rank, 15 * S, SETTINGS, True)  # computes with the GIL held
    other = _rank(tmp_path, 1)
    _beat(other, 10 * S)
    other.process = ProcessStat(ProcessState.SLEEPING, False, 1, 0, 1, 0)
    other.cpu_samples.extend([(12 * S, 0), (14 * S, 0)])
    assert judge_stale(other, 14 * S, SETTINGS, True)  # sleeps with the GIL held


def test_proc_is_read_often_only_when_the_heartbeat_is_late(tmp_path: Path) -> None:
    rank = _rank(tmp_path)
    rank.process_read_ns = 10 * S
    _beat(rank, 10 * S + 290_000_000)
    assert not process_look_due(rank, 10 * S + 300_000_000, SETTINGS)
    _beat(rank, 10 * S)
    assert process_look_due(rank, 10 * S + 300_000_000, SETTINGS)
    assert not process_look_due(rank, 10 * S + 100_000_000, SETTINGS)
    rank.stop_first_seen_ns = 10 * S
    assert process_look_due(rank, 10 * S + 60_000_000, SETTINGS)


def _group(rank: WatchedRank, open_since_ns: int = 0, number: int = 0) -> None:
    opened = 1 if open_since_ns else 0
    rank.groups.rows[number] = replace(ROW, open=opened, oldest_open_ns=open_since_ns)
    rank.groups.numbers[number] = number


def test_stacks_of_those_who_did_not_enter_and_of_one_waiter_per_group(tmp_path: Path) -> None:
    ranks = [_rank(tmp_path, slot) for slot in range(6)]
    for slot in (0, 1):
        _group(ranks[slot], 10 * S, 0)
    for slot in (2, 3):
        _group(ranks[slot], 10 * S, 1)
    for slot in (4, 5):
        _group(ranks[slot], 0, 0)
    ranks[5].moved_ns = 12 * S  # moves: not to be touched
    wanted = stacks_wanted(ranks, {0: 0, 1: 0}, 12 * S, SETTINGS)
    assert [(want.rank.slot, want.why) for want in wanted] == [(4, "not entered"), (0, "waits"), (2, "waits")]
    assert stacks_wanted(ranks, {0: S, 1: 2 * S}, 12 * S, SETTINGS) == []  # it has taken that long before
    ranks[4].hot = HotWords(event_head=9, definitions_used=0, events_dropped=0)
    ranks[4].told.stack_at_head = 9
    assert [want.rank.slot for want in stacks_wanted(ranks, {}, 12 * S, SETTINGS)] == [0, 2]
    assert stacks_wanted(ranks, {}, 11 * S, SETTINGS) == []


def test_the_same_members_twice_are_two_groups() -> None:
    payload = {"name": "dp", "ranks": "0-3", "ordinal": 0, "timeout_s": 30, "backend": "gloo"}
    group = group_from_definition(payload)
    assert (group.size, group.ranks, group.timeout_s) == (4, "0-3", 30.0)
    uids = {
        group.uid,
        group_from_definition({**payload, "ordinal": 1}).uid,
        group_from_definition({**payload, "name": "world"}).uid,
        group_from_definition({**payload, "ranks": "0-2"}).uid,
    }
    assert len(uids) == 4
    assert group_from_definition(payload) == group
    assert group_from_definition({**payload, "ranks": "3,2,0-1"}).uid == group.uid
    assert group.uid == group_uid("dp", "0-3", 0)


@pytest.mark.parametrize("ranks", [None, 3, "a", "0-99999999999", "-1", "5-", "1-2-3"])
def test_unreadable_members_are_an_error(ranks: object) -> None:
    with pytest.raises(ValueError, match="group"):
        group_from_definition({"name": "x", "ranks": ranks})


@given(
    st.dictionaries(
        st.sampled_from(["name", "desc", "ranks", "size", "backend", "ordinal", "timeout_s", "default"]),
        st.one_of(st.none(), st.text(max_size=9), st.integers(), st.floats(), st.booleans(), st.lists(st.integers())),
    )
)
def test_any_definition_is_a_group_or_a_value_error(payload: dict[str, object]) -> None:
    try:
        group = group_from_definition(payload)
    except ValueError:
        return
    assert group.timeout_s >= 0
    assert group.size >= 0


def test_a_block_names_only_its_own_groups() -> None:
    registry = AgentGroupRegistry()
    groups = [group_from_definition({"name": f"g{number}", "ranks": "0-1"}) for number in range(5)]
    assert [registry.number(group) for group in groups] == list(range(5))
    assert registry.number(groups[3]) == 3
    used, column = registry.for_block(np.array([4, 1, 4, 1, 1], np.uint16))
    assert [group.name for group in used] == ["g1", "g4"]
    assert column.tolist() == [1, 0, 1, 0, 0]
    assert registry.for_block(np.zeros(0, np.uint16))[0] == ()
    again = np.array([4, 1, 4, 1, 1], np.uint16)
    assert registry.for_block(again) == (used, column)  # the same objects: a column is taken apart once
    again[:] = 0
    assert registry.for_block(np.array([4, 1, 4, 1, 1], np.uint16))[1].tolist() == column.tolist()


def test_the_evidence_folder_never_exceeds_its_bound(tmp_path: Path) -> None:
    health = AgentHealth()
    store = EvidenceStore(tmp_path / "evidence", 1000, health)
    for number in range(20):
        store.save(f"file {number}/../x", bytes(300))
        kept = list((tmp_path / "evidence").iterdir())
        assert sum(path.stat().st_size for path in kept) == store.bytes_kept <= 1000
    assert {path.name for path in kept} == {f"file_{number}_.._x" for number in (17, 18, 19)}
    store.save("file_19_.._x", bytes(10))
    assert store.bytes_kept == 610
    assert store.save("huge", bytes(2000)) is None
    assert store.save("empty", b"") is None
    assert health.drops["evidence_too_large"] == 1
    again = EvidenceStore(tmp_path / "evidence", 1000, health)
    assert again.bytes_kept == 610


def test_evidence_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    health = AgentHealth()
    (tmp_path / "file").touch()
    assert EvidenceStore(tmp_path / "file" / "below", 1000, health).save("a", b"x") is None
    assert health.drops["evidence_not_written"] == 1
    assert EvidenceStore(None, 1000, health).save("a", b"x") is None


def test_problems_are_said_once_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    health = AgentHealth()
    for _ in range(3):
        health.report("ring x: broken")
    assert [record.message for record in caplog.records] == ["ring x: broken"]
    for number in range(2 * MAX_PROBLEMS):
        health.report(f"problem {number}")
    assert len(health.problems) == MAX_PROBLEMS
    health.drop("reason", 2)
    assert health.attributes()["drops.reason"] == 2


@pytest.mark.parametrize(
    "wrong", [{"look_period_s": 0.0}, {"flush_period_s": 9.0}, {"max_rings": 5000}, {"block_bytes": 10}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        AgentSettings(**wrong)  # type: ignore[arg-type]


def _status_rank(tmp_path: Path, slot: int, level: Level, enqueued: int, completed: int) -> WatchedRank:
    directory = tmp_path / str(slot)
    directory.mkdir()
    writer = RingWriter.create(directory, rank=slot, local_rank=0, world_size=9, identity={}, slots=16, group_rows=2)
    writer.define_group({"name": "0", "ranks": "0-1"})
    writer.set_level(level, HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED)
    writer.beat(0, 0, enqueued, completed)
    rank = WatchedRank(ring=RingFile(writer.path), slot=slot, identity=Identity(), pid=1, start_ticks=1)
    rank.ring.expect_groups(1)
    rank.groups.numbers[0] = rank.groups.default = 0
    rank.look(1 * S)
    rank.groups.parse(rank.page)
    return rank


def test_at_the_status_level_the_flight_recorder_speaks_for_the_default_group(tmp_path: Path) -> None:
    ranks = [_status_rank(tmp_path, 0, Level.STATUS, 17, 16), _status_rank(tmp_path, 1, Level.STATUS, 16, 16)]
    group_progress_rows(ranks, 1 * S)
    rows, slots = group_progress_rows(ranks, 5 * S)
    assert slots == [0, 1]
    assert [(int(row["enqueued"]), int(row["completed"]), int(row["open"]), int(row["blind"])) for row in rows] == [
        (17, 16, 1, 0),
        (16, 16, 0, 0),
    ]
    assert [int(row["open_age_ns"]) for row in rows] == [4 * S, 0]


def test_flight_recorder_numbers_are_never_mixed_with_hook_numbers(tmp_path: Path) -> None:
    ranks = [_status_rank(tmp_path, 0, Level.STATUS, 17, 16), _status_rank(tmp_path, 1, Level.EVENTS, 16, 16)]
    rows, _ = group_progress_rows(ranks, 5 * S)
    assert [(int(row["enqueued"]), int(row["blind"])) for row in rows] == [(0, 1), (0, 0)]
    unknown = [_status_rank(tmp_path, 2, Level.STATUS, L.UNKNOWN_U64, L.UNKNOWN_U64)]
    assert int(group_progress_rows(unknown, 5 * S)[0]["blind"][0]) == 1
    off = [_status_rank(tmp_path, 3, Level.OFF, 1, 1)]
    assert int(group_progress_rows(off, 5 * S)[0]["blind"][0]) == 1


def test_on_a_device_an_operation_is_old_from_when_its_device_began_it(tmp_path: Path) -> None:
    """The host launched it long before: that it lies in a queue is no sign of anything."""
    rank = _rank(tmp_path)
    busy = replace(ROW, open=8, oldest_open_ns=1 * S, completed=4, complete_ns=9 * S, started=-1)
    rank.groups.rows = {
        0: busy,
        1: replace(ROW, open=2, oldest_open_ns=2 * S, completed=7, complete_ns=5 * S, started=-1),
    }
    assert [rank.groups.open_since_ns(row) for row in (0, 1)] == [1 * S, 2 * S]  # on the host: since they were called
    rank.groups.on_device = {0, 1}
    # Nobody tells starts: since the device last ended anything, in whichever group.
    assert [rank.groups.open_since_ns(row) for row in (0, 1)] == [9 * S, 9 * S]
    rank.groups.rows[0] = replace(busy, started=5, started_ns=9 * S + 700)
    assert rank.groups.open_since_ns(0) == 9 * S + 700
    rank.groups.rows[0] = replace(busy, completed=0)
    assert rank.groups.open_since_ns(0) == 0  # it may be that nobody tells ends


def test_a_device_group_of_which_no_end_was_seen_has_unknown_ends(tmp_path: Path) -> None:
    rank = _rank(tmp_path)
    rank.groups.rows = {0: replace(ROW, in_use=1, enqueued=6, open=6, oldest_open_ns=1 * S, completed=0)}
    rank.groups.numbers = {0: 0}
    rows, _ = group_progress_rows([rank], 9 * S)
    assert (int(rows["completed"][0]), int(rows["open"][0]), int(rows["open_age_ns"][0])) == (0, 6, 8 * S)
    rank.groups.on_device = {0}
    rows, _ = group_progress_rows([rank], 9 * S)
    assert (int(rows["enqueued"][0]), int(rows["completed"][0]), int(rows["open"][0])) == (6, -1, -1)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"timeout_s": 50.0, "joined": False, "time_ns": 7}, (7, False, 50.0)),
        ({"timeout_s": 50, "joined": True, "time_ns": 99}, (9, True, 50.0)),  # nothing happens after it was read
        ({"timeout_s": float("nan"), "joined": "yes", "time_ns": "soon"}, (9, False, 1800.0)),
        ({}, (9, False, 1800.0)),
    ],
)
def test_a_word_of_joining_is_a_claim_like_any_other(
    payload: dict[str, Any], expected: tuple[int, bool, float]
) -> None:
    rank: Any = SimpleNamespace(pid=4711)
    time_ns, attributes = joining_attributes(rank, payload, now_ns=9)
    assert (time_ns, attributes["joined"], attributes["timeout_s"]) == expected
    assert attributes["pid"] == 4711
