"""What agents of large jobs leave out: precision that no verdict asks for, and lists of groups that were told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.agents.reduction.coarse_rows import coarse
from whichrank.agents.reduction.large_jobs import GroupLists
from whichrank.processors.job.state.job_groups import JobGroups
from whichrank.processors.job.state.unsaved import Unsaved
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.packed_flush import Packing, list_referred, referred, referred_list, uid_of_list
from whichrank.telemetry.records import Block, Group, Identity
from whichrank.telemetry.tables import COLLECTIVES, DEVICE_STEPS, GROUP_PROGRESS, NO_GROUP, PROGRESS, STEPS
from whichrank.telemetry.vocabulary import EventName

MS = 1_000_000
GROUPS = tuple(Group(uid=f"{number:016x}", name=str(number), ranks="0-7", size=8) for number in range(3))


def block(name: EventName, rows: np.ndarray, groups: tuple[Group, ...] = ()) -> Block:
    return Block(name=name, identity=Identity(job="job"), rows=rows, groups=groups)


@given(
    st.integers(1 << 40, 1 << 50), st.integers(0, 1 << 40), st.lists(st.integers(1, 1 << 34), min_size=2, max_size=6)
)
def test_since_when_stays_the_same_from_flush_to_flush(since_ns: int, first: int, later: list[int]) -> None:
    found = set()
    for read_ns in (since_ns + first + passed for passed in later):
        rows = np.zeros(1, PROGRESS)
        rows["read_ns"], rows["phase_age_ns"] = read_ns, read_ns - since_ns
        told = coarse(block(EventName.BLOCK_PROGRESS, rows), read_ns).rows
        assert 0 <= told["read_ns"][0] - read_ns < 17 * MS
        found.add(int(told["read_ns"][0] - told["phase_age_ns"][0]))
    (moment_ns,) = found
    assert 0 <= since_ns - moment_ns < 1.05 * MS


def test_calls_are_told_since_a_moment_that_stays_at_most_17_ms_before() -> None:
    found = set()
    for later in range(1, 10**10, 777_777_777):
        rows = np.zeros(1, GROUP_PROGRESS)
        rows["open_age_ns"] = later
        told = coarse(block(EventName.BLOCK_GROUP_PROGRESS, rows), 123_456_789_012 + later).rows
        look = np.zeros(1, PROGRESS)
        look["read_ns"] = 123_456_789_012 + later
        looked_ns = coarse(block(EventName.BLOCK_PROGRESS, look), 0).rows["read_ns"]
        found.add(int(looked_ns[0] - told["open_age_ns"][0]))
    (moment_ns,) = found
    assert 0 <= 123_456_789_012 - moment_ns < 17 * MS


def test_what_devices_ended_they_have_begun_and_who_moves_says_no_more() -> None:
    groups = np.zeros(4, GROUP_PROGRESS)
    groups["started"], groups["completed"] = (-1, 3, 7, 9), (5, 5, 5, -1)
    told = coarse(block(EventName.BLOCK_GROUP_PROGRESS, groups), 5).rows
    assert told["started"].tolist() == [-1, 5, 7, 9]
    ranks = np.zeros(4, PROGRESS)
    ranks["read_ns"], ranks["still_ns"] = 10**12, (-1, 0, 1000 * MS, 1100 * MS)
    told = coarse(block(EventName.BLOCK_PROGRESS, ranks), 10**12).rows
    assert told["still_ns"].tolist()[:3] == [-1, 0, -1]
    assert 0 <= told["still_ns"][3] - 1100 * MS < 20 * MS


def test_ends_on_devices_are_told_to_a_two_thousandth_of_the_step() -> None:
    rows = np.zeros(2, DEVICE_STEPS)
    rows["first_end_ns"], rows["last_end_ns"] = 10**12 + np.array([1, 700]) * MS, 10**12 + np.array([1900, 2001]) * MS
    rows["stood_ns"] = (0, 333 * MS)
    told = coarse(block(EventName.BLOCK_DEVICE_STEPS, rows), 0).rows
    for column in ("first_end_ns", "last_end_ns", "stood_ns"):
        assert np.abs(told[column] - rows[column]).max() <= 2000 * MS / 1024
    assert told["stood_ns"][0] == 0


def test_what_is_unknown_or_nothing_stays_so() -> None:
    rows = np.zeros(3, GROUP_PROGRESS)
    rows["open_age_ns"], rows["moved_age_ns"] = (0, 1, 5 * MS), (0, 7, -1)
    told = coarse(block(EventName.BLOCK_GROUP_PROGRESS, rows), 123_456_789_012_345).rows
    assert (told["open_age_ns"] > 0).tolist() == [False, True, True]
    assert told["moved_age_ns"].tolist()[::2] == [0, -1]
    steps = np.zeros(4, STEPS)
    steps["phase_ns"][:, 1] = 2_000 * MS
    steps["phase_ns"][:, 2] = (0, 1, 99, 400 * MS)
    steps["run_delay_ns"] = -1
    steps["loss"] = (np.nan, np.inf, 1e300, 2.000_000_000_1)
    steps["grad_norm"] = (0.0, 1e-60, -1e300, 3.0)
    told = coarse(block(EventName.BLOCK_STEPS, steps), 0).rows
    assert (told["phase_ns"][:, 2] > 0).tolist() == [False, True, True, True]
    assert abs(told["phase_ns"][3, 2] - 400 * MS) < 2_000 * MS / 8192
    assert told["run_delay_ns"].tolist() == [-1] * 4
    assert np.isnan(told["loss"][0])
    assert np.isposinf(told["loss"][1])
    assert told["loss"][2:].tolist() == [1e300, 2.0]
    assert told["grad_norm"].tolist() == [0.0, 1e-60, -1e300, 3.0]
    calls = block(EventName.BLOCK_COLLECTIVES, np.ones(2, COLLECTIVES), GROUPS)
    assert coarse(calls, 5) is calls


def test_short_steps_are_told_as_finely_as_they_are() -> None:
    steps = np.zeros(1, STEPS)
    steps["phase_ns"][:, 1], steps["begin_ns"], steps["end_ns"] = 6_000_123, 1_000_000_007, 1_006_000_130
    told = coarse(block(EventName.BLOCK_STEPS, steps), 0).rows
    for column in ("phase_ns", "begin_ns", "end_ns"):
        assert np.abs(told[column] - steps[column]).max() < 6_000_123 / 4096


def test_lists_of_groups_are_told_at_first_with_new_ones_with_whole_calls_and_again() -> None:
    lists = GroupLists()
    few = [block(EventName.BLOCK_GROUP_PROGRESS, np.zeros(1, GROUP_PROGRESS), GROUPS[:2])]
    all_ = [replace(few[0], groups=GROUPS)]
    calls = [*few, block(EventName.BLOCK_COLLECTIVES, np.zeros(1, COLLECTIVES), GROUPS[:1])]
    told = [(1, few), (2, few), (3, all_), (4, few), (5, calls), (6, all_), (61, few), (62, few), (63, all_)]
    whole = [at_s for at_s, blocks in told if lists.packing(blocks, at_s * 10**9) is Packing.WHOLE]
    assert whole == [1, 3, 5, 61, 63]


def test_a_judge_waits_for_the_list_of_a_group_that_it_does_not_know() -> None:
    groups = JobGroups(Unsaved(), lambda: 8)
    uids = tuple(group.uid for group in GROUPS[:2])
    assert groups.lookup(referred(uids)).tolist() == [NO_GROUP] * 3
    assert not groups.known
    groups.lookup(GROUPS[:2])
    assert groups.lookup(referred(uids)).tolist() == [0, 1, NO_GROUP]
    assert [group.name for group in groups.known] == ["0", "1"]


def flush_of(groups: tuple[Group, ...], attempt: str = "") -> list[Block]:
    rows = np.zeros(len(groups), GROUP_PROGRESS)
    rows["group"] = np.arange(len(groups))
    told = block(EventName.BLOCK_GROUP_PROGRESS, rows, groups)
    return [replace(told, identity=replace(told.identity, attempt=attempt))]


def groups_of(value: bytes) -> tuple[Group, ...]:
    (found,) = decode_logs("t", value)
    assert isinstance(found, Block)
    return found.groups


def test_a_list_that_was_told_is_one_uid_until_it_is_due_again_or_the_attempt_is_another() -> None:
    lists, few = GroupLists(), GROUPS[:2]
    told = [
        (1, GROUPS, "a"),
        (2, GROUPS, "a"),
        (3, few, "a"),
        (4, few, "a"),
        (5, few, "b"),
        (6, few, "b"),
        (61, few, "b"),
    ]
    referred_to = []
    for at_s, groups, attempt in told:
        blocks = flush_of(groups, attempt)
        packing = lists.packing(blocks, at_s * 10**9)
        referred_to.append(list_referred(groups_of(encode_payloads(blocks, packing=packing, lists=lists.lists))))
    all_, two = uid_of_list(GROUPS), uid_of_list(few)
    assert referred_to == ["", all_, "", two, "", two, ""]


def test_a_list_is_told_of_what_one_message_holds() -> None:
    lists = GroupLists()
    told = [*flush_of(GROUPS[:2], "a"), *flush_of(GROUPS[1:], "b")]
    for at_s in (1, 2, 3):
        packing = lists.packing(told, at_s * 10**9)
        found = decode_logs("t", encode_payloads(told, packing=packing, lists=lists.lists))
        referred_to = [list_referred(each.groups) for each in found if isinstance(each, Block)]
        assert referred_to == (["", ""] if at_s == 1 else [uid_of_list(GROUPS[:2]), uid_of_list(GROUPS[1:])])


def test_a_judge_knows_lists_by_what_was_told_and_after_a_restart() -> None:
    groups, list_of_all = JobGroups(Unsaved(), lambda: 8), referred_list(uid_of_list(GROUPS[:2]))
    assert groups.lookup(list_of_all).tolist() == [NO_GROUP]
    assert groups.lookup(referred(tuple(group.uid for group in GROUPS[:2]))).tolist() == [NO_GROUP] * 3
    assert groups.lookup(list_of_all).tolist() == [NO_GROUP] * 3
    for group in reversed(GROUPS[:2]):
        groups.add(group)
    assert groups.lookup(list_of_all).tolist() == [1, 0, NO_GROUP]
    again = JobGroups(Unsaved(), lambda: 8)
    again.put_back_lists(groups.lists())
    assert again.lookup(list_of_all).tolist() == [1, 0, NO_GROUP]
    assert groups.lookup(referred_list("0" * 16)).tolist() == [NO_GROUP]


@pytest.mark.parametrize("at_s", [0, 5])
def test_no_groups_are_no_list(at_s: int) -> None:
    assert GroupLists().packing([block(EventName.BLOCK_PROGRESS, np.zeros(1, PROGRESS))], at_s) is Packing.UIDS
