"""A finding as it stands beside what other witnesses say: torch's flight recorder, NCCL's RAS.

They say something of a stop, whichever finding it has become by then, so it is put together whenever the finding is
told. What they name rests on what processes of the job's user wrote: it is told as that, and takes no node out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....telemetry.kind_sets import CONCLUDED_FROM_WAITS, STOPPING_KINDS
from ....telemetry.ring_layout import format_ranks
from ....telemetry.told_ranks import read_ranks
from ....telemetry.vocabulary import Bucket, Kind, Scope
from ...finding_document import EvidenceRow, FindingBody, FirstBadPlace, RuledOutEntry
from ..detectors.hang.second_opinion import Opinion, Testimony, confidence_with, weigh
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from .finding_body import evidence, ruled_out, suspect
from .wording import ranks_words

#: A dump that is older than the stop says nothing of it; ranks that a time-out ends have dumped minutes before.
_OLDER_NS, _OLDER_THAN_END_NS = 2_000_000_000, 600_000_000_000
_SHOWN_BECAUSE = 3


def with_witnesses(job: JobState, finding: OpenFinding, body: FindingBody) -> FindingBody:
    """``body`` with a row of evidence for what each witness says of it, its confidence, and whom they name where the
    rings could not."""
    if finding.kind not in STOPPING_KINDS or finding.kind == Kind.NODE_LOST.value:
        return body
    # Only who was concluded from waits can be somebody else; what was seen directly was not seen by rings' calls.
    blind = job.blind_ranks if finding.kind in CONCLUDED_FROM_WAITS else frozenset[int]()
    older_ns = _OLDER_THAN_END_NS if finding.detail.is_crash else _OLDER_NS
    for testimony in job.findings.witnesses.said.values():
        if testimony.written_ns < finding.onset_ns - older_ns:
            continue
        opinion = weigh(testimony, body.kind, _named_in(body), blind, body.confidence)
        if opinion in (Opinion.NAMES, Opinion.CORRECTS):
            body = _taken_over(job, body, testimony, opinion)
        body = replace(
            body.with_evidence(_row(testimony, opinion, _named_in(body))),
            confidence=round(confidence_with(opinion, body.confidence), 3),
        )
    return body


def _named_in(body: FindingBody) -> list[int]:
    ranks: list[int] = []
    for item in body.suspects:
        ranks += [item.rank] if item.rank is not None else read_ranks(item.ranks or "")
    return ranks


def _row(testimony: Testimony, opinion: Opinion, named: Sequence[int]) -> EvidenceRow:
    words = {
        Opinion.AGREES: f"{testimony.source} agrees",
        Opinion.CONTRADICTS: f"{testimony.source} speaks against {ranks_words(named)}" if named else "",
        Opinion.NAMES: f"{testimony.source} names whom the rings could not",
        Opinion.CORRECTS: f"{testimony.source} saw what the rings could not",
        Opinion.UNCLEAR: f"{testimony.source} cannot tell",
    }[opinion]
    saw = "; ".join(f"rank {one.rank} {one.because}" for one in testimony.named[:_SHOWN_BECAUSE])
    shows = f"{words}: {testimony.summary}"
    if saw and opinion is not Opinion.UNCLEAR:
        shows += f" ({saw})"
    if testimony.unseen:
        shows += f"; of {ranks_words(testimony.unseen)} it knows nothing, which says nothing about them"
    return evidence(f"{testimony.signal}.{opinion.value}", testimony.source, testimony.written_ns, shows, opinion.value)


def _taken_over(job: JobState, body: FindingBody, testimony: Testimony, opinion: Opinion) -> FindingBody:
    """The body with the suspects, the kind and the place that the witness names."""
    assert testimony.kind is not None
    named = {one.rank for one in testimony.named}
    cleared: list[RuledOutEntry] = [entry for entry in body.ruled_out if not named & set(read_ranks(entry.ranks or ""))]
    if opinion is Opinion.CORRECTS:
        because = f"was named for want of anything better; {testimony.source} shows who is waited for"
        cleared.append(ruled_out(_named_in(body), "looked like the first", because))
    hurt = sorted(set(job.ranks) - named)
    place = body.first_bad
    return replace(
        body,
        kind=testimony.kind,
        bucket=Bucket.COMMUNICATION_HANG,
        scope=testimony.scope or Scope.RANK,
        suspects=tuple(suspect(job, one.rank, one.probability) for one in testimony.named),
        victim_count=len(hurt),
        victims=format_ranks(hurt),
        first_bad=FirstBadPlace(
            step=place.step, group=testimony.group, sequence=testimony.sequence, operation=testimony.operation
        ),
        ruled_out=tuple(cleared),
        confidence=round(min(testimony.confidence, 0.99), 3),
    )
