"""For how long of its wait a rank was alive, asked of all at once: as it is counted for each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.job.intake.wait_thresholds import STATE_KNOWN_NS, LivedTimes
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.rank_state import RankFacts
from whichrank.telemetry.vocabulary import ProcessState

READ_NS = 1 << 60
RANKS = st.fixed_dictionaries(
    {
        "known": st.booleans(),
        "heard": st.booleans(),
        "stopped": st.booleans(),
        "silent_ns": st.integers(0, 2 * STATE_KNOWN_NS),
        "exited_ns": st.sampled_from((0, 5)),
        "stopped_ns": st.sampled_from((0, 0, 7)),
        "continued_ns": st.sampled_from((0, 0, READ_NS - 1_000_000_000, READ_NS + 1)),
        "age_ns": st.integers(0, 10_000_000_000),
    }
)


def lived_ns(rank: dict[str, int]) -> int:
    age_ns = rank["age_ns"]
    if not rank["known"] or not rank["heard"] or rank["exited_ns"]:
        return age_ns
    if rank["stopped_ns"]:
        return 0
    if rank["stopped"] or rank["silent_ns"] < STATE_KNOWN_NS:
        age_ns -= rank["silent_ns"]
    if rank["continued_ns"]:
        age_ns = min(age_ns, READ_NS - rank["continued_ns"])
    return max(0, age_ns)


@given(st.lists(RANKS, min_size=1, max_size=8))
def test_ages_of_waits_are_those_of_each_rank(ranks: list[dict[str, int]]) -> None:
    job = JobState(job="job")
    job.progress.grow(len(ranks) - 1)
    for number, told in enumerate(ranks):
        if told["known"]:
            job.ranks[number] = RankFacts()
            for name in ("exited_ns", "stopped_ns", "continued_ns"):
                setattr(job.ranks[number], name, told[name])
        row = job.progress.rows[number]
        row["read_ns"], row["heartbeat_age_ns"] = READ_NS, told["silent_ns"]
        row["process_state"] = int(ProcessState.STOPPED if told["stopped"] else ProcessState.RUNNING)
        job.progress.stamps[number] = 1 if told["heard"] else 0
    unheard = {"known": 0, "heard": 0, "exited_ns": 0, "age_ns": 3}
    asked = [*ranks, unheard]
    found = LivedTimes(job).ages_ns(np.array([*range(len(ranks)), 1000]), np.array([each["age_ns"] for each in asked]))
    assert found.tolist() == [lived_ns(each) for each in asked]
