"""Ranks that found no room to write: where several did, on more than one node, it is what they share that is full.

Which of them the file system refused first is chance, so nobody is blamed. Where only one of several nodes' ranks found
none it is that node's own disk, and the rank stays its witness. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....diagnosis.job_log.taxonomy import rules
from ....telemetry.evidence_facts import EvidenceFact, How
from ....telemetry.ring_layout import format_ranks
from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody
from ..detectors.crash.crash_order import CrashVerdict, Ending
from ..findings.finding_body import body, evidence
from ..findings.wording import ranks_words
from ..state.job_state import JobState

_CLASSES = frozenset({"disk_full", "quota_exceeded"})


def is_out_of_room(ending: Ending) -> bool:
    """Whether the rank raised because a disk, a file system or a quota is full; not for errors of communication."""
    if ending.sort != "exception" or ending.communication:
        return False
    rule = rules().find(f"{ending.type}: {ending.message}")
    return rule is not None and rule.failure is not None and rule.failure.name in _CLASSES


def without_room(job: JobState, verdict: CrashVerdict) -> tuple[Ending, ...]:
    """The errors, one per rank in rank order, of ranks that found no room in what they share; () where it is not that.

    It is not where only one rank raised it, or all of them are on one of several nodes.
    """
    if verdict.sort != "raised" or verdict.cause is None or not is_out_of_room(verdict.cause):
        return ()
    refused = {ending.rank: ending for ending, _ in reversed(verdict.roles) if is_out_of_room(ending)}
    nodes = {job.node_of(rank) for rank in refused}
    is_of_one_node = len(nodes) == 1 and len({job.node_of(rank) for rank in job.ranks}) > 1
    return () if len(refused) < 2 or is_of_one_node else tuple(refused[rank] for rank in sorted(refused))


def no_room_body(job: JobState, refused: tuple[Ending, ...], proof: Sequence[EvidenceRow], now: int) -> FindingBody:
    """The body for ranks that found no room in what they share; it blames nobody. refused: not empty; proof: of the
    first.
    """
    first = min(refused, key=lambda ending: (ending.time_ns, ending.rank))
    ranks = [ending.rank for ending in refused]
    shows = f"{ranks_words(ranks)} found no room: what they share is full, whoever was refused first"
    return body(
        job,
        Kind.RANK_RAISED,
        bucket=Bucket.CAPACITY,
        scope=Scope.STORAGE,
        severity=Severity.PAGE,
        suspects=[],
        onset_ns=first.time_ns,
        now=now,
        proof=[
            *proof,
            evidence(
                "rank.exception",
                ranks_words(ranks),
                first.time_ns,
                shows,
                fact=EvidenceFact(how=How.RAISED, ranks=format_ranks(ranks)),
            ),
        ],
        confidence=0.95,
        step=first.step,
    )
