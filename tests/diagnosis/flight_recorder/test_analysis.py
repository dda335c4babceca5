"""Every verdict, on jobs that play it: nested groups, sends and receives, wrapped rings, missing dumps, rank 0."""

from __future__ import annotations

import random

import pytest

from tests.diagnosis.flight_recorder.played_job import (
    OPEN,
    STARTED,
    PlayedJob,
    diagnose,
    group_of,
    mesh,
    named,
)
from whichrank.diagnosis.flight_recorder.dump_suspects import RuledOut
from whichrank.diagnosis.flight_recorder.entry_matching import MatchState
from whichrank.diagnosis.flight_recorder.group_state import GroupFinding
from whichrank.telemetry.vocabulary import Action, Bucket, Kind, Scope


def others(ranks: int, *guilty: int) -> list[int]:
    return [rank for rank in range(ranks) if rank not in guilty]


@pytest.mark.parametrize("guilty", [0, 7, 15])
@pytest.mark.parametrize("only_open", [False, True])
def test_a_rank_that_does_not_enter_is_named_whichever_it_is(guilty: int, only_open: bool) -> None:
    job = PlayedJob(16)
    for _ in range(3):
        job.call("0")
    job.call("0", by=others(16, guilty), state=OPEN, line=88)
    diagnosis = job.diagnosis(only_open=only_open)
    assert named(diagnosis) == [guilty]
    assert (diagnosis.kind, diagnosis.bucket, diagnosis.scope) == (
        Kind.RANK_NOT_ENTERED,
        Bucket.COMMUNICATION_HANG,
        Scope.RANK,
    )
    assert diagnosis.state is not None
    assert diagnosis.state.sequence == 4
    assert diagnosis.victims == tuple(others(16, guilty))
    assert diagnosis.ruled_out[0].ranks == tuple(others(16, guilty))
    assert diagnosis.confidence == 0.95
    waiting = diagnosis.activities[others(16, guilty)[0]]
    assert waiting.where is not None
    assert (waiting.where.file, waiting.where.line) == ("/home/user/train.py", 88)


@pytest.mark.parametrize("guilty", [0, 5])
@pytest.mark.parametrize(
    ("wrong", "mismatch"),
    [
        ({"op": "broadcast"}, MatchState.COLLECTIVE_TYPE_MISMATCH),
        ({"sizes": ((2048,),)}, MatchState.SIZE_OR_SYNTAX_MISMATCH),
        ({"dtype": "BFloat16"}, MatchState.COLLECTIVE_DTYPE_MISMATCH),
    ],
)
def test_the_odd_one_out_diverged_and_the_first_rank_is_not_taken_for_right(
    guilty: int, wrong: dict[str, str], mismatch: MatchState
) -> None:
    job = PlayedJob(8)
    job.call("0")
    job.call("0", by=others(8, guilty), state=OPEN)
    job.call("0", by=[guilty], state=OPEN, **wrong)  # type: ignore[arg-type]
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [guilty]
    assert (diagnosis.kind, diagnosis.scope) == (Kind.DESYNC, Scope.APPLICATION)
    assert diagnosis.advice is not None
    assert diagnosis.advice.action is Action.FIX_CODE
    assert diagnosis.state is not None
    assert diagnosis.state.divergence is not None
    assert diagnosis.state.divergence.ranks == {guilty: mismatch}


def test_a_divergence_with_calls_queued_behind_it_is_still_the_verdict() -> None:
    job = PlayedJob(8)
    job.call("0", by=others(8, 5), state=OPEN)
    job.call("0", "broadcast", by=[5], state=OPEN)
    for _ in range(6):
        job.call("0", by=others(8, 2), state=OPEN)
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [5]
    assert diagnosis.kind is Kind.DESYNC


def test_a_rank_that_left_a_call_out_is_said_to_have_done_so() -> None:
    job = PlayedJob(8)
    job.call("0", "all_reduce")
    job.call("0", "broadcast", by=others(8, 3), state=OPEN)
    job.call("0", "all_gather", by=others(8, 3), state=OPEN, sizes=((4,),), out=((32,),))
    job.call("0", "all_gather", by=[3], state=OPEN, sizes=((4,),), out=((32,),))
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [3]
    assert "left a call out" in diagnosis.suspects[0].because


def test_where_two_differ_both_are_named_with_half_the_confidence() -> None:
    job = PlayedJob(2)
    job.call("0", by=[0], state=OPEN)
    job.call("0", "broadcast", by=[1], state=OPEN)
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [0, 1]
    assert {suspect.probability for suspect in diagnosis.suspects} == {0.5}
    assert diagnosis.confidence == 0.5


