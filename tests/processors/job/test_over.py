"""Over Kafka no command tells that a job is over: agents see ranks and launchers end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.processors.job.synthetic_job import FOREVER, SECOND, WALL_NS, MemoryContext, SyntheticJob, drive
from whichrank.processors.job.crash.job_end import LAST_WORDS_NS, RESTART_NS
from whichrank.telemetry.records import Finding
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase

Told = tuple[float, EventName, int, dict[str, Any]]
RANKS = 4
AFTER_S = 90.0


def exits(at_s: float, *, exit_state: ExitState = ExitState.RUNNING, **values: Any) -> list[Told]:
    return [(at_s, EventName.RANK_EXIT, rank, {"exit_state": int(exit_state), **values}) for rank in range(RANKS)]


def hung(events: Sequence[Told], ends_s: float) -> SyntheticJob:
    """Rank 3 never comes out of its forward pass; all processes are gone at ``ends_s``."""
    return SyntheticJob(
        steps=60,
        after_s=AFTER_S,
        delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (3, 20, Phase.FORWARD) else 0.0],
        ends=dict.fromkeys(range(RANKS), ends_s),
        events=list(events),
    )


def launcher_ends(at_s: float) -> Told:
    return (at_s, EventName.LAUNCH_ENDED, -1, {})


def judged(job: SyntheticJob, *, fresh: bool = False) -> MemoryContext:
    return drive(job.records(), idle_s=AFTER_S, listens=True, fresh_each_time=fresh)


def only(context: MemoryContext) -> Finding:
    (finding,) = context.final().values()
    return finding


def resolved_s(finding: Finding) -> float:
    """After the job's begin."""
    return float(finding.body["times"]["resolved"]) - WALL_NS / 1e9 - 100.0


@pytest.mark.parametrize("fresh", [False, True])
def test_a_hanging_job_that_is_taken_down_is_over_when_its_launcher_has_ended(fresh: bool) -> None:
    stopped = hung([*exits(20.0, signal=15), launcher_ends(21.0)], 20.0)
    finding = only(judged(stopped, fresh=fresh))
    assert (finding.body["kind"], finding.cleared) == ("rank_not_entered", True)
    assert finding.body["job"]["now"] == "stopped"
    assert 21.0 < resolved_s(finding) < 21.2 + LAST_WORDS_NS / SECOND


def test_as_long_as_a_launcher_lives_it_may_start_its_ranks_again() -> None:
    finding = only(judged(hung(exits(20.0, signal=9), 20.0)))
    assert finding.cleared
    assert abs(resolved_s(finding) - 20.0 - RESTART_NS / SECOND) < 0.2


def test_a_job_that_dies_of_its_hang_leaves_it_open() -> None:
    """A watchdog's abort is nobody's wish."""
    died = hung([*exits(20.0, signal=6), launcher_ends(21.0)], 20.0)
    finding = only(judged(died))
    assert (finding.cleared, finding.body["job"]["now"]) == (False, "stopped")


def test_a_rank_that_was_killed_stays_the_cause_when_the_others_are_taken_down() -> None:
    killed = (4.0, EventName.RANK_EXIT, 2, {"exit_state": int(ExitState.RUNNING), "signal": 9})
    others = [told for told in exits(4.6, signal=15) if told[2] != 2]
    job = SyntheticJob(
        steps=60,
        after_s=AFTER_S,
        ends={2: 4.0, **dict.fromkeys((0, 1, 3), 4.6)},
        events=[killed, *others, launcher_ends(5.5)],
    )
    finding = only(judged(job))
    assert (finding.body["kind"], [item["rank"] for item in finding.body["suspects"]]) == ("rank_died", [2])
    assert (finding.cleared, finding.body["job"]["now"]) == (False, "stopped")


def test_a_rank_that_never_came_holds_the_end_of_the_others_up_no_longer() -> None:
    """It is suspected, and nothing has been heard of it."""
    init = [(0.1, EventName.RANK_JOINING, rank, {"joined": False, "timeout_s": 50.0}) for rank in range(3)]
    ends = [told for told in exits(30.0, signal=15) if told[2] != 3]
    job = SyntheticJob(
        steps=0,
        absent=(3,),
        after_s=AFTER_S,
        ends=dict.fromkeys(range(3), 30.0),
        events=[*init, *ends, launcher_ends(31.0)],
    )
    finding = only(judged(job))
    assert (finding.body["kind"], finding.cleared) == ("rank_never_joined", True)
    assert resolved_s(finding) < 31.2 + LAST_WORDS_NS / SECOND


def test_what_is_slow_ends_with_a_job_that_ends_well() -> None:
    job = SyntheticJob(
        steps=100,
        after_s=AFTER_S,
        slow=lambda rank, step: 1.5 if rank == 2 and step >= 50 else 1.0,
        events=[*exits(30.0, exit_state=ExitState.NORMAL, exit_code=0), launcher_ends(31.0)],
    )
    finding = only(judged(job))
    assert (finding.body["kind"], finding.cleared) == ("rank_slow", True)


def test_a_job_that_begins_again_is_not_over() -> None:
    """Its scheduler has put it back: what its first attempt died of is over when the second has passed it."""
    first = hung([*exits(20.0, signal=6), launcher_ends(20.5)], 20.0)
    first.after_s = 10.0
    second = SyntheticJob(steps=60, attempt="a2", start_s=140.0, after_s=5.0)
    context = drive([*first.records(), *second.records()], listens=True)
    finding = only(context)
    assert (finding.cleared, finding.body["job"]["now"]) == (True, "running")


def test_where_a_command_tells_of_its_end_nothing_is_concluded_from_the_records() -> None:
    context = drive(hung(exits(20.0, signal=9), 20.0).records(), idle_s=AFTER_S)
    assert not only(context).cleared


def test_the_last_steps_of_rings_that_were_left_behind_are_judged() -> None:
    """Their whichrank was killed, and all that they hold comes in one moment."""
    job = SyntheticJob(
        steps=100,
        slow=lambda rank, step: 2.0 if rank == 2 and step >= 50 else 1.0,
        events=exits(35.0, exit_state=ExitState.NORMAL, exit_code=0),
    )
    records = job.records()
    killed_ns, read_ns = WALL_NS + 112 * SECOND, WALL_NS + 140 * SECOND
    left = [replace(record, stamp_ns=read_ns) for record in records if record.stamp_ns >= killed_ns]
    context = drive([*(record for record in records if record.stamp_ns < killed_ns), *left], idle_s=3.0)
    finding = only(context)
    assert (finding.body["kind"], [item["rank"] for item in finding.body["suspects"]]) == ("rank_slow", [2])
    assert abs(finding.body["first_bad"]["step"] - 50) <= 1
