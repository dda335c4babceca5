"""What a finding says of a node that is gone, or that cannot be seen any more. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....telemetry.evidence_facts import EvidenceFact, How
from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody
from ..detectors.hang.wait_graph import Wait
from ..state.job_state import JobState
from ..state.rank_state import NodeFacts
from .finding_body import body, evidence, node_suspect, ruled_out
from .wording import duration_words, op_word, ranks_words

#: Of nodes that went together, so many have their own line of evidence.
MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNode:
    name: str
    facts: NodeFacts
    ranks: Sequence[int]


def node_lost_body(job: JobState, lost: Sequence[LostNode], wait: Wait | None, now: int) -> FindingBody:
    """The body for nodes that are gone with their ranks. lost: one node, or several that went together.

    wait: the oldest for one of their ranks; None: ranks elsewhere failed because their peers were gone.
    """
    onset_ns = min(node.facts.lost_ns - node.facts.silent_ns for node in lost)
    ranks = sorted(rank for node in lost for rank in node.ranks)
    where = f"{ranks_words(ranks)} on {', '.join(node.name for node in lost[:MOST_NAMED])}"
    others = [rank for rank in job.alive() if rank not in set(ranks)]
    proof = [_silence(node.name, node.facts) for node in lost[:MOST_NAMED]]
    if wait is not None:
        place = f"{op_word(wait.op)} {wait.seq} of group {job.groups.name_of(wait.group)}"
        shows = f"rank {wait.rank} waits in {place} for {where}, since {duration_words(wait.age_ns)}"
        proof.append(evidence("progress", f"job {job.job}", now, shows))
    else:
        shows = f"errors elsewhere only say that a peer went away; {where} were not seen since"
        fact = EvidenceFact(how=How.VICTIMS)
        proof.append(evidence("rank.exception", f"job {job.job}", now, shows, fact=fact))
    row = job.progress.row_of(wait.rank if wait is not None else ranks[0])
    return body(
        job,
        Kind.NODE_LOST,
        bucket=Bucket.IMMEDIATE_CRASH,
        scope=Scope.NODE,
        severity=Severity.PAGE,
        suspects=[node_suspect(node.name, node.ranks) for node in lost],
        victims=[rank for rank in job.ranks if rank not in set(ranks)],
        onset_ns=onset_ns,
        now=now,
        proof=proof,
        cleared=[ruled_out(others, "stands still", f"waits for {where}")] if others else (),
        confidence=0.95,
        step=int(row["step"]) if row is not None else None,
        group=wait.group if wait is not None else None,
        seq=wait.seq if wait is not None else None,
        op=wait.op if wait is not None else None,
    )


def agent_silent_body(job: JobState, name: str, node: NodeFacts, ranks: Sequence[int], now: int) -> FindingBody:
    """The body for node ``name`` that is not seen any more, while its ranks go on working."""
    shows = f"{ranks_words(ranks)} on {name} cannot be seen since; nobody waits for them in vain, so they go on"
    return body(
        job,
        Kind.AGENT_SILENT,
        bucket=Bucket.TELEMETRY,
        scope=Scope.NODE,
        severity=Severity.TICKET,
        suspects=[],
        victims=(),
        onset_ns=node.lost_ns - node.silent_ns,
        now=now,
        proof=[_silence(name, node), evidence("progress", f"job {job.job}", now, shows)],
        confidence=0.95,
    )


def all_silent_body(job: JobState, nodes: Sequence[str], last_ns: int, now: int) -> FindingBody:
    """The body for a job from none of whose ``nodes`` anything has come since ``last_ns`` (Unix)."""
    where = f"the {len(nodes)} nodes of job {job.job}" if len(nodes) != 1 else f"{nodes[0]}, which job {job.job} is on"
    shows = f"nothing has come from {where} for {duration_words(now - last_ns)}; how its ranks are is not known"
    return body(
        job,
        Kind.INPUT_SILENT,
        bucket=Bucket.TELEMETRY,
        scope=Scope.CLUSTER,
        severity=Severity.TICKET,
        suspects=[],
        victims=(),
        onset_ns=last_ns,
        now=now,
        proof=[evidence("peer.silent", f"job {job.job}", last_ns, shows)],
        confidence=0.95,
    )


def _silence(name: str, node: NodeFacts) -> EvidenceRow:
    if node.state == "closed":
        shows = f"the connection of whichrank on {name} was closed without a word: it was killed, or its node was"
    else:
        shows = f"whichrank on {name}, which speaks twice a second, was silent for {duration_words(node.silent_ns)}"
    fact = EvidenceFact(how=How.CLOSED if node.state == "closed" else How.SILENT, node=name)
    return evidence(f"peer.{node.state}", f"node {name}", node.lost_ns, shows, fact=fact)
