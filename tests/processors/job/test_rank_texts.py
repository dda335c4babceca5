"""Ranks' facts as a text of which only what changed is made anew: it says what they are."""

from __future__ import annotations

import json
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.rank_state import BadInput, CallSite, RankFacts, RankStack
from whichrank.processors.job.state.rank_texts import RankTexts
from whichrank.processors.job.state.state_rows import load_job, save_job
from whichrank.processors.runner_rows import Position, RunnerRows

CALL = CallSite(group=1, point_to_point=False, seq=3, file="a.py", line=4, function="f")
BAD = BadInput(step=1, group=0, point_to_point=True, seq=2, peer=-1, before=())
STACK = RankStack(file="a.py", line=1, function="f", method="signal", phase="other", time_ns=5)

#: Rank, and what is set or added there.
changes = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(
            [
                ("node", "n1"),
                ("node", ""),
                ("pid", 7),
                ("joined", True),
                ("joined", False),
                ("join_timeout_s", 0.5),
                ("stack", STACK),
                ("stack", None),
                ("calls", CALL),
                ("bad_inputs", BAD),
                ("local_rank", -1),
            ]
        ),
    ),
    max_size=8,
)


def change(job: JobState, told: list[tuple[int, tuple[str, object]]]) -> None:
    for rank, (name, value) in told:
        facts = job.facts(rank)
        if name in ("calls", "bad_inputs"):
            getattr(facts, name).append(value)
        else:
            setattr(facts, name, value)


def as_json(job: JobState) -> object:
    """Lists for tuples."""
    return json.loads(json.dumps({rank: asdict(facts) for rank, facts in job.ranks.items()}))


@given(st.lists(changes, min_size=1, max_size=4), st.integers(0, 3))
def test_what_is_saved_is_read_again_whatever_was_kept(looks: list, gone: int) -> None:  # type: ignore[type-arg]
    job, table = JobState(cluster="c", run="r", job="j"), RunnerRows(Position()).open_table(("job", "j", "job"))
    for told in looks:
        change(job, told)
        job.unsaved.facts = True
        save_job(job, table)
        read = load_job(table)
        assert read is not None
        assert as_json(read) == as_json(job)
    job.ranks.pop(gone, None)
    assert set(json.loads(job.unsaved.rank_texts.text(job.ranks))) == {str(rank) for rank in job.ranks}


def test_what_a_rank_has_from_the_start_is_not_written() -> None:
    assert json.loads(RankTexts().text({0: RankFacts(), 5: RankFacts(pid=3)})) == {"0": {}, "5": {"pid": 3}}