def test_pairs_of_one_mesh_tell_which_of_two_is_odd() -> None:
    ranks, groups = mesh(tensor=4, data=2, pipeline=1)
    job = PlayedJob(ranks, groups)
    for part in range(4):
        name = group_of(job, "DP", part)
        job.call(name)
        job.call(name, by=[part + 4], state=OPEN)
        job.call(name, by=[part], state=OPEN, sizes=((512,),) if part == 2 else ((1024,),))
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [2]
    assert diagnosis.kind is Kind.DESYNC


@pytest.mark.parametrize("guilty", [0, 5, 13])
@pytest.mark.parametrize("only_open", [False, True])
def test_the_root_is_found_through_nested_groups(guilty: int, only_open: bool) -> None:
    job = nested_hang(guilty)
    diagnosis = job.diagnosis(only_open=only_open)
    assert named(diagnosis) == [guilty]
    assert diagnosis.state is not None
    assert diagnosis.state.group.description == "TP"
    behind = [row for row in diagnosis.ruled_out if "held up themselves" in row.because]
    assert behind, "peers of the guilty rank that others wait for must be ruled out by name"


def nested_hang(guilty: int, *, seed: int = 0) -> PlayedJob:
    """16 ranks, TP 2 x DP 4 x PP 2: the guilty rank stops before a tensor-parallel call; its partner waits there, and
    both are waited for in their data-parallel groups."""
    ranks, groups = mesh(tensor=2, data=4, pipeline=2)
    job = PlayedJob(ranks, groups)
    chance = random.Random(seed)
    for rank in range(ranks):
        job.clock_ns[rank] = chance.randrange(-300, 300) * 1_000_000_000
    names = {kind: [name for name, (one, _) in job.groups.items() if one == kind] for kind in ("TP", "DP")}
    for _ in range(3):
        for kind in ("TP", "DP"):
            for name in names[kind]:
                job.call(name)
    stuck = group_of(job, "TP", guilty)
    for name in names["TP"]:
        if name == stuck:
            job.call(name, by=[rank for rank in job.groups[name][1] if rank != guilty], state=OPEN)
        else:
            job.call(name)
    held_up = set(job.groups[stuck][1])
    for name in names["DP"]:
        members = job.groups[name][1]
        if held_up & set(members):
            job.call(name, by=[rank for rank in members if rank not in held_up], state=OPEN)
        else:
            job.call(name)
    return job


def test_the_rank_without_a_dump_is_named_where_all_others_wait() -> None:
    job = PlayedJob(8)
    job.call("0")
    job.call("0", state=OPEN, by=others(8, 6))
    diagnosis = job.diagnosis(without=[6])
    assert named(diagnosis) == [6]
    assert diagnosis.finding is GroupFinding.NO_DUMP
    assert diagnosis.silent == (6,)
    assert diagnosis.confidence <= 0.5


@pytest.mark.parametrize("without", others(16, 5))
def test_whichever_other_dump_is_missing_the_guilty_rank_stays_the_one(without: int) -> None:
    assert named(nested_hang(5).diagnosis(without=[without])) == [5]


def test_the_guilty_rank_without_a_dump_is_found_through_nested_groups() -> None:
    diagnosis = nested_hang(5).diagnosis(without=[5])
    assert named(diagnosis) == [5]
    assert diagnosis.finding is GroupFinding.NO_DUMP


def test_gloo_calls_that_failed_count_as_waiting_not_as_ended() -> None:
    """gloo marks a call that timed out like one that ended well: only that a member never came tells them apart."""
    job = PlayedJob(4)
    for by in (range(4), range(4), [0, 1, 3]):
        job.call("0", by=by)
    for entries in job.entries.values():
        for entry in entries:
            entry |= {"profiling_name": "gloo:all_reduce", "state": OPEN, "time_discovered_started_ns": None}
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [2]
    assert diagnosis.victims == (0, 1, 3)
    assert diagnosis.confidence == 0.5
    assert "their calls are over" in diagnosis.suspects[0].because


def test_gloo_ranks_dumped_one_after_the_other_while_running_accuse_nobody() -> None:
    job = PlayedJob(4)
    for rank in range(4):
        for _ in range(10 + 3 * rank):
            job.call("0", by=[rank])
    for entries in job.entries.values():
        for entry in entries:
            entry |= {"profiling_name": "gloo:all_reduce", "state": OPEN, "time_discovered_started_ns": None}
    assert job.diagnosis().kind is None


