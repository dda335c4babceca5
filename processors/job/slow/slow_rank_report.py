"""What a finding says of a rank that is slow in its steps or its saves. Pure."""

from __future__ import annotations

from dataclasses import replace

from ....telemetry.vocabulary import Phase, Scope, Severity
from ...finding_document import FindingBody
from ..detectors.slow.checkpoint_straggler import SlowWriter
from ..detectors.slow.drift import Drift
from ..detectors.slow.straggler_memory import Straggler
from ..findings.finding_body import evidence, ruled_out, source_of, suspect
from ..findings.wording import duration_words, phase_word, ranks_words
from ..intake.device_groups import has_device_groups
from ..state.job_state import JobState
from ..topology.culprit import whose_slowness
from .culprit_report import evidence_of_company, slow_body, suspects_of


def straggler_body(job: JobState, found: Straggler, now: int) -> FindingBody:
    """The body for a rank whose own work takes longer than the others': a ticket, or information if it
    was always so.
    """
    culprit = whose_slowness(job, (found.rank, *found.company), always=not found.based)
    others = [int(rank) for rank in job.steps.times.ranks if rank not in culprit.ranks]
    phase = phase_word(found.phase) if found.phase >= 0 else None
    unknown = "by the time its device spends outside collectives" if has_device_groups(job) else "in no phase most"
    place = f"mostly in phase {phase}" if phase else unknown
    works, wait = ("works", "waits") if len(others) == 1 else ("work", "wait")
    usual = f" (usual: {found.usual:+.0%})" if found.usual > 0.01 else ""
    since = f"since step {found.onset_step}" if found.based else "as long as its steps are known"
    shows = (
        f"rank {found.rank} works {duration_words(found.self_ns)} per step where {ranks_words(others)} {works} "
        f"{duration_words(found.others_self_ns)}: {duration_words(found.excess_ns)} more, {found.excess:.0%} of a step"
        f"{usual}, {place}, in {found.slow_steps} of the last {found.window} steps, {since}"
    )
    proof = [
        evidence("steps.self_time", source_of(job, found.rank), now, shows, round(found.excess, 4)),
    ]
    if found.starved_ns > found.excess_ns / 4:
        lacks = (
            f"in each step rank {found.rank}'s main thread was ready to run and had no CPU for "
            f"{duration_words(found.starved_ns)} more than the others: something else on "
            f"{job.node_of(found.rank) or 'its node'} takes the cores"
        )
        proof.append(evidence("kernel.run_delay", source_of(job, found.rank), now, lacks, found.starved_ns / 1e9))
    waits = (
        f"{ranks_words(others)} {wait} {duration_words(found.waited_ns)} of each step in collectives, "
        f"{duration_words(found.waited_before_ns)} before; step time is {duration_words(found.step_ns)}"
    )
    because = f"only waits there for {ranks_words(culprit.ranks)}, {duration_words(found.waited_ns)} of each step"
    body = slow_body(
        job,
        scope=culprit.scope,
        # One that never was faster may have more to do by design: somebody is asked once it has lasted.
        severity=Severity.TICKET if found.based else Severity.INFO,
        suspects=suspects_of(job, culprit, phase),
        onset_ns=found.onset_ns,
        now=now,
        proof=[*proof, *evidence_of_company(culprit, now), evidence("steps.waiting", ranks_words(others), now, waits)],
        cleared=[ruled_out(others, "long in collectives", because)],
        confidence=min(0.97, 0.6 + found.z / 30.0),
        step=found.onset_step,
    )
    return replace(body, always=not found.based)


def drift_body(job: JobState, found: Drift, now: int) -> FindingBody:
    """The body for a rank that became slower by and by."""
    others = [int(rank) for rank in job.steps.times.ranks if rank != found.rank]
    shows = (
        f"rank {found.rank} became slower by and by: its own work takes {duration_words(found.now_ns)} a step, "
        f"{duration_words(found.best_ns)} at its best around step {found.since_step}; against the others that is "
        f"{found.rise:.0%} of a step"
    )
    return slow_body(
        job,
        scope=Scope.RANK,
        suspects=[suspect(job, found.rank, 0.9)],
        onset_ns=found.onset_ns,
        now=now,
        proof=[evidence("steps.drift", source_of(job, found.rank), now, shows, round(found.rise, 4))],
        cleared=[ruled_out(others, "longer in collectives", f"there it is only waiting for rank {found.rank}")],
        confidence=0.8,
        step=found.onset_step,
    )


def slow_writer_body(job: JobState, found: SlowWriter, now: int) -> FindingBody:
    """The body for a rank that writes its part of each checkpoint slower than before."""
    others = [int(rank) for rank in job.steps.saves.ranks if rank != found.rank]
    verb, wait = ("saves", "waits") if len(others) == 1 else ("save", "wait")
    beside = f", where {ranks_words(others)} {verb} in {duration_words(found.others_ns)}" if found.others_ns else ""
    shows = (
        f"rank {found.rank} spends {duration_words(found.now_ns)} in each checkpoint since step {found.onset_step}; it "
        f"was {duration_words(found.before_ns)} before{beside}"
    )
    lost = found.now_ns - max(found.before_ns, found.others_ns)
    waits = f"{ranks_words(others)} {wait} {duration_words(lost)} for it, once in {found.every_steps} steps"
    return slow_body(
        job,
        scope=Scope.RANK,
        suspects=[suspect(job, found.rank, 0.95, phase_word(Phase.CHECKPOINT))],
        onset_ns=found.onset_ns,
        now=now,
        proof=[
            evidence("steps.checkpoint", source_of(job, found.rank), now, shows, found.now_ns / 1e9),
            evidence("steps.waiting", ranks_words(others), now, waits),
        ],
        cleared=[ruled_out(others, "stands still after each save", f"waits there for the save of rank {found.rank}")],
        confidence=0.9,
        step=found.onset_step,
    )
