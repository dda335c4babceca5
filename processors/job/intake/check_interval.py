"""How often all ranks are looked at: at each message of an agent in a small job, at some of them in a large one."""

from __future__ import annotations

from ..state.job_state import JobState

#: A job of so many ranks is looked at whenever anything comes.
FEW_RANKS = 256
#: Between two looks pass so many ns a rank: without this the work for one message would grow with the number of
#: messages. Of so many ranks agents tell once a second, and within this a quarter of them.
NS_PER_RANK = 60_000
MANY_RANKS, LEAST_OF_MANY_NS = 1024, 250_000_000


def is_look_due(job: JobState, before_ns: int, stamp_ns: int) -> bool:
    """Whether all ranks are to be looked at: always in a small job, else once in a period that grows with the ranks.

    before_ns, stamp_ns: when progress came the time before, and when it came last. Follows from what is stored and the
    stamp alone: a service that was killed looks at the same messages again.
    """
    ranks = len(job.ranks)
    if ranks <= FEW_RANKS:
        return True
    period_ns = ranks * NS_PER_RANK
    if MANY_RANKS <= ranks < LEAST_OF_MANY_NS // NS_PER_RANK:
        period_ns = LEAST_OF_MANY_NS
    return stamp_ns // period_ns != before_ns // period_ns