def test_a_pipeline_stage_that_does_not_send_is_the_root() -> None:
    job = PlayedJob(4)
    for stage in range(3):
        job.pair("0", stage, stage + 1)
        job.pair("0", stage + 1, stage)
    job.pair("0", 0, 1)
    job.pair("0", 1, 2, sent=None, received=OPEN)
    job.pair("0", 2, 3, sent=None, received=OPEN)
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [1]
    assert diagnosis.ruled_out[0] == RuledOut(
        (2,),
        "others wait for them in a call that they have not entered",
        "they are held up themselves: each waits in a call of another group for somebody else",
    )


def test_a_receiver_that_does_not_come_is_the_root_of_a_send() -> None:
    ranks, groups = mesh(tensor=1, data=1, pipeline=2)
    job = PlayedJob(ranks, groups)
    name = group_of(job, "PP", 0)
    job.pair(name, 0, 1)
    job.pair(name, 0, 1, sent=OPEN, received=None)
    assert named(job.diagnosis(only_open=True)) == [1]


def test_uneven_all_to_all_is_no_divergence() -> None:
    job = PlayedJob(4)
    for rank in range(4):
        job.call("0", "all_to_all", by=[rank], sizes=((100, 8),), out=((97 + 2 * rank, 8),))
    job.call("0", by=others(4, 2), state=OPEN)
    assert named(job.diagnosis()) == [2]


def test_an_all_to_all_that_does_not_add_up_names_nobody() -> None:
    job = PlayedJob(4)
    job.call("0")
    for rank in range(4):
        job.call("0", "all_to_all", by=[rank], state=OPEN, sizes=((100, 8),), out=((101, 8),))
    diagnosis = job.diagnosis()
    assert diagnosis.kind is Kind.DESYNC
    assert diagnosis.suspects == ()


def test_a_coalesced_set_is_one_call() -> None:
    job = PlayedJob(4)
    for rank in range(4):
        job.call("0", "_reduce_oop", by=[rank])
        job.call("0", "_reduce_oop", by=[rank], same_call=True, sizes=((7,),))
        job.call("0", "REDUCE_SCATTER_coalesced", by=[rank], same_call=True, sizes=((),))
    job.call("0", by=others(4, 1), state=OPEN)
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [1]
    assert diagnosis.states[0].matched == 2


def test_a_set_with_another_member_diverged() -> None:
    job = PlayedJob(4)
    for rank in range(4):
        job.call("0", "_broadcast_oop", by=[rank], state=OPEN)
        job.call("0", "_broadcast_oop", by=[rank], state=OPEN, same_call=True, sizes=((5 if rank == 2 else 7,),))
        job.call("0", "ALLGATHER_coalesced", by=[rank], state=OPEN, same_call=True, sizes=((),))
    assert named(job.diagnosis()) == [2]


def test_rings_that_wrapped_at_different_places_are_joined_by_number() -> None:
    ranks, groups = mesh(tensor=2, data=2, pipeline=1)
    job = PlayedJob(ranks, groups)
    for step in range(200):
        for name in [name for name, (kind, _) in job.groups.items() if kind == "TP"]:
            for _ in range(1 + step % 3):
                job.call(name)
        for name in [name for name, (kind, _) in job.groups.items() if kind == "DP"]:
            job.call(name)
    job.call("0", by=others(4, 3), state=OPEN)
    for rank in range(3):  # some run on by themselves for a while
        for _ in range(rank * 5):
            job.call("0", by=[rank], state=OPEN)
    for newest in (20, 50):
        assert named(job.diagnosis(newest=newest)) == [3]


def test_all_in_and_some_not_started_names_those() -> None:
    job = PlayedJob(8)
    job.call("0")
    job.call("0", by=others(8, 4), state=STARTED)
    job.call("0", by=[4], state=OPEN)
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [4]
    assert diagnosis.finding is GroupFinding.NOT_STARTED
    assert diagnosis.kind is Kind.COLLECTIVE_STALLED


def test_a_call_that_ended_for_all_but_one_names_that_one() -> None:
    job = PlayedJob(8)
    job.call("0", by=others(8, 6))
    job.call("0", by=[6], state=OPEN)
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [6]
    assert diagnosis.finding is GroupFinding.NOT_FINISHED


def test_all_in_one_call_and_nothing_more_names_nobody() -> None:
    job = PlayedJob(8)
    job.call("0")
    job.call("0", state=STARTED)
    diagnosis = job.diagnosis()
    assert diagnosis.kind is Kind.COLLECTIVE_STALLED
    assert diagnosis.suspects == ()
    assert diagnosis.confidence < 0.5
    assert diagnosis.advice is not None
    assert diagnosis.advice.action is Action.ASK_A_HUMAN


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_deadlock_of_nobody() -> None:
    job = PlayedJob(4, {"1": ("A", [0, 1]), "2": ("B", [1, 2]), "3": ("C", [2, 0])})
    job.call("0")
    for name, rank in (("1", 0), ("2", 1), ("3", 2)):
        job.call(name, by=[rank], state=OPEN)
    diagnosis = job.diagnosis()
    assert (diagnosis.kind, diagnosis.scope, diagnosis.suspects) == (Kind.DEADLOCK, Scope.APPLICATION, ())
    assert "ranks 0-2 wait for each other" in diagnosis.summary


