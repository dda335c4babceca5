"""What a finding says of ranks that ended, and of those that only ended because of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....telemetry.evidence_facts import EvidenceFact, How
from ....telemetry.ring_layout import format_ranks
from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody
from ..detectors.crash.crash_order import SIGKILL, TOGETHER_NS, CrashVerdict, Ending, role_hint
from ..findings.endings import describe_ending, describe_joint_end, ending_row, fact_of
from ..findings.finding_body import body, evidence, share, source_of, suspect
from ..findings.wording import duration_words, phase_word, ranks_words
from ..state.job_state import JobState
from .storage_full import no_room_body, without_room

#: Of ranks that ended together so many are told one by one.
_MOST_TOLD = 4


def crash_body(job: JobState, verdict: CrashVerdict, now: int) -> tuple[Kind, FindingBody]:
    """Kind and body of the finding for a verdict: death, exception, no room to write, planned stop, or nobody seen."""
    cause = verdict.cause
    endings = [ending for ending, _ in verdict.roles if role_hint(ending) != "none"]
    began = min((ending.time_ns for ending in endings), default=now)
    if verdict.sort == "planned":
        return Kind.PLANNED_STOP, planned_body(job, endings, began, now)
    if verdict.sort == "unseen":
        return Kind.RANK_DIED, unseen_body(job, verdict, began, now)
    if cause is None:
        return Kind.RANK_DIED, _body_without_cause(job, verdict, endings, began, now)
    if refused := without_room(job, verdict):
        proof = [_cause_row(job, verdict, cause)]
        return Kind.RANK_RAISED, no_room_body(job, refused, proof, now)
    kind = Kind.RANK_RAISED if verdict.sort == "raised" else Kind.RANK_DIED
    bucket, scope = Bucket.IMMEDIATE_CRASH, Scope.RANK
    if verdict.sort == "left":
        # The script of this rank came to its end while the others went on: it had less to do than they.
        kind, bucket, scope = Kind.DESYNC, Bucket.COMMUNICATION_HANG, Scope.APPLICATION
    everyone = sorted({cause.rank, *verdict.same_error})
    if verdict.same_error and set(everyone) >= set(job.ranks):
        scope = Scope.APPLICATION
    proof = [_cause_row(job, verdict, cause)]
    blamed = [cause.rank]
    if verdict.same_error and verdict.sort == "died":
        blamed = everyone  # none of them is a consequence of another: a peer's death is answered by an error
        proof += [
            ending_row(job, ending)
            for ending in endings
            if ending.rank in verdict.same_error and ending.signal == cause.signal
        ][:_MOST_TOLD]
    elif verdict.same_error:
        shows = (
            f"{ranks_words(verdict.same_error)} raised {cause.type} as well: one cause, seen on {len(everyone)} ranks"
        )
        fact = EvidenceFact(how=How.RAISED, ranks=format_ranks(list(verdict.same_error)), type=cause.type)
        proof.append(evidence("rank.exception", ranks_words(verdict.same_error), cause.time_ns, shows, fact=fact))
    phases = {ending.rank: ending.phase for ending in endings if ending.sort == cause.sort}
    return kind, body(
        job,
        kind,
        bucket=bucket,
        scope=scope,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, verdict.confidence, phases.get(rank) or cause.phase or None) for rank in blamed],
        onset_ns=_left_ns(job, cause) if verdict.sort == "left" else cause.time_ns,
        now=now,
        proof=proof,
        confidence=verdict.confidence,
        step=cause.step,
    )


def _body_without_cause(
    job: JobState, verdict: CrashVerdict, endings: Sequence[Ending], began: int, now: int
) -> FindingBody:
    """All ended together, or what was seen are victims' errors alone."""
    fact = EvidenceFact(
        how=How.TOGETHER if verdict.sort == "together" else How.VICTIMS,
        ranks=format_ranks(sorted({ending.rank for ending in endings})),
        endings=tuple(fact_of(ending) for ending in endings[:_MOST_TOLD]),
    )
    return body(
        job,
        Kind.RANK_DIED,
        bucket=Bucket.IMMEDIATE_CRASH,
        scope=Scope.JOB,
        severity=Severity.PAGE,
        suspects=[],
        onset_ns=began,
        now=now,
        proof=[evidence("rank.exit", f"job {job.job}", began, describe_joint_end(fact), fact=fact)],
        confidence=min(verdict.confidence, 0.6),
        step=max((ending.step for ending in endings), default=-1),
    )


