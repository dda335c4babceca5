"""The detectors of one slow rank, in the order in which they are asked: each finds, remembers, and sees its end.

A row of ``SLOW_RANK_DETECTORS`` is a detector: what finds (``detectors/slow``, where its method is named), what of it
is remembered, and what says that the rank is no longer slow. Who adds a detector adds a row, its memory to
``state/finding_memory`` (and to ``SlowRankMemory`` there), and the memory's name to ``state/finding_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ....telemetry.vocabulary import Kind
from ...finding_document import FindingBody
from ..detectors.slow.checkpoint_straggler import find_slow_writer, is_still_slow_writer
from ..detectors.slow.device_straggler.launch_bound import LateHost, find_late_host
from ..detectors.slow.device_straggler.long_window import find_late_by_little
from ..detectors.slow.device_straggler.occupancy import LateDevice, find_late_device, is_still_late
from ..detectors.slow.device_straggler.small_group import find_late_in_group
from ..detectors.slow.device_straggler.step_window import find_late_in_steps
from ..detectors.slow.drift import find_drift, has_come_back, makes_steps_longer
from ..detectors.slow.lag_coupling import do_hosts_wait_for, is_waited_for, was_always_waited_for
from ..detectors.slow.step_times import StepTimes
from ..detectors.slow.straggler import find_straggler
from ..detectors.slow.straggler_memory import Straggler, StragglerMemory
from ..detectors.slow.straggler_recovery import is_still_slow
from ..intake.device_groups import has_become_slow, has_device_groups, shows_in_steps
from ..state.finding_memory import DriftMemory, LateMemory, PaceMemory, SlowRankMemory, SlowWriterMemory
from ..state.job_state import JobState
from ..state.rank_state import OpenFinding
from ..topology.culprit import have_something_in_common
from ..topology.pipeline_stages import ends_last_by_schedule, of_one_stage, order_of_stages, stages_of
from . import slow_device_report, slow_rank_report

#: So many others of a device's company may have nothing in common with it.
MOST_BY_CHANCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What a detector has found, ready to be told. place: the first bad one, which makes the finding's key."""

    place: str
    body: FindingBody
    memory: SlowRankMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRankDetector:
    """A detector of slow ranks. find: at a stamp, None where there is nothing. memory: of its findings.

    over: why a finding has ended, "" not yet.
    """

    find: Callable[[JobState, int], Detected | None]
    memory: type[SlowRankMemory]
    over: Callable[[JobState, OpenFinding], str]


# --- a rank whose own work takes longer -------------------------------------------------------------------------------
def _find_slow_rank(job: JobState, now: int) -> Detected | None:
    """By the ranks' own times, step after step."""
    found = find_straggler(comparable_times(job), on_device=has_device_groups(job))
    if found is not None and has_device_groups(job):
        ranks, times = job.steps.times.ranks, job.steps.times
        found = of_one_stage(times, stages_of(job, ranks), found)
        if found is not None and ends_last_by_schedule(times, order_of_stages(job, ranks), found):
            found = None
    if found is None or not is_coupled(job, found):
        return None
    return detected_straggler(job, found, now)


def detected_straggler(job: JobState, found: Straggler, now: int) -> Detected:
    """Place, body and memory for a straggler found, of which ``register.open_finding`` makes a finding."""
    return Detected(
        place=f"rank {found.rank} step {found.onset_step}",
        body=slow_rank_report.straggler_body(job, found, now),
        memory=StragglerMemory(
            rank=found.rank,
            step=found.onset_step,
            excess=found.excess,
            usual=found.usual,
            noise=found.noise,
            based=found.based,
            company=found.company,
        ),
    )


def comparable_times(job: JobState) -> StepTimes:
    """Times of the steps that may be compared: where work has become uneven, only those since.

    What varied less before would make anybody stand out.
    """
    uneven = [finding.step for finding in job.findings.of_kind(Kind.SLOW_TOGETHER) if _is_wandering(finding)]
    return job.steps.times.since(max(uneven)) if uneven else job.steps.times


def _is_wandering(finding: OpenFinding) -> bool:
    """Whether it says that another rank is late in each step."""
    return isinstance(finding.detail.memory, PaceMemory) and finding.detail.memory.wanders


def is_coupled(job: JobState, found: Straggler) -> bool:
    """Whether the others really wait for the straggler found, as their waits, starts and step lengths show."""
    ranks, starts = job.steps.times.ranks, job.steps.window.starts
    if not has_device_groups(job):
        return found.based or do_hosts_wait_for(starts, ranks, found)
    if not shows_in_steps(job.steps.times, found):
        return False
    if len(found.company) > MOST_BY_CHANCE and not have_something_in_common(job, (found.rank, *found.company)):
        return False
    if has_become_slow(job.steps.times, found):
        return is_waited_for(starts, ranks, found.rank, found.onset_step, found.step_ns)
    return was_always_waited_for(starts, ranks, found)


def was_always_slow(finding: OpenFinding) -> bool:
    """Whether the finding is of a rank that was slow as long as its steps are known, so perhaps by design."""
    memory = finding.detail.memory
    return isinstance(memory, StragglerMemory) and not memory.based


def _is_hidden(job: JobState, finding: OpenFinding) -> bool:
    """Whether another rank has become slow since: while that one keeps calls open, what others work beside them counts
    as waiting."""
    later = (other for other in job.findings.of_kind(Kind.RANK_SLOW) if other.step > finding.step)
    return any(not was_always_slow(other) for other in later)