def test_calls_queued_in_opposite_order_are_a_deadlock_too() -> None:
    job = PlayedJob(4, {"1": ("A", [0, 1, 2, 3]), "2": ("B", [0, 1, 2, 3])})
    for name in ("1", "2"):
        job.call(name, by=[0, 1], state=OPEN)
    for name in ("2", "1"):
        job.call(name, by=[2, 3], state=OPEN)
    diagnosis = job.diagnosis()
    assert diagnosis.kind is Kind.DEADLOCK
    assert diagnosis.suspects == ()


def test_a_second_hung_rank_that_waits_for_the_first_is_found_by_its_peers_running_on() -> None:
    """Rank 2 stops. All but rank 5 run three calls ahead on the host: it waits like they do, and stopped earlier."""
    job = PlayedJob(8, {"1": ("EP", [4, 5, 6, 7])})
    job.call("0")
    job.call("0", by=others(8, 2), state=OPEN)
    for _ in range(3):
        job.call("1", by=[4, 6, 7], state=OPEN)
    diagnosis = job.diagnosis(only_open=True)
    assert named(diagnosis) == [2, 5]
    assert [suspect.rank for suspect in diagnosis.suspects] == [2, 5], "the surer one comes first"


def test_a_rank_that_stands_where_its_peers_stand_is_not_blamed() -> None:
    job = PlayedJob(8, {"1": ("EP", [4, 5, 6, 7])})
    job.call("0")
    job.call("0", by=others(8, 2), state=OPEN)
    job.call("1", by=[4, 5, 6, 7], state=OPEN)
    assert named(job.diagnosis(only_open=True)) == [2]


def test_two_ranks_hung_in_different_groups_are_both_named() -> None:
    ranks, groups = mesh(tensor=4, data=2, pipeline=1)
    job = PlayedJob(ranks, groups)
    job.call("0")
    for part, guilty in ((0, 1), (4, 6)):
        name = group_of(job, "TP", part)
        job.call(name, by=[rank for rank in job.groups[name][1] if rank != guilty], state=OPEN)
    assert named(job.diagnosis()) == [1, 6]


def test_nothing_open_is_no_hang() -> None:
    job = PlayedJob(4)
    for _ in range(5):
        job.call("0")
    diagnosis = job.diagnosis()
    assert (diagnosis.kind, diagnosis.suspects, diagnosis.victims) == (None, (), ())
    assert diagnosis.summary.startswith("no call is open")


def test_a_dump_that_lacks_a_call_which_ended_for_the_others_is_told_with_little_confidence() -> None:
    job = PlayedJob(4)
    job.call("0")
    job.call("0", by=[0, 1, 3])
    diagnosis = job.diagnosis()
    assert named(diagnosis) == [2]
    assert diagnosis.confidence <= 0.3


def test_a_running_job_whose_ranks_dump_one_after_the_other_accuses_nobody() -> None:
    job = PlayedJob(4)
    for rank in range(4):
        for _ in range(20 + 2 * rank):
            job.call("0", by=[rank])
    assert job.diagnosis().suspects == ()


def test_dumps_without_calls_say_so() -> None:
    diagnosis = PlayedJob(4).diagnosis()
    assert diagnosis.kind is None
    assert "hold no calls" in diagnosis.summary


def test_an_old_difference_does_not_hide_who_is_waited_for() -> None:
    """A dtype that differed in a call that ended for all, hundreds of calls ago, is not what holds the job up."""
    job = PlayedJob(4)
    job.call("0", by=[0, 1, 2])
    job.call("0", by=[3], dtype="Half")
    for _ in range(50):
        job.call("0")
    job.call("0", by=[0, 2, 3], state=OPEN)
    diagnosis = job.diagnosis()
    assert diagnosis.kind is Kind.RANK_NOT_ENTERED
    assert named(diagnosis) == [1]
    assert diagnosis.states[0].divergence is not None


@pytest.mark.parametrize("seed", range(10))
def test_who_is_named_follows_the_names_of_the_ranks(seed: int) -> None:
    """The same hang with the ranks' roles shuffled names the shuffled rank."""
    chance = random.Random(seed)
    guilty = chance.randrange(16)
    files = nested_hang(guilty, seed=seed).files()
    shuffled = list(files.items())
    chance.shuffle(shuffled)
    assert named(diagnose(dict(shuffled))) == [guilty]
