"""Asks for NCCL's RAS while a job hangs: beside one rank, once, and seldom again as long as it hangs.

RAS asks every process of the job, so one answer is enough, and more are a burden. A process is dead for it after a
minute, so the second time it may say more.
"""

from __future__ import annotations

from ....telemetry.records import Event, Identity, Record
from ....telemetry.topics import TOPIC_REQUESTS
from ....telemetry.vocabulary import Bucket, EventName
from ...operator import Context
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding

ACTION = "nccl_ras"
_NCCL = "nccl"
#: After the first time, and after each further one.
AGAIN_NS = (90_000_000_000, 600_000_000_000, 3_600_000_000_000)
MOST_ASKED = 1 + len(AGAIN_NS)


def ask_ras(job: JobState, ctx: Context, now: int, finding: OpenFinding) -> None:
    """Emits a request to ask RAS beside a live rank that is not suspected, if ranks hang in groups on NCCL and none is
    under way; sets the time of the next. Best effort: the finding stands without an answer."""
    witnesses = job.findings.witnesses
    if finding.body.bucket is not Bucket.COMMUNICATION_HANG or witnesses.ras_asked >= MOST_ASKED:
        return
    if now < witnesses.ras_due_ns or not any(_NCCL in group.backend for group in job.groups.known):
        return
    hidden = job.hidden_ranks()
    alive = [rank for rank in job.alive() if rank not in hidden]
    rank = next((rank for rank in alive if rank not in finding.suspects), alive[0] if alive else -1)
    if rank < 0:
        return
    number, node = witnesses.ras_asked, job.node_of(rank)
    witnesses.ras_asked += 1
    witnesses.ras_due_ns = now + AGAIN_NS[number] if number < len(AGAIN_NS) else 0
    job.schedule(witnesses.ras_due_ns)
    job.unsaved.facts = True
    launch = job.attempts.launch_of(rank)
    identity = Identity(cluster=job.cluster, run=job.run, job=job.job, attempt=launch, node=node, rank=rank)
    attributes = {"id": f"{finding.key}/{ACTION}/{number}", "action": ACTION, "rank": rank, "node": node}
    request = Event(name=EventName.EVIDENCE_REQUEST, identity=identity, time_ns=now, attributes=attributes)
    ctx.emit(Record(topic=TOPIC_REQUESTS, key=node, stamp_ns=now, payload=request))
