"""Faults of GPUs."""

from __future__ import annotations

from ..resources import Change
from .fault import FaultKind, Planned, Site

_SLOW = ("rank_slow",)


def slow(site: Site, kind: FaultKind) -> Planned:
    """Its kernels take a quarter longer, and nothing says why."""
    rank = site.any_rank()
    change = Change(at_s=site.at_s, family="gpu", name="speed", value=0.8, places=(site.gpu(rank),))
    return Planned(changes=(change,), truth=site.of_rank(kind, "rank", _SLOW, rank))


def slow_by_a_tenth(site: Site, kind: FaultKind) -> Planned:
    """Its kernels take a fifth longer. Some rank is always a little slower than most, so steps take a tenth longer."""
    rank = site.any_rank()
    change = Change(at_s=site.at_s, family="gpu", name="speed", value=1.0 / 1.2, places=(site.gpu(rank),))
    return Planned(changes=(change,), truth=site.of_rank(kind, "rank", _SLOW, rank))


def hot(site: Site, kind: FaultKind) -> Planned:
    """Its heatsink carries away too little."""
    rank = site.any_rank()
    change = Change(at_s=site.at_s, family="gpu", name="cooling", value=0.35, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", _SLOW, rank, condition="gpu_throttled")
    return Planned(changes=(change,), truth=truth)


def locked(site: Site, kind: FaultKind) -> Planned:
    """A diagnostic has left its clocks locked low."""
    rank = site.any_rank()
    change = Change(at_s=site.at_s, family="gpu", name="clock_limit", value=0.75, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", _SLOW, rank, condition="gpu_clock_locked")
    return Planned(changes=(change,), truth=truth)


def off_the_bus(site: Site, kind: FaultKind) -> Planned:
    rank = site.any_rank()
    change = Change(at_s=site.at_s, family="gpu", name="on_bus", value=0.0, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", ("rank_raised", "rank_died"), rank)
    return Planned(changes=(change,), truth=truth)


def memory_error(site: Site, kind: FaultKind) -> Planned:
    """Its memory has lost what was written."""
    rank = site.any_rank()
    change = Change(at_s=site.at_s, family="gpu", name="memory", value=0.0, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "gpu", ("rank_raised", "rank_died"), rank)
    return Planned(changes=(change,), truth=truth)


def endless_kernel(site: Site, kind: FaultKind) -> Planned:
    """A kernel of it does not come to an end; its host goes on launching."""
    rank = site.any_rank()
    change = Change(at_s=site.at_s, family="gpu", name="kernels", value=0.0, places=(site.gpu(rank),))
    truth = site.of_rank(kind, "rank", ("rank_not_entered",), rank)
    return Planned(changes=(change,), truth=truth)


KINDS = (
    FaultKind("slow_gpu", "25a", "one GPU's kernels take 25 % longer, without a word of the driver", slow),
    FaultKind("slow_gpu_tenth", "25b", "one GPU's kernels take 20 % longer, and steps a tenth", slow_by_a_tenth),
    FaultKind("gpu_thermal", "25", "one GPU is cooled too little: it gets hot, and its clocks are held down", hot),
    FaultKind("gpu_clock_locked", "26", "one GPU's highest clock was left locked low", locked),
    FaultKind("gpu_off_the_bus", "2", "one GPU falls off the PCIe bus", off_the_bus),
    FaultKind("gpu_memory_error", "1", "an uncorrectable error in one GPU's memory", memory_error),
    FaultKind("endless_kernel", "18", "a kernel on one GPU never ends", endless_kernel),
)