def _straggler_is_over(job: JobState, finding: OpenFinding) -> str:
    memory = finding.detail.memory
    if not isinstance(memory, StragglerMemory) or _is_hidden(job, finding) or is_still_slow(job.steps.times, memory):
        return ""
    job.steps.drop(finding.step, job.steps.closed_step)
    return f"rank {memory.rank} is as fast as usual again"


# --- a host or a device that is late ----------------------------------------------------------------------------------
def _find_slow_host(job: JobState, now: int) -> Detected | None:
    """A host that launches too late for its device. Where all were said to be slower together, that stands: one fault,
    one incident."""
    if not has_device_groups(job) or job.findings.has_kind(Kind.SLOW_TOGETHER):
        return None
    times = job.steps.times
    late = find_late_host(job.steps.window.launches, times.ranks, times.steps, times.begin_ns, times.duration_ns)
    return None if late is None else _detected_late(late, slow_device_report.late_host_body(job, late, now))


def _find_slow_device(job: JobState, now: int) -> Detected | None:
    """By how long devices stand in collectives: in the smallest groups, in steps, in looks, and by little for long."""
    if not has_device_groups(job) or job.findings.has_kind(Kind.SLOW_TOGETHER):
        return None
    times, window = job.steps.times, job.steps.window
    groups = job.groups.inner_groups(times.ranks)
    for late in _late_devices(job, groups):
        if late is not None and is_waited_for(window.starts, times.ranks, late.rank, late.onset_step, late.before_ns):
            return _detected_late(late, slow_device_report.late_device_body(job, late, now))
    return None


def _late_devices(job: JobState, groups: np.ndarray) -> Iterator[LateDevice | None]:
    """What each way of looking finds, the surest first; none is asked before those above it have failed."""
    times, window = job.steps.times, job.steps.window
    yield find_late_in_group(times, window.inner, groups) or find_late_in_steps(times)
    yield find_late_device(window.looks, times.ranks, times.steps, times.begin_ns, times.duration_ns)
    yield find_late_by_little(times, window.inner, groups)


def _detected_late(late: LateDevice | LateHost, body: FindingBody) -> Detected:
    memory = LateMemory(rank=late.rank, usual_step_ns=late.before_ns, late_step_ns=late.now_ns)
    return Detected(place=f"rank {late.rank} step {late.onset_step}", body=body, memory=memory)


def _late_is_over(job: JobState, finding: OpenFinding) -> str:
    memory = finding.detail.memory
    if not isinstance(memory, LateMemory):
        return ""
    if is_still_late(job.steps.window.looks, memory.usual_step_ns, memory.late_step_ns):
        return ""
    job.steps.drop(finding.step, job.steps.closed_step)
    return f"the steps are as long as before rank {memory.rank} was late"


# --- a rank that saves slowly, and one that becomes slow by and by ----------------------------------------------------
def _find_slow_saver(job: JobState, now: int) -> Detected | None:
    """By its checkpoints."""
    writer = find_slow_writer(job.steps.saves)
    if writer is None:
        return None
    return Detected(
        place=f"rank {writer.rank} save {writer.onset_step}",
        body=slow_rank_report.slow_writer_body(job, writer, now),
        memory=SlowWriterMemory(rank=writer.rank, before_ns=writer.before_ns, now_ns=writer.now_ns),
    )


def _saver_is_over(job: JobState, finding: OpenFinding) -> str:
    memory = finding.detail.memory
    if not isinstance(memory, SlowWriterMemory):
        return ""
    is_slow = is_still_slow_writer(job.steps.saves, memory.rank, memory.before_ns, memory.now_ns)
    return "" if is_slow else f"rank {memory.rank} saves as fast as usual again"


def _find_drifting_rank(job: JobState, now: int) -> Detected | None:
    """Against the best that it ever did."""
    blocks, ranks = job.steps.drift, job.steps.times.ranks
    drift = find_drift(blocks, ranks)
    if drift is None or (has_device_groups(job) and not makes_steps_longer(blocks, ranks, drift)):
        return None
    return Detected(
        place=f"rank {drift.rank} drift {drift.onset_step}",
        body=slow_rank_report.drift_body(job, drift, now),
        memory=DriftMemory(rank=drift.rank, rise=drift.rise, usual=drift.usual),
    )


def _drift_is_over(job: JobState, finding: OpenFinding) -> str:
    memory = finding.detail.memory
    if not isinstance(memory, DriftMemory):
        return ""
    if not has_come_back(job.steps.drift, job.steps.times.ranks, memory.rank, memory.usual, memory.rise):
        return ""
    return f"rank {memory.rank} is as fast as at its best again"


#: The first that finds somebody is right. Stages of pipelines and hosts that are late are ended as devices are.
SLOW_RANK_DETECTORS = (
    SlowRankDetector(find=_find_slow_host, memory=LateMemory, over=_late_is_over),
    SlowRankDetector(find=_find_slow_rank, memory=StragglerMemory, over=_straggler_is_over),
    SlowRankDetector(find=_find_slow_device, memory=LateMemory, over=_late_is_over),
    SlowRankDetector(find=_find_slow_saver, memory=SlowWriterMemory, over=_saver_is_over),
    SlowRankDetector(find=_find_drifting_rank, memory=DriftMemory, over=_drift_is_over),
)
_OVER: dict[type, Callable[[JobState, OpenFinding], str]] = {}
for _each in SLOW_RANK_DETECTORS:
    assert _OVER.setdefault(_each.memory, _each.over) is _each.over, "one memory, one way to be over"


def why_over(job: JobState, finding: OpenFinding) -> str:
    """Why a finding of a slow rank has ended, for people; "": it has not."""
    over = _OVER.get(type(finding.detail.memory))
    return over(job, finding) if over is not None else ""
