"""Which findings tell of one cause. Plain functions over findings; no state.

One cause shows itself several times: a rank that hangs is later killed, the ranks that waited for it abort, steps look
slow afterwards. People must get one page for all of it, on the earliest initiating cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum

from ...telemetry.evidence_facts import How
from ...telemetry.incident_document import SuspectEntry
from ...telemetry.kind_sets import CONCLUDED_FROM_WAITS, NUMERIC_KINDS, SAVE_KINDS, SPEED_KINDS, STOPPING_KINDS
from ...telemetry.told_ranks import read_ranks
from ...telemetry.vocabulary import Bucket, Kind
from ..older_sentences import fact_of_evidence
from ..told_finding import ToldFinding

#: Onsets of different ranks closer than this are not an order: nodes' clocks differ.
CLOCK_DOUBT_S = 0.1
#: Deaths so shortly before the request to stop belong to it: the launcher is told first, whoever told it.
PLANNED_SLACK_S = 0.5
#: What a rank raises so soon after its save has failed, it raises because of that.
RAISED_BY_SAVE_S = 30.0
_SPEAKS_OF_NUMBERS = re.compile(r"\b(nan|inf(inite)?|non-?finite|overflow)\b", re.IGNORECASE)


class Relation(Enum):
    """What a new finding is to an incident."""

    UNRELATED = 0
    SAME_CAUSE = 1
    #: It follows from the incident: no news of the cause, and its suspects are innocent.
    CONSEQUENCE = 2
    #: It explains the incident: the cause moves to it.
    ORIGIN = 3
    #: It is what the incident was mistaken for, which has ended: the incident is this one, and goes on.
    CORRECTION = 4


def relate(primary: ToldFinding, new: ToldFinding, resolved_at: float | None, *, always: bool = False) -> Relation:
    """What ``new`` is to an incident of the same attempt whose cause is ``primary``.

    always: all its causes were so as long as the job is seen.
    resolved_at: Unix seconds at which that incident ended, None while it is open.
    """
    kinds = primary.kind, new.kind
    if kinds == (Kind.PLANNED_STOP, Kind.PLANNED_STOP):
        return Relation.SAME_CAUSE  # an attempt is stopped once, in however many steps that shows
    if Bucket.TELEMETRY in (primary.bucket, new.bucket) or kinds[1] is Kind.PLANNED_STOP:
        return Relation.UNRELATED
    onset = new.onset_s
    if resolved_at is not None and onset > resolved_at:
        return Relation.UNRELATED
    is_refuted = resolved_at is not None and kinds[0] is Kind.NODE_LOST and new.detected_s >= resolved_at
    if is_refuted and kinds[1] in STOPPING_KINDS:
        return Relation.CORRECTION  # the node is back, and its ranks stand all the same: only its agent was away
    outlasts = resolved_at is not None and kinds[0] is Kind.COLLECTIVE_STALLED and new.detected_s >= resolved_at
    if outlasts and kinds[1] in SPEED_KINDS:
        return Relation.CORRECTION  # what stood for seconds went on, and is as slow in each step since
    if kinds[0] is Kind.PLANNED_STOP:
        follows = onset >= primary.onset_s - PLANNED_SLACK_S
        return Relation.CONSEQUENCE if follows and kinds[1] in STOPPING_KINDS | SPEED_KINDS else Relation.UNRELATED
    if SAVE_KINDS & {*kinds}:
        # The newest word of a save that failed is news, also if it failed just before an earlier one's end was noticed.
        is_news = resolved_at is not None and {*kinds} <= SAVE_KINDS and new.detected_s >= resolved_at
        return Relation.UNRELATED if is_news else _relate_to_save(primary, new)
    if suspect_ranks(primary.suspects) & suspect_ranks(new.suspects):
        return Relation.SAME_CAUSE
    if kinds[0] in STOPPING_KINDS:
        return _relate_to_blocking(primary, new, kinds[1])
    if kinds[0] in SPEED_KINDS and kinds[1] in SPEED_KINDS:
        nobody = not suspect_ranks(primary.suspects) or not suspect_ranks(new.suspects)
        # What was always so does not explain that something changed.
        alike = always == new.always
        return Relation.SAME_CAUSE if nobody and alike else Relation.UNRELATED
    if kinds[0] in NUMERIC_KINDS:
        numbers = kinds[1] in NUMERIC_KINDS or (kinds[1] is Kind.RANK_RAISED and _speaks_of_numbers(new))
        return Relation.CONSEQUENCE if numbers else Relation.UNRELATED
    return Relation.UNRELATED


def _relate_to_save(primary: ToldFinding, new: ToldFinding) -> Relation:
    """A save that failed, and what its rank raised because of it; all else that happens to a rank is another story."""
    kinds = {primary.kind, new.kind}
    together = suspect_ranks(primary.suspects) & suspect_ranks(new.suspects) or kinds <= SAVE_KINDS
    soon = abs(primary.onset_s - new.onset_s) <= RAISED_BY_SAVE_S or kinds <= SAVE_KINDS
    is_same = kinds <= SAVE_KINDS | {Kind.RANK_RAISED} and together and soon
    return Relation.SAME_CAUSE if is_same else Relation.UNRELATED


def _relate_to_blocking(primary: ToldFinding, new: ToldFinding, kind: Kind) -> Relation:
    if kind in SPEED_KINDS:
        return Relation.CONSEQUENCE
    if kind not in STOPPING_KINDS:
        return Relation.UNRELATED
    seen_directly = kind not in CONCLUDED_FROM_WAITS and kind is not Kind.DEADLOCK
    if seen_directly:
        if primary.kind in CONCLUDED_FROM_WAITS and new.onset_s < primary.detected_s:
            return Relation.ORIGIN
        if new.onset_s < primary.onset_s - CLOCK_DOUBT_S:
            return Relation.ORIGIN
    return Relation.CONSEQUENCE


def leading(findings: Sequence[ToldFinding]) -> int:
    """Index of the finding that names the cause best, of one or more of the same cause in order of arrival.

    A blocking kind before a slow one; then a kind that was seen directly, if it was there before we concluded the
    waiting; then one that names somebody; then the earliest onset; then the first to arrive.
    """
    first_detected = min(finding.detected_s for finding in findings)

    def order(index: int) -> tuple[bool, bool, bool, bool, float, int]:
        finding = findings[index]
        kind, onset = finding.kind, finding.onset_s
        came_later = kind not in CONCLUDED_FROM_WAITS and onset >= first_detected and index > 0
        return (
            kind in SAVE_KINDS,
            kind in SPEED_KINDS,
            came_later or kind in CONCLUDED_FROM_WAITS,
            not suspect_ranks(finding.suspects),
            onset,
            index,
        )

    blocking = [index for index, finding in enumerate(findings) if finding.kind not in SPEED_KINDS]
    return min(blocking or range(len(findings)), key=order)


def suspect_ranks(suspects: Iterable[SuspectEntry]) -> frozenset[int]:
    """All ranks that are suspected; a node stands for its ranks. Raises ValueError for what are no ranges."""
    ranks: set[int] = set()
    for suspect in suspects:
        if suspect.rank is not None:
            ranks.add(suspect.rank)
        elif suspect.ranks:
            ranks.update(read_ranks(suspect.ranks))
    return frozenset(ranks)


def _speaks_of_numbers(finding: ToldFinding) -> bool:
    """Whether what it raised does."""
    facts = map(fact_of_evidence, finding.evidence)
    return any(fact.how is How.RAISED and _SPEAKS_OF_NUMBERS.search(fact.said) for fact in facts if fact is not None)
