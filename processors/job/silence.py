"""Nodes that fall silent where nobody watches their connections: over Kafka only the records themselves tell.

A node is silent only beside another one of its job that is heard: when the brokers or the way to them are gone, all are
silent, and when they are back some are heard sooner than others. Times are bus stamps, so a reader that lags sees the
same. What was heard is not saved: after a restart every silence counts anew.
"""

from __future__ import annotations

from ...telemetry.vocabulary import Kind
from ..operator import Context
from .facts import Hearing
from .findings import clear_finding
from .nodes import ranks_on
from .state import JobState

#: An agent speaks at least once a second.
SILENT_NS = 2_500_000_000
#: After such a pause nobody can be said to have been silent while this node was heard.
PAUSE_NS = 1_500_000_000
#: After a common pause agents come back one after the other (their back-off ends at 2 s).
COME_BACK_NS = 10_000_000_000
#: With hundreds of nodes each of their rows would be an occasion to look.
LOOK_NS = 250_000_000


def hear(job: JobState, node: str, stamp_ns: int, ctx: Context) -> None:
    """A record of the current attempt has come from this node. To be called for each."""
    if not node:
        return
    if not job.heard:  # after a restart: those that were there before are listened for, too
        for facts in job.ranks.values():
            if facts.node and not facts.exited_ns:
                job.heard[facts.node] = Hearing(since_ns=stamp_ns, last_ns=stamp_ns)
    hearing = job.heard.get(node)
    if hearing is None:
        job.heard[node] = Hearing(since_ns=stamp_ns, last_ns=stamp_ns)
    else:
        if stamp_ns - hearing.last_ns > PAUSE_NS:
            hearing.since_ns = stamp_ns
        hearing.last_ns = stamp_ns
    known = job.nodes.get(node)
    if known is not None and known.state == "silent":
        known.state, job.facts_changed = "here", True
        for finding in [*job.of_kind(Kind.AGENT_SILENT), *job.of_kind(Kind.NODE_LOST)]:
            if node == finding.detail.get("node") or any(s["node"] == node for s in finding.body["suspects"]):
                clear_finding(job, ctx, stamp_ns, finding, f"whichrank on {node} is there again")


def note_silence(job: JobState, node: str, stamp_ns: int) -> None:
    """This node has just told of its progress: others that were not heard beside it for too long are silent now."""
    witness = job.heard.get(node)
    if witness is None or stamp_ns - job.listened_ns < LOOK_NS:
        return
    job.listened_ns = stamp_ns
    for name, hearing in list(job.heard.items()):
        patience_ns = SILENT_NS if hearing.last_ns >= witness.since_ns else COME_BACK_NS
        if stamp_ns - max(hearing.last_ns, witness.since_ns) < patience_ns:
            continue
        if not ranks_on(job, name):
            del job.heard[name]
            continue
        known = job.node_facts(name)
        if known.state == "here":
            known.state, known.lost_ns, known.silent_ns = "silent", stamp_ns, stamp_ns - hearing.last_ns
            job.facts_changed = True
