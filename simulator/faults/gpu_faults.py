"""Faults of GPUs."""

from __future__ import annotations

from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned

_SLOW = ("rank_slow",)


def slow(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on a random rank's GPU (never rank 0's) computes at 0.8 of its speed, and nothing says why."""
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="speed", value=0.8, places=(site.gpu(rank),))
    return Planned(changes=(change,), truth=site.of_rank(kind, "rank", _SLOW, rank))


def slow_by_a_tenth(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on kernels of a random rank's GPU (never rank 0's) take a fifth longer.

    Some rank is always a little slower than most, so steps take a tenth longer.
    """
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="speed", value=1.0 / 1.2, places=(site.gpu(rank),))
    return Planned(changes=(change,), truth=site.of_rank(kind, "rank", _SLOW, rank))


def hot(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on the heatsink of a random rank's GPU (never rank 0's) carries away too little."""
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="cooling", value=0.35, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", _SLOW, rank, condition="gpu_throttled", told_by=("gpu",))
    return Planned(changes=(change,), truth=truth)


def locked(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on the clocks of a random rank's GPU (never rank 0's) are locked low, as a
    diagnostic leaves them.
    """
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="clock_limit", value=0.75, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", _SLOW, rank, condition="gpu_clock_locked", told_by=("gpu",))
    return Planned(changes=(change,), truth=truth)


def off_the_bus(site: FaultSite, kind: FaultKind) -> Planned:
    """A random rank's GPU (never rank 0's) leaves the PCI bus: driver and kernel tell, and the rank raises or dies."""
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="on_bus", value=0.0, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", ("rank_raised", "rank_died"), rank, told_by=("gpu", "kernel_log"))
    return Planned(changes=(change,), truth=truth)


def memory_error(site: FaultSite, kind: FaultKind) -> Planned:
    """The memory of a random rank's GPU (never rank 0's) has lost what was written: driver and kernel tell, the rank
    fails.
    """
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="memory", value=0.0, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", ("rank_raised", "rank_died"), rank, told_by=("gpu", "kernel_log"))
    return Planned(changes=(change,), truth=truth)


def endless_kernel(site: FaultSite, kind: FaultKind) -> Planned:
    """From ``at_s`` on a kernel on a random rank's GPU (never rank 0's) does not end; the process goes on launching
    others.
    """
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="kernels", value=0.0, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "rank", ("rank_not_entered",), rank)
    return Planned(changes=(change,), truth=truth)


def nvlink_down(site: FaultSite, kind: FaultKind) -> Planned:
    """The link from a random rank's GPU to the next one of its node makes errors, and 2 s later carries nothing any
    more.
    """
    rank = site.any_rank()
    local = rank % site.job.ranks_per_node
    other = rank - local + (local + 1) % site.job.ranks_per_node
    pair = (site.gpu(rank), site.gpu(other))
    changes = (
        ParameterChange(at_s=site.at_s, family="gpu", name="nvlink_errors", value=2400.0, places=pair),
        ParameterChange(at_s=site.at_s + 2.0, family="gpu", name="nvlink_up", value=0.0, places=pair),
    )
    truth = site.truth(
        kind,
        "link",
        ("collective_stalled",),
        ranks=(rank, other),
        nodes=(site.topology.node_name(site.topology.node_of_gpu(pair[0])),),
        devices=tuple(site.topology.gpu_uuid(gpu) for gpu in pair),
        condition="xid_74",
        told_by=("kernel_log", "gpu"),
    )
    return Planned(changes=changes, truth=truth)


def firmware_hangs(site: FaultSite, kind: FaultKind) -> Planned:
    """A random rank's GPU's own processor does not answer the driver any more: whoever asks for it
    waits in the kernel.
    """
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="firmware", value=0.0, places=(site.gpu(rank),))
    told_by = ("kernel_log", "gpu")
    truth = site.of_rank(kind, "gpu", ("rank_not_entered",), rank, condition="xid_119", told_by=told_by)
    return Planned(changes=(change,), truth=truth)


def few_lanes(site: FaultSite, kind: FaultKind) -> Planned:
    """The PCIe link of a random rank's GPU has been trained with two lanes of sixteen: batches and its traffic come
    late.
    """
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="lanes", value=0.125, places=(site.gpu(rank),))
    kinds = ("rank_slow", "slow_together")
    truth = site.of_rank(kind, "gpu", kinds, rank, condition="pcie_narrow", told_by=("gpu",))
    return Planned(changes=(change,), truth=truth)


def wrong_results(site: FaultSite, kind: FaultKind) -> Planned:
    """In three of ten steps one result of a random rank's GPU (never rank 0's) has a wrong exponent.

    Neither the GPU nor its driver notices; the ranks' numbers show it, and that is the finding expected. Raises
    ValueError for a job of one rank.
    """
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="wrong_results", value=0.3, places=(site.gpu(rank),))
    return Planned(changes=(change,), truth=site.of_rank(kind, "gpu", ("numeric_first_rank",), rank))


def flipped_bit(site: FaultSite, kind: FaultKind) -> Planned:
    """One bit of a weight in the memory of a random rank's GPU is flipped, unnoticed by its error correction."""
    rank = site.any_rank()
    change = ParameterChange(at_s=site.at_s, family="gpu", name="flipped", value=1.0, places=(site.gpu(rank),))
    return Planned(changes=(change,), truth=site.of_rank(kind, "gpu", ("numeric_first_rank",), rank))


def stage_stalls(site: FaultSite, kind: FaultKind) -> Planned:
    """A kernel of a random rank of a middle pipeline stage does not end: earlier and later stages wait for it.

    Raises ValueError for fewer than three stages.
    """
    mesh = site.job.mesh
    stage = mesh.stage(int(site.random.integers(1, mesh.pipeline - 1)))
    rank = int(site.random.integers(stage.start, stage.stop))
    change = ParameterChange(at_s=site.at_s, family="gpu", name="kernels", value=0.0, places=(site.gpu(rank),))
    return Planned(changes=(change,), truth=site.of_rank(kind, "rank", ("rank_not_entered",), rank))


KINDS = (
    FaultKind("nvlink_down", "3", "the NVLink between two GPUs of a node fails", nvlink_down),
    FaultKind("gpu_firmware_hangs", "4", "one GPU's own processor does not answer its driver any more", firmware_hangs),
    FaultKind("pipeline_stalls", "24", "a kernel in a middle stage of a pipeline never ends", stage_stalls),
    FaultKind("pcie_narrow", "27", "one GPU's PCIe link has two lanes of sixteen", few_lanes),
    FaultKind("wrong_results", "36", "one GPU computes wrongly now and then, and nothing notices", wrong_results),
    FaultKind("flipped_bit", "37", "one bit of a weight in one GPU's memory is flipped, unnoticed", flipped_bit),
    FaultKind("slow_gpu", "25a", "one GPU's kernels take 25 % longer, without a word of the driver", slow),
    FaultKind("slow_gpu_tenth", "25b", "one GPU's kernels take 20 % longer, and steps a tenth", slow_by_a_tenth),
    FaultKind("gpu_thermal", "25", "one GPU is cooled too little: it gets hot, and its clocks are held down", hot),
    FaultKind("gpu_clock_locked", "26", "one GPU's highest clock was left locked low", locked),
    FaultKind("gpu_off_the_bus", "2", "one GPU falls off the PCIe bus", off_the_bus),
    FaultKind("gpu_memory_error", "1", "an uncorrectable error in one GPU's memory", memory_error),
    FaultKind("endless_kernel", "18", "a kernel on one GPU never ends", endless_kernel),
)
