"""What a finding about an emergency save says: who saved which step, and why the others did not."""

from __future__ import annotations

from collections.abc import Sequence

from ....telemetry.emergency_words import MissedWhy
from ....telemetry.vocabulary import Bucket, Kind, Phase, Scope, Severity
from ...finding_document import FindingBody
from ..findings.finding_body import body, evidence, source_of, stands, suspect
from ..findings.wording import duration_words, phase_word, ranks_words
from ..state.emergency_save import EmergencySave
from ..state.job_state import JobState

#: Where not more of the ranks than this share did not save, they are suspected.
_FEW = 0.5
_MOST_ROWS = 8
_SAID: dict[str, str] = {
    MissedWhy.NO_AGREEMENT: "could not agree with the others on a step",
    MissedWhy.NOT_REACHED: "did not reach the end of the save in time",
    MissedWhy.OTHER_STEP: "stood at another step",
    MissedWhy.ENDED: "came to the end of the process before",
    MissedWhy.RAISED: "raised in the save function",
}


def missed_body(job: JobState, save: EmergencySave, lacking: Sequence[int], now: int) -> FindingBody:
    """The body for a save that the ranks ``lacking`` did not make. now: Unix ns."""
    saved = sorted(save.saved)
    outcome = f"a save was asked for ({save.reason or 'no reason given'})"
    if saved:
        outcome += f": {ranks_words(saved)} saved step {save.step} within {duration_words(int(save.seconds * 1e9))}"
        outcome += f", {ranks_words(list(lacking))} did not"
    else:
        outcome += ", and no rank saved"
    rows = [evidence("emergency.outcome", f"job {job.job}", save.asked_ns, outcome, value=f"{len(saved)} saved")]
    for why in sorted(set(save.missed.values())):
        ranks = sorted(rank for rank, word in save.missed.items() if word == why)
        shows = f"{ranks_words(ranks)} {_SAID.get(why, why)}"
        rows.append(evidence("emergency.missed", source_of(job, ranks[0]), save.last_ns, shows, value=why))
    if save.failed:
        ranks = sorted(save.failed)
        shows = f"{ranks_words(ranks)} {_SAID[MissedWhy.RAISED]}: {save.error}"
        rows.append(
            evidence("emergency.missed", source_of(job, ranks[0]), save.last_ns, shows, value=MissedWhy.RAISED.value)
        )
    silent = [rank for rank in lacking if rank not in save.missed and rank not in save.failed]
    for rank in silent[:_MOST_ROWS]:
        rows.append(evidence("emergency.silent", source_of(job, rank), now, stands(job, rank)))
    # Who was heard of nothing, or failed, is why; who only waited for it is not.
    named = silent or sorted(save.failed)
    few = bool(named) and len(named) <= _FEW * max(job.world_size, len(lacking) + len(saved))
    return body(
        job,
        Kind.EMERGENCY_SAVE_MISSED,
        bucket=Bucket.CAPACITY,
        scope=Scope.RANK if few else Scope.JOB,
        severity=Severity.TICKET if saved else Severity.PAGE,
        suspects=[suspect(job, rank, round(1.0 / len(named), 3), phase_word(Phase.CHECKPOINT)) for rank in named]
        if few
        else (),
        victims=(),
        onset_ns=save.asked_ns,
        now=now,
        proof=rows,
        confidence=0.9,
        step=save.step or None,
    )
