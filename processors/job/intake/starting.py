"""Events of a start that say nothing of what flushes tell: those that are held need not be taken before them.

While a large job starts each message brings some, and flushes would be taken one by one all that time.
"""

from __future__ import annotations

from ....telemetry.records import Event
from ....telemetry.vocabulary import EventName
from ..state.job_state import JobState
from .bounds import told_world_size

_OF_ONE_NODE = frozenset(
    {EventName.RANK_STARTED, EventName.RANK_JOINING, EventName.GROUP_DEFINED, EventName.LAUNCH_MET}
)


def is_of_a_start(job: JobState, event: Event) -> bool:
    """Whether it changes nothing of what flushes are about that are held; there are some.

    Not while anything has ended or is found, nor where it may begin another attempt.
    """
    if event.name not in _OF_ONE_NODE or not job.gathering.due_ns:
        return False
    if job.findings.by_key or job.ends.endings or job.ends.finished_ns or not job.cluster:
        return False
    token = ""
    if event.name is EventName.RANK_STARTED and (
        told_world_size(event) > job.world_size or job.gathering.holds_any(event.identity.node)
    ):
        return False
    if event.name is EventName.LAUNCH_MET and not (token := str(event.attributes.get("token", ""))):
        return False
    return job.attempts.is_sure(event.identity.attempt, event.identity.rank, token)
