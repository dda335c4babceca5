"""Faults of the program that a job runs: on whatever nodes it runs, they are there."""

from __future__ import annotations

from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned


def _of_program(site: FaultSite, name: str, value: float) -> tuple[ParameterChange, ...]:
    return (ParameterChange(at_s=site.at_s, family="program", name=name, value=value, job=site.job.name),)


def _of_ranks(site: FaultSite, ranks: tuple[int, ...], name: str, value: float) -> tuple[ParameterChange, ...]:
    return (ParameterChange(at_s=site.at_s, family="process", name=name, value=value, places=ranks, job=site.job.name),)


def _raised_by(site: FaultSite, kind: FaultKind, rank: int, name: str, value: float) -> Planned:
    truth = site.truth(kind, "application", ("rank_raised", "application_repeats"), ranks=(rank,))
    return Planned(changes=_of_ranks(site, (rank,), name, value), truth=truth)


def bad_access(site: FaultSite, kind: FaultKind) -> Planned:
    """A kernel of a random rank reads where it may not; it does so in this step wherever the job is restarted."""
    return _raised_by(site, kind, site.any_rank(), "bad_access", 1.0)


def device_memory(site: FaultSite, kind: FaultKind) -> Planned:
    """Longer sequences of a random rank take more and more of its GPU's memory: it is gone 8 s later."""
    return _raised_by(site, kind, site.any_rank(), "device_bytes_per_s", 1.5e9)


def nan_abort(site: FaultSite, kind: FaultKind) -> Planned:
    """The numbers of a random rank's batch overflow; the sum of all gradients is NaN, and rank 0 ends
    the run for it.
    """
    rank = site.any_rank()
    truth = site.truth(kind, "rank", ("numeric_first_rank",), ranks=(rank,))
    return Planned(changes=_of_ranks(site, (rank,), "overflow", 1.0), truth=truth)


def bad_numbers(site: FaultSite, kind: FaultKind) -> Planned:
    """The loss of a random rank's batch is 150 times a usual one's, and the weights suffer for some steps."""
    rank = site.any_rank()
    truth = site.truth(kind, "rank", ("numeric_first_rank",), ranks=(rank,))
    return Planned(changes=_of_ranks(site, (rank,), "outlier", 150.0), truth=truth)


def no_space(site: FaultSite, kind: FaultKind) -> Planned:
    """The job's quota is full from ``at_s`` on: its next checkpoint cannot be written."""
    truth = site.truth(kind, "storage", ("rank_raised", "storage_full"))
    return Planned(changes=_of_program(site, "space", 0.0), truth=truth)


def opposite_order(site: FaultSite, kind: FaultKind) -> Planned:
    """A random rank takes two groups in the other order than all others: they wait for each other for ever."""
    changes = _of_ranks(site, (site.any_rank(),), "other_order", 1.0)
    return Planned(changes=changes, truth=site.truth(kind, "application", ("deadlock",)))


def long_evaluation(site: FaultSite, kind: FaultKind) -> Planned:
    """Rank 0's evaluation, for which the others wait, takes 20 times as long from ``at_s`` on."""
    truth = site.truth(kind, "application", ("rank_not_entered",), ranks=(0,))
    return Planned(changes=_of_program(site, "evaluation", 20.0), truth=truth)


def pauses(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on interpreters clean up for a moment, each in 6 % of its steps; all others wait for it."""
    # Pauses that wander name nobody, and silence is right (docs/verdicts.md): nothing is asked but that nobody pages.
    return Planned(changes=_of_program(site, "pauses", 0.06), truth=site.truth(kind, "application", (), job=""))


def uneven_lengths(site: FaultSite, kind: FaultKind) -> Planned:
    """Texts are packed without regard to their lengths: another rank has most to do in each step, from ``at_s`` on."""
    truth = site.truth(kind, "application", ("slow_together", "wandering"))
    return Planned(changes=_of_program(site, "spread", 0.15), truth=truth)


def heavy_stage(site: FaultSite, kind: FaultKind) -> Planned:
    """The last stage of the pipeline gets 1.3 times the work of the others: all of its ranks are slower alike."""
    stage = site.job.mesh.stage(site.job.mesh.pipeline - 1)
    ranks = tuple(range(stage.start, stage.stop))
    truth = site.truth(kind, "application", ("rank_slow", "slow_together"), ranks=ranks)
    return Planned(changes=_of_ranks(site, ranks, "work", 1.3), truth=truth)


def hot_expert(site: FaultSite, kind: FaultKind) -> Planned:
    """A random expert gets more tokens than the others: its ranks work 1.4 times as long, and all wait for them."""
    mesh = site.job.mesh
    expert = int(site.random.integers(0, mesh.experts))
    ranks = tuple(rank for rank in range(mesh.world_size) if rank // mesh.tensor % mesh.data % mesh.experts == expert)
    truth = site.truth(kind, "application", ("rank_slow", "slow_together"), ranks=ranks)
    return Planned(changes=_of_ranks(site, ranks, "work", 1.4), truth=truth)


KINDS = (
    FaultKind("illegal_access", "5", "a kernel of one rank reads where it may not", bad_access),
    FaultKind("gpu_out_of_memory", "7", "one rank needs more memory than its GPU has", device_memory),
    FaultKind("nan_abort", "9", "one rank's numbers overflow, and rank 0 ends the run for it", nan_abort),
    FaultKind("checkpoint_no_space", "13", "the job's quota is full when it saves", no_space),
    FaultKind("opposite_order", "19", "one rank takes two groups in the opposite order", opposite_order),
    FaultKind("long_evaluation", "23", "rank 0 evaluates for a minute, and the others wait", long_evaluation),
    FaultKind("interpreter_pauses", "29", "interpreters pause, now on this rank, now on that", pauses),
    FaultKind("uneven_lengths", "30", "texts of uneven lengths: another rank is late in each step", uneven_lengths),
    FaultKind("heavy_stage", "31", "the last pipeline stage has more to do than the others", heavy_stage),
    FaultKind("hot_expert", "35", "one expert gets more tokens than the others", hot_expert),
    FaultKind("bad_numbers", "38", "one rank's batch is far from all others", bad_numbers),
)
