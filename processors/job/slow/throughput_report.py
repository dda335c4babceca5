"""What a finding says of steps that take longer on all ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from ...finding_document import EvidenceRow, FindingBody
from ..detectors.slow.data_stalls import Stalls
from ..detectors.slow.step_time_changepoint import PaceChange
from ..findings.finding_body import body, evidence
from ..findings.wording import duration_words, ranks_words
from ..state.job_state import JobState

#: Share of a surplus from which on it is said to be there.
MOST_OF_IT = 0.7


def slow_together_body(job: JobState, change: PaceChange, now: int, *, has_unseen_waits: bool = False) -> FindingBody:
    """The body for steps that take longer on all ranks alike.

    has_unseen_waits: the ranks are stages of a pipeline on devices, where nobody tells when a receive has ended.
    """
    shows = (
        f"since step {change.step} a step takes {duration_words(change.after_ns)} instead of "
        f"{duration_words(change.before_ns)} ({change.ratio - 1:+.0%}), on all ranks alike"
    )
    went = _where_it_went(change, has_unseen_waits=has_unseen_waits)
    proof = [
        evidence("steps.pace", f"job {job.job}", now, shows, round(change.ratio, 3)),
        evidence("steps.self_time", ranks_words(job.ranks), now, went, change.own_ns / 1e9),
    ]
    return replace(_body_of_all(job, change, now, proof), grew=_what_grew(change))


def wandering_body(job: JobState, change: PaceChange, now: int) -> FindingBody:
    """The body for steps that are longer because another rank is waited for each time: work is uneven,
    nobody is slow.
    """
    shows = (
        f"since step {change.step} a step takes {duration_words(change.after_ns)} instead of "
        f"{duration_words(change.before_ns)} ({change.ratio - 1:+.0%}); all wait for another rank in each step, none "
        "of them is late more often than others: the work is uneven"
    )
    proof = [evidence("steps.pace", f"job {job.job}", now, shows, round(change.ratio, 3))]
    return replace(_body_of_all(job, change, now, proof, scope=Scope.APPLICATION), grew="own")


def stalls_body(job: JobState, stalls: Stalls, now: int) -> FindingBody:
    """The body for stalls in which all ranks wait for data; ``stalls`` in it: begin and end of each burst, in Unix
    seconds.
    """
    shows = (
        f"since step {stalls.step} all ranks have waited for their data {len(stalls.bursts)} times, for some steps "
        f"each: {stalls.loss:.0%} of the time; the steps between take {duration_words(stalls.usual_ns)}, as before"
    )
    proof = [evidence("steps.stalls", f"job {job.job}", now, shows, round(stalls.loss, 3))]
    bursts = tuple((begin / 1e9, end / 1e9) for begin, end in stalls.bursts)
    return replace(_body_of_all(job, stalls, now, proof), grew="data", stalls=bursts)


def _body_of_all(
    job: JobState,
    found: PaceChange | Stalls,
    now: int,
    proof: Sequence[EvidenceRow],
    scope: Scope = Scope.JOB,
) -> FindingBody:
    return body(
        job,
        Kind.SLOW_TOGETHER,
        bucket=Bucket.SPEED_REGRESSION,
        scope=scope,
        severity=Severity.TICKET,
        suspects=[],
        onset_ns=found.onset_ns,
        now=now,
        proof=proof,
        confidence=0.7,
        step=found.step,
    )


def _what_grew(change: PaceChange) -> str:
    """The most of it, in one word: what jobs that are slow at one time have in common."""
    rise = max(1, change.after_ns - change.before_ns)
    parts = {"data": change.data_ns, "exchange": change.exchange_ns, "own": change.own_ns}
    return next((word for word, part_ns in parts.items() if part_ns > MOST_OF_IT * rise), "")


def _where_it_went(change: PaceChange, *, has_unseen_waits: bool) -> str:
    rise = max(1, change.after_ns - change.before_ns)
    of_it = f"of the {duration_words(rise)} more a step"
    if change.data_ns > MOST_OF_IT * rise:
        return f"{of_it}, every rank waits {duration_words(change.data_ns)} for its data: what serves them is slower"
    if not change.has_parts:
        return (
            f"{of_it}, what is work and what is exchange is not known: nobody tells when devices begin a collective "
            "(TORCH_NCCL_ENABLE_TIMING=1 in the job would)"
        )
    if change.exchange_ns > MOST_OF_IT * rise:
        return f"{of_it}, {duration_words(change.exchange_ns)} are collectives in which nobody waits: a slower network"
    if change.own_ns > MOST_OF_IT * rise and has_unseen_waits:
        return (
            f"{of_it}, {duration_words(change.own_ns)} are outside of collectives: every rank's own work, or that of "
            "one pipeline stage, for which the others wait in receives, whose ends nobody tells"
        )
    if change.own_ns > MOST_OF_IT * rise:
        return f"{of_it}, {duration_words(change.own_ns)} are every rank's own work: more to do, or slower hosts"
    return f"{of_it}, {duration_words(change.own_ns)} are the ranks' own work, the rest is not known"
