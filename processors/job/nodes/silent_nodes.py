"""Detects over Kafka, where nobody watches connections, that a node has fallen silent; ``lost_nodes`` decides on it.

A node is silent only beside another one of its job that is heard: when the brokers or the way to them are gone, all are
silent, and when they are back some are heard sooner than others. That is a fault of those who look, told as such, and
nobody's. An agent that is told to end says so: for a while its silence means nothing. Times are bus stamps, so a reader
that lags sees the same. So does one that was started anew: what was heard is among the rows of state.
"""

from __future__ import annotations

from ....telemetry.vocabulary import Kind
from ...operator import Context
from ..findings.node_report import all_silent_body
from ..findings.register import clear_finding, open_finding
from ..state.finding_memory import AllSilentMemory, FindingDetail
from ..state.job_state import JobState
from ..state.open_findings import silent_node
from .lost_nodes import ranks_on

#: An agent speaks at least once a second.
SILENT_NS = 2_500_000_000
#: After such a pause nobody can be said to have been silent while this node was heard.
PAUSE_NS = 1_500_000_000
#: An agent that was told to end has been replaced by then (a new release, a restart), or its node is gone as well.
STOPPED_NS = 30_000_000_000
#: Its last blocks are closed by then: what is older may come late, or twice, and does not say that it is back.
LAST_FLUSH_NS = 500_000_000
#: After a common pause agents come back one after the other (their back-off ends at 2 s).
COME_BACK_NS = 10_000_000_000
#: When of no node of a job anything has come for so long, nothing is seen of it.
ALL_SILENT_NS = 10_000_000_000
#: With hundreds of nodes each of their rows would be an occasion to look.
LOOK_NS = 250_000_000


def hear(job: JobState, node: str, told_ns: int, stamp_ns: int, ctx: Context) -> None:
    """Notes that a record of the current attempt came from this node; clears findings that it was silent. Call it for
    each.

    told_ns: by the node's clock, in Unix ns. Nothing for "" as node.
    """
    if not node:
        return
    if not job.nodes.heard:  # of a state of an earlier release: those that were there before are listened for, too
        for facts in job.ranks.values():
            if facts.node and not facts.exited_ns:
                job.nodes.hear_of(facts.node, stamp_ns)
    hearing = job.nodes.heard.get(node)
    if hearing is None:
        job.nodes.hear_of(node, stamp_ns)
    else:
        if stamp_ns - hearing.last_ns > PAUSE_NS:
            hearing.since_ns = stamp_ns
        hearing.last_ns = stamp_ns
    known = job.nodes.known.get(node)
    if known is not None and known.state == "stopped" and told_ns > known.stopped_ns + LAST_FLUSH_NS:
        known.state, job.unsaved.facts = "here", True
    if known is not None and known.state == "silent":
        known.state, job.unsaved.facts = "here", True
        clear_lost(job, node, stamp_ns, ctx)


def clear_lost(job: JobState, node: str, stamp_ns: int, ctx: Context) -> None:
    """Ends what was told of a node that is heard again: that it is gone, or its agent."""
    for finding in [*job.findings.of_kind(Kind.AGENT_SILENT), *job.findings.of_kind(Kind.NODE_LOST)]:
        if node == silent_node(finding) or any(item.node == node for item in finding.body.suspects):
            clear_finding(job, ctx, stamp_ns, finding, f"whichrank on {node} is there again")


def note_silence(job: JobState, node: str, stamp_ns: int) -> None:
    """To be called when ``node`` told of its progress: marks nodes as silent that were not heard beside it for too
    long.
    """
    witness = job.nodes.heard.get(node)
    if witness is None or stamp_ns - job.nodes.listened_ns < LOOK_NS:
        return
    job.nodes.listened_ns = stamp_ns
    for name, hearing in list(job.nodes.heard.items()):
        patience_ns = SILENT_NS if hearing.last_ns >= witness.since_ns else COME_BACK_NS
        if stamp_ns - max(hearing.last_ns, witness.since_ns) < patience_ns:
            continue
        if not ranks_on(job, name):
            job.nodes.stop_hearing(name)
            continue
        known = job.nodes.facts(name)
        if known.state == "here" or (known.state == "stopped" and stamp_ns - known.lost_ns >= STOPPED_NS):
            known.state, known.lost_ns, known.silent_ns = "silent", stamp_ns, stamp_ns - hearing.last_ns
            job.unsaved.facts = True


def note_progress(job: JobState, stamp_ns: int, ctx: Context) -> None:
    """To be called when any node told of its progress: opens a finding if nothing came from any of them for long
    before.

    Clears that finding once its nodes are heard again, and sets a timer for the next silence.
    """
    last_ns, job.nodes.heard_ns = job.nodes.heard_ns, stamp_ns
    if last_ns and stamp_ns - last_ns >= ALL_SILENT_NS:
        _tell_silence(job, last_ns, stamp_ns, ctx)
    for finding in job.findings.of_kind(Kind.INPUT_SILENT):
        if isinstance(finding.detail.memory, AllSilentMemory) and _all_are_back(job, finding.detail.memory.since_ns):
            clear_finding(job, ctx, stamp_ns, finding, "its nodes are heard again")
    if stamp_ns >= job.nodes.listen_due_ns:
        job.nodes.listen_due_ns = stamp_ns + ALL_SILENT_NS
    listen_on(job, stamp_ns)


def listen_on(job: JobState, now: int) -> None:
    """Sets a timer for when nothing will have come for too long. To be called at each look."""
    if now < job.nodes.listen_due_ns:
        job.schedule(job.nodes.listen_due_ns)


def judge_silence(job: JobState, now: int, ctx: Context) -> None:
    """To be called by a timer, where other jobs are heard: opens a finding if nothing has come from any
    node for long.
    """
    if not job.nodes.heard_ns or job.ends.finished_ns:
        return
    if now - job.nodes.heard_ns >= ALL_SILENT_NS:
        _tell_silence(job, job.nodes.heard_ns, now, ctx)
    elif now >= job.nodes.listen_due_ns:
        job.nodes.listen_due_ns = job.nodes.heard_ns + ALL_SILENT_NS
        listen_on(job, now)


def _tell_silence(job: JobState, last_ns: int, now: int, ctx: Context) -> None:
    if job.alive() and not job.findings.has_kind(Kind.INPUT_SILENT):
        body = all_silent_body(job, sorted(job.nodes.heard), last_ns, now)
        detail = FindingDetail(memory=AllSilentMemory(since_ns=now))
        open_finding(job, ctx, now, kind=Kind.INPUT_SILENT, place=f"since {last_ns}", body=body, detail=detail)


def _all_are_back(job: JobState, since_ns: int) -> bool:
    """Or are known to be silent by themselves."""
    waited_for = [
        name for name, hearing in job.nodes.heard.items() if hearing.last_ns < since_ns and ranks_on(job, name)
    ]
    return all(job.nodes.facts(name).state != "here" for name in waited_for)
