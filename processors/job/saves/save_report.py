"""What findings about saves say."""

from __future__ import annotations

from ....telemetry.evidence_facts import EvidenceFact, How
from ....telemetry.ring_layout import format_ranks
from ....telemetry.vocabulary import Bucket, Kind, Phase, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody, SuspectEntry
from ..findings.finding_body import body, evidence, source_of, suspect
from ..findings.wording import duration_words, phase_word, ranks_words
from ..state.checkpoint_saves import CheckpointSave, ranks_of
from ..state.job_state import JobState

#: Where not more of the ranks that save than this share failed, they are suspected; else what they write to is.
_FEW = 0.5
_TIERS = {
    "memory": "a file system in memory",
    "disk": "a disk of the node",
    "network": "a file system of servers",
    "object_store": "an object store",
}


def failed_body(job: JobState, save: CheckpointSave, now: int, *, severity: Severity) -> FindingBody:
    """The body for a save of which parts were not written. now: Unix ns."""
    failed = ranks_of(save.failed)
    kind, _, message = save.error.partition(": ")
    fact = EvidenceFact(
        how=How.RAISED,
        rank=failed[0],
        ranks=format_ranks(failed),
        type=kind,
        message=message,
        step=save.step - job.checkpoints.steps_before,
        phase=phase_word(Phase.CHECKPOINT),
    )
    shows = f"the checkpoint of step {save.step} was not written: {ranks_words(failed)} failed"
    if save.error:
        shows += f" with {save.error.splitlines()[0]}"
    rows = [evidence("checkpoint.failed", source_of(job, failed[0]), save.changed_ns, shows, fact=fact)]
    return _body(job, Kind.CHECKPOINT_FAILED, save, failed, rows, save.changed_ns, now, severity)


def unfinished_body(job: JobState, save: CheckpointSave, now: int, limit_ns: int, *, severity: Severity) -> FindingBody:
    """The body for a save that has been open for more than limit_ns. now: Unix ns."""
    missing = ranks_of(save.missing)
    ended = len(ranks_of(save.durable))
    shows = (
        f"the checkpoint of step {save.step} is being written for {duration_words(now - save.begin_ns)}, and training"
        f" goes on: {ranks_words(missing)} {'have' if len(missing) > 1 else 'has'} not ended it"
    )
    if ended:
        shows += f", {ended} {'have' if ended > 1 else 'has'}"
    usual = job.checkpoints.saves.usual_s
    rows = [evidence("checkpoint.open", source_of(job, missing[0]), save.begin_ns, shows)]
    if usual:
        words = f"the {len(usual)} checkpoints before took up to {duration_words(int(max(usual) * 1e9))}"
        rows.append(evidence("checkpoint.usual", f"job {job.job}", save.begin_ns, words, value=round(max(usual), 3)))
    return _body(job, Kind.CHECKPOINT_UNFINISHED, save, missing, rows, save.begin_ns + limit_ns, now, severity)


def _body(
    job: JobState,
    kind: Kind,
    save: CheckpointSave,
    who: list[int],
    rows: list[EvidenceRow],
    onset_ns: int,
    now: int,
    severity: Severity,
) -> FindingBody:
    few = len(who) <= _FEW * save.begun.bit_count()
    suspects: list[SuspectEntry] = []
    if few:
        suspects = [suspect(job, rank, round(1.0 / len(who), 3), phase_word(Phase.CHECKPOINT)) for rank in who]
    lost = max(0, job.checkpoints.steps_before + job.steps.closed_step + 1 - job.checkpoints.saved_steps)
    since = f"step {job.checkpoints.saved_steps}" if job.checkpoints.saved_steps else "the start of the training"
    at_risk = f"the newest durable state is that of {since}: {lost} steps would be lost now"
    where = _TIERS.get(save.tier, "")
    rows = [*rows, evidence("checkpoint.at_risk", f"job {job.job}", now, at_risk, value=lost)]
    if where:
        words = f"it is written to {where} by {save.way}, {save.size_bytes / 1e9:.3g} GB"
        rows.append(evidence("checkpoint.place", f"job {job.job}", save.begin_ns, words, value=save.tier))
    return body(
        job,
        kind,
        bucket=Bucket.CAPACITY,
        scope=Scope.RANK if few else Scope.STORAGE,
        severity=severity,
        suspects=suspects,
        victims=(),
        onset_ns=onset_ns,
        now=now,
        proof=rows,
        confidence=0.9 if kind is Kind.CHECKPOINT_FAILED else 0.8,
        step=save.step - job.checkpoints.steps_before,
    )
