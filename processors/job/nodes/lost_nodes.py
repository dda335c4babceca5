"""Decides what a silent node means: it is gone with its ranks (``node_lost``), or only its agent is (``agent_silent``).

A connection that was closed without a word is a killed whichrank, unless the node's ranks went in the same moment. A
silent one may be either; what decides is whether ranks that can be seen wait for ranks of that node.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....telemetry.vocabulary import Kind
from ...finding_document import FindingBody
from ...operator import Context
from ..detectors.crash.crash_order import role_hint
from ..detectors.hang.wait_graph import Wait, find_blockage
from ..findings import node_report
from ..findings.node_report import LostNode
from ..findings.register import clear_finding, open_finding, replace_finding
from ..hang.pending_collectives import find_waits
from ..intake.wait_thresholds import is_rare, waiting_threshold_ns
from ..state.finding_memory import FindingDetail, SilentNodeMemory
from ..state.job_state import JobState
from ..state.open_findings import silent_node
from ..state.rank_state import NodeFacts, OpenFinding

#: A wait for a rank of a silent node says that it is gone. Waits of a moment belong to every collective, and those of a
#: step to many.
WAIT_NS = 900_000_000
#: In a save, an evaluation or a start-up ranks wait long for each other, and the agents of all are back by then.
RARE_WAIT_NS = 30_000_000_000
#: How long what happened to the ranks may take to show, before it is only whichrank that is gone.
CLOSED_HOLD_NS = 3_000_000_000
SILENT_HOLD_NS = 8_000_000_000
#: Errors of peers so near to a closed connection have its cause.
SAME_MOMENT_NS = 5_000_000_000
#: Nodes that lose their power together fall silent one look after the other: who is late waits so long for the next.
LATE_NS, MORE_NS, LOOK_AGAIN_NS = 1_500_000_000, 1_000_000_000, 250_000_000


def judge_nodes(job: JobState, now: int, ctx: Context) -> None:
    """Opens a finding on nodes that are lost: gone with their ranks, or only without an agent.

    To be called when a node is lost, when progress comes, and when a look is due. Nothing once the job has ended.
    """
    lost = [name for name, node in sorted(job.nodes.known.items()) if node.is_lost]
    if not lost or job.judged_by or job.ends.finished_ns or job.findings.has_kind(Kind.PLANNED_STOP):
        return
    told = {silent_node(finding) for finding in job.findings.of_kind(Kind.AGENT_SILENT)}
    if told.issuperset(lost):
        if now - job.nodes.looked_ns < LOOK_AGAIN_NS:
            return  # nobody watches them, for as long as the job lasts: not at each message of all others
        job.nodes.looked_ns = now
    for name in lost:
        ranks = ranks_on(job, name)
        if ranks:
            _judge_node(job, name, ranks, now, ctx)


def ranks_on(job: JobState, node: str) -> list[int]:
    """Ranks of this node that are not known to have ended, ascending."""
    return [rank for rank, facts in sorted(job.ranks.items()) if facts.node == node and not facts.exited_ns]


def explain_by_node(job: JobState, now: int) -> tuple[Kind, FindingBody] | None:
    """Kind and body of a lost node that explains why ranks failed with nothing but victims' errors; None: there is
    none.
    """
    began = min((ending.arrived_ns for ending in job.ends.endings if role_hint(ending) != "none"), default=now)
    for name, node in sorted(job.nodes.known.items()):
        ranks = ranks_on(job, name) if node.is_lost else []
        if ranks and (node.state == "silent" or abs(began - node.lost_ns) <= SAME_MOMENT_NS):
            return Kind.NODE_LOST, node_report.node_lost_body(job, _lost_with(job, name), None, now)
    return None


def _lost_with(job: JobState, name: str) -> list[LostNode]:
    """This node, and those that went in the same way at the same moment."""
    first = job.nodes.known[name]
    others = [
        other
        for other, node in sorted(job.nodes.known.items())
        if other != name and node.state == first.state and abs(node.lost_ns - first.lost_ns) <= SAME_MOMENT_NS
    ]
    found = [LostNode(name=each, facts=job.nodes.known[each], ranks=ranks_on(job, each)) for each in (name, *others)]
    return [node for node in found if node.ranks]


def _may_be_more(job: JobState, node: NodeFacts, now: int) -> bool:
    """Whether another node is late, too, and will be known to be silent, or not, in a moment."""
    if now >= node.lost_ns + MORE_NS:
        return False
    late = (name for name, hearing in job.nodes.heard.items() if now - hearing.last_ns > LATE_NS)
    return any(
        name not in job.nodes.known or job.nodes.known[name].state == "here" for name in late if ranks_on(job, name)
    )


def _judge_node(job: JobState, name: str, ranks: list[int], now: int, ctx: Context) -> None:
    node = job.nodes.known[name]
    finding = job.findings.stopping()
    if finding is not None:
        unnamed = finding.kind == Kind.RANK_DIED.value and not finding.suspects and finding.detail.is_crash
        waits_only = finding.kind == Kind.RANK_NOT_ENTERED.value and set(finding.suspects) <= set(ranks)
        if waits_only and node.state == "silent":
            wait = _wait_for(job, ranks, now)
            if wait is None:
                return
            if not finding.suspects and not set(ranks).issuperset({*wait.missing, *wait.unknown}):
                return  # it may be another one that nobody sees
            body = node_report.node_lost_body(job, _lost_with(job, name), wait, now)
            replace_finding(job, ctx, now, finding, kind=Kind.NODE_LOST, body=body)
        elif finding.kind == Kind.NODE_LOST.value:
            _add_to_lost(job, finding, name, now, ctx)
        elif unnamed:
            better = explain_by_node(job, now)
            if better is not None:
                replace_finding(job, ctx, now, finding, kind=better[0], body=better[1])
        return
    if node.state == "silent":
        wait = _wait_for(job, ranks, now)
        if wait is not None:
            if _may_be_more(job, node, now):
                job.schedule(now + LOOK_AGAIN_NS)
                return
            _forget_silence(job, name, now, ctx)
            body = node_report.node_lost_body(job, _lost_with(job, name), wait, now)
            open_finding(job, ctx, now, kind=Kind.NODE_LOST, place=f"node {name}", body=body)
            return
    _judge_agent(job, name, node, ranks, now, ctx)


def _add_to_lost(job: JobState, finding: OpenFinding, name: str, now: int, ctx: Context) -> None:
    """Another node that turns out to have gone with those that are told."""
    told = [str(item.node) for item in finding.body.suspects]
    if name in told or not told or told[0] not in job.nodes.known:
        return
    together = _lost_with(job, told[0])
    if name in {node.name for node in together}:
        wait = _wait_for(job, [rank for node in together for rank in node.ranks], now)
        body = node_report.node_lost_body(job, together, wait, now)
        replace_finding(job, ctx, now, finding, kind=Kind.NODE_LOST, body=body)


def _judge_agent(job: JobState, name: str, node: NodeFacts, ranks: list[int], now: int, ctx: Context) -> None:
    if _is_told(job, name):
        return
    ready_ns = node.lost_ns + (CLOSED_HOLD_NS if node.state == "closed" else SILENT_HOLD_NS)
    if now < ready_ns:
        job.schedule(ready_ns)
        return
    body = node_report.agent_silent_body(job, name, node, ranks, now)
    place = f"node {name} {node.lost_ns}"
    open_finding(
        job,
        ctx,
        now,
        kind=Kind.AGENT_SILENT,
        place=place,
        body=body,
        detail=FindingDetail(memory=SilentNodeMemory(node=name)),
    )


def _forget_silence(job: JobState, name: str, now: int, ctx: Context) -> None:
    for finding in job.findings.of_kind(Kind.AGENT_SILENT):
        if silent_node(finding) == name:
            clear_finding(job, ctx, now, finding, "the node is gone: its ranks are waited for in vain")


def _wait_for(job: JobState, ranks: list[int], now: int) -> Wait | None:
    """The oldest wait of a rank that can be seen for one of these, if it is longer than such waits usually are."""
    wanted = set(ranks)
    waits = find_waits(job)
    for_them = [wait for wait in waits if wanted & {*wait.missing, *wait.unknown}]
    oldest = max(for_them, key=lambda wait: (wait.age_ns, -wait.rank), default=None)
    if oldest is None or oldest.age_ns < _patience_ns(job, oldest, ranks):
        return None
    return None if _may_be_another(job, waits, wanted, now) else oldest


def _may_be_another(job: JobState, waits: Sequence[Wait], lost: set[int], now: int) -> bool:
    """Whether those of the silent node may stand like all others behind what is seen: one who waits for nobody, or some
    who wait for each other. Whose whichrank restarts is heard again before that is no excuse any more."""
    since_ns = min((job.nodes.known[name].lost_ns for name in {job.ranks[rank].node for rank in lost}), default=now)
    if now >= since_ns + SILENT_HOLD_NS:
        return False
    blockage = find_blockage(waits, WAIT_NS)
    if blockage is None or blockage.sort not in ("missing", "deadlock"):
        return False
    return lost.isdisjoint(blockage.suspects)


def _patience_ns(job: JobState, wait: Wait, ranks: list[int]) -> int:
    """ranks: of the silent node; what they did last was seen before it fell silent.

    Where the job has gone on without a word of them, they live: one pause there says no more than on any other node.
    """
    rows = [job.progress.row_of(rank) for rank in (wait.rank, *ranks)]
    rare = [rank for rank, row in zip((wait.rank, *ranks), rows, strict=True) if row is not None and is_rare(row)]
    if rare:
        return min(RARE_WAIT_NS, max(waiting_threshold_ns(job, rank, wait.group) for rank in rare))
    if _is_told(job, job.ranks[ranks[0]].node):
        return waiting_threshold_ns(job, wait.rank, wait.group)
    return max(WAIT_NS, job.steps.median_length_ns())


def _is_told(job: JobState, node: str) -> bool:
    """Whether it was said that its whichrank is gone, and not the node."""
    return any(silent_node(finding) == node for finding in job.findings.of_kind(Kind.AGENT_SILENT))