def _left_ns(job: JobState, cause: Ending) -> int:
    """When a rank came to the end of its script: its last row may still show since when it is on its way out."""
    row = job.progress.row_of(cause.rank)
    if row is None or phase_word(row["phase"]) != cause.phase or not int(row["phase_age_ns"]):
        return cause.time_ns
    return min(cause.time_ns, int(row["read_ns"]) - int(row["phase_age_ns"]))


def _cause_row(job: JobState, verdict: CrashVerdict, cause: Ending) -> EvidenceRow:
    fact = replace(fact_of(cause), step=cause.step if cause.step >= 0 else None, phase=cause.phase)
    words = _describe_cause(verdict, fact)
    return evidence(f"rank.{cause.sort}", source_of(job, cause.rank), cause.time_ns, words, fact=fact)


def _describe_cause(verdict: CrashVerdict, fact: EvidenceFact) -> str:
    words = describe_ending(fact)
    if fact.step is not None:
        words += f" in step {fact.step}"
    if fact.phase:
        words += f", phase {fact.phase}"
    if fact.signal == SIGKILL:
        words += (
            " (it leaves no trace in the process: look for the kernel's out-of-memory killer, a scheduler, a person)"
        )
    later = sorted({e.rank for e, role in verdict.roles if role_hint(e) != "none"} - {fact.rank, *verdict.same_error})
    if later:
        words += f", before {ranks_words(later)} failed"
    elif verdict.sort == "left":
        words += ", while the others still called collectives with it"
    return words


def unseen_body(job: JobState, verdict: CrashVerdict, began: int, now: int) -> FindingBody:
    """The body for ranks that ended before they had imported torch, named in ``verdict.unseen``. began,
    now: Unix ns.
    """
    unseen = ranks_words(verdict.unseen)
    told = sorted({ending.rank for ending, _ in verdict.roles if role_hint(ending) == "stop"})
    shows = (
        f"the launcher ended {ranks_words(told)} before {unseen} of {job.world_size} had come as far as importing "
        f"torch: it failed at its first lines, or could not be started; its own log says why"
    )
    return body(
        job,
        Kind.RANK_DIED,
        bucket=Bucket.IMMEDIATE_CRASH,
        scope=Scope.RANK,
        severity=Severity.PAGE,
        suspects=[suspect(job, rank, share(verdict.unseen), "init") for rank in verdict.unseen],
        onset_ns=began,
        now=now,
        proof=[evidence("rank.unseen", unseen, began, shows)],
        confidence=verdict.confidence,
    )


def planned_body(job: JobState, endings: Sequence[Ending], began: int, now: int) -> FindingBody:
    """The body for a planned stop: by a signal to the job, or all ranks asked within a moment. began, now: Unix ns."""
    if job.ends.signalled_ns:
        shows, began = "the job was asked to stop", min(began, job.ends.signalled_ns)
    else:
        ended = ranks_words(ending.rank for ending in endings)
        shows = f"{ended} were all asked to stop within {duration_words(TOGETHER_NS)}, before any error"
    return body(
        job,
        Kind.PLANNED_STOP,
        bucket=Bucket.PLANNED,
        scope=Scope.JOB,
        severity=Severity.INFO,
        suspects=[],
        victims=(),
        onset_ns=began,
        now=now,
        proof=[evidence("job.signalled", f"job {job.job}", began, shows)],
        confidence=0.95,
        step=max((ending.step for ending in endings), default=-1),
    )
