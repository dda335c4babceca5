"""What a finding says of a device that is late, a host that launches too late, and a stage with more to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ....telemetry.vocabulary import Scope
from ...finding_document import EvidenceRow, FindingBody
from ..detectors.slow.device_straggler.launch_bound import LateHost
from ..detectors.slow.device_straggler.occupancy import LateDevice
from ..detectors.slow.pipeline_stage_time import HeavyStage
from ..detectors.slow.step_time_changepoint import PaceChange
from ..findings.finding_body import evidence, ruled_out, share, source_of, suspect
from ..findings.wording import duration_words, ranks_words
from ..state.job_state import JobState
from ..topology.culprit import Culprit, whose_slowness
from .culprit_report import evidence_of_company, slow_body, suspects_of


def late_device_body(job: JobState, found: LateDevice, now: int) -> FindingBody:
    """The body for a rank whose device comes late to the collectives in which the others' devices wait."""
    culprit = whose_slowness(job, (found.rank, *found.company), always=False)
    others = [int(rank) for rank in job.steps.times.ranks if rank not in culprit.ranks]
    was, each = ("was", "") if len(others) == 1 else ("were", " in the mean")
    shows = (
        f"rank {found.rank}'s device is late: {ranks_words(others)} {was} found waiting in a collective in "
        f"{found.others_waited} of {found.looks} looks{each}, rank {found.rank} in {found.waited}, since step "
        f"{found.onset_step}; before it was {found.others_waited_before:.0%} of all looks"
    )
    longer = (
        f"a step takes {duration_words(found.now_ns)}, {duration_words(found.before_ns)} before: {found.rise:.0%} of "
        "it is new, as much as the others wait"
    )
    proof = [
        evidence("steps.device_looks", source_of(job, found.rank), now, shows, round(found.z, 2)),
        evidence("steps.duration", "all ranks", now, longer, round(found.rise, 4)),
    ]
    whose = f"{ranks_words(culprit.ranks)}'s device" + ("s" if len(culprit.ranks) > 1 else "")
    return _late_body(job, found, culprit, now, proof=proof, whose=whose)


def late_host_body(job: JobState, found: LateHost, now: int) -> FindingBody:
    """The body for a rank whose host launches its passes slower than before, so that its device waits."""
    culprit = whose_slowness(job, (found.rank, *found.company), always=False)
    others = [int(rank) for rank in job.steps.times.ranks if rank not in culprit.ranks]
    others_take = f"{ranks_words(others)} {'takes' if len(others) == 1 else 'take'} {duration_words(found.others_ns)}"
    shows = (
        f"since step {found.onset_step} rank {found.rank}'s host takes {duration_words(found.launches_ns)} of each "
        f"step to launch its passes forward and back, {duration_words(found.launched_ns)} before; {others_take}: "
        "its device waits for it"
    )
    longer = f"a step takes {duration_words(found.now_ns)}, {duration_words(found.before_ns)} before"
    rise = found.now_ns / max(1, found.before_ns) - 1.0
    proof = [
        evidence("steps.launching", source_of(job, found.rank), now, shows, round(found.z, 2)),
        evidence("steps.duration", "all ranks", now, longer, round(rise, 4)),
    ]
    return _late_body(job, found, culprit, now, proof=proof, whose=ranks_words(culprit.ranks))


def _late_body(
    job: JobState,
    found: LateDevice | LateHost,
    culprit: Culprit,
    now: int,
    *,
    proof: Sequence[EvidenceRow],
    whose: str,
) -> FindingBody:
    """whose: what the others wait for, in words."""
    others = [int(rank) for rank in job.steps.times.ranks if rank not in culprit.ranks]
    return slow_body(
        job,
        scope=culprit.scope,
        suspects=suspects_of(job, culprit),
        onset_ns=found.onset_ns,
        now=now,
        proof=[*proof, *evidence_of_company(culprit, now)],
        cleared=[ruled_out(others, "long in collectives", f"only waits there for {whose}")],
        confidence=min(0.95, 0.6 + found.z / 30.0),
        step=found.onset_step,
    )


def heavy_stage_body(job: JobState, found: HeavyStage, change: PaceChange, now: int) -> FindingBody:
    """The body for a pipeline stage whose passes take longer since the job's pace changed."""
    others = [int(rank) for rank in job.steps.times.ranks if rank not in found.ranks]
    shows = (
        f"since step {change.step} the first pass through pipeline stage {found.stage} ({ranks_words(found.ranks)}) "
        f"takes {duration_words(found.pass_ns)} instead of {duration_words(found.pass_before_ns)}, by the ends of its "
        f"calls and those of the stages beside it; that through any other stage is {found.others:.0%} longer at most"
    )
    longer = (
        f"a step takes {duration_words(change.after_ns)} instead of {duration_words(change.before_ns)} "
        f"({change.ratio - 1:+.0%}), on all ranks alike"
    )
    proof = [
        evidence("steps.passes", ranks_words(found.ranks), now, shows, round(found.z, 2)),
        evidence("steps.pace", f"job {job.job}", now, longer, round(change.ratio, 3)),
    ]
    nodes = {job.node_of(rank) for rank in found.ranks}
    if len(nodes) == 1:
        same = f"all of them are on {nodes.pop()}: if that has become slower, it looks the same"
        proof.append(evidence("steps.company", ranks_words(found.ranks), now, same))
    because = f"waits for stage {found.stage} in receives, whose ends nobody tells"
    return slow_body(
        job,
        scope=Scope.APPLICATION,
        suspects=[suspect(job, rank, share(found.ranks)) for rank in found.ranks],
        onset_ns=change.onset_ns,
        now=now,
        proof=proof,
        cleared=[ruled_out(others, "as long outside of collectives", because)],
        confidence=min(0.95, 0.6 + found.z / 30.0),
        step=change.step,
    )
