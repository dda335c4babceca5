"""GPUs and NVLinks by the driver: are all there, do they answer, what do their counters say, do they agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...agents.collectors.base.collector import Collected
from ...agents.collectors.gpu.which_maker import make_gpu_collector
from ...diagnosis.health_checks.outcome import CheckStatus
from ...telemetry.records import Point
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family
from .gpu_inventory import expected_gpus, inventory
from .points import moment, tell_points

_REBOOT = (
    "drain the node; reset the GPU (nvidia-smi -r, amd-smi reset -G) or reboot, then look into the kernel log for it"
)


def check(setup: Setup, tell: Tell) -> None:
    """Tells whether all GPUs and NVLinks are there, answer, count no errors, and agree with each other."""
    here = inventory(setup.root)
    expected = setup.expected.gpu.count if setup.expected.gpu.count is not None else expected_gpus(here)
    tell.begins("the GPU driver was asked for its GPUs", CheckStatus.CRITICAL)
    collected = make_gpu_collector(setup.proc, setup.sys).collect(moment())
    states = {
        str(point.attributes["hw.name"]): point.value == 1.0
        for point in collected.points
        if point.name == "hw.status" and point.attributes["hw.state"] == "ok"
    }
    if not states:
        tell.found(*_no_gpu(setup, collected, expected))
        return
    tell.found(*_lost(collected, states), _count(sum(states.values()), expected))
    points = list(collected.points)
    tell.found(*_models(setup, points), *_pcie(setup, points), *_sizes(setup, points))
    tell_points(setup, points, (Family.GPU,), tell)
    if Family.NVLINK in setup.families:
        tell.found(*_nvlinks(setup, points))
        tell_points(setup, points, (Family.NVLINK,), tell)


def _no_gpu(setup: Setup, collected: Collected, expected: int) -> Iterator[CheckFinding]:
    said = collected.problems[0] if collected.problems else "the driver knows of no GPU"
    for family in sorted(setup.families & {Family.GPU, Family.NVLINK}):
        if expected == 0:
            yield CheckFinding(family=family, check="present", status=CheckStatus.OK, reason="no GPU here", value=0.0)
        elif family is Family.GPU:
            yield CheckFinding(
                family=family,
                check="present",
                status=CheckStatus.CRITICAL,
                reason=f"{expected} GPUs are expected and none answers: {said}",
                remedy="look at nvidia-smi or amd-smi and the kernel log; reinstall the driver or reboot",
                value=0.0,
            )
        else:
            yield CheckFinding(family=family, check="present", status=CheckStatus.UNKNOWN, reason="no GPU answers")


def _lost(collected: Collected, states: Mapping[str, bool]) -> Iterator[CheckFinding]:
    why = {
        f"GPU {happening.attributes.get('gpu_index')}": str(happening.attributes.get("why", ""))
        for happening in collected.happenings
        if happening.attributes.get("event") == "gpu_lost"
    }
    for name, is_there in states.items():
        if not is_there:
            reason = f"the GPU does not answer ({why.get(name, 'lost')})"
            yield CheckFinding(
                family=Family.GPU, check="lost", status=CheckStatus.CRITICAL, device=name, reason=reason, remedy=_REBOOT
            )


def _count(there: int, expected: int) -> CheckFinding:
    status = CheckStatus.CRITICAL if there < expected else CheckStatus.OK
    reason = f"{there} GPUs answer" + (f", expected {expected}" if there != expected and expected else "")
    remedy = _REBOOT if status is CheckStatus.CRITICAL else ""
    return CheckFinding(
        family=Family.GPU, check="present", status=status, reason=reason, remedy=remedy, value=float(there)
    )


def _models(setup: Setup, points: Sequence[Point]) -> Iterator[CheckFinding]:
    wanted = setup.expected.gpu.model
    for point in points:
        if wanted and point.name == "whichrank.gpu.info":
            model = str(point.attributes.get("hw.model", ""))
            if wanted.lower() not in model.lower():
                yield CheckFinding(
                    family=Family.GPU,
                    check="model",
                    status=CheckStatus.CRITICAL,
                    device=str(point.attributes["hw.name"]),
                    reason=f"it is a {model}, expected {wanted}",
                    remedy="correct the list of expectations, or the node's entry in the scheduler",
                )


def _pcie(setup: Setup, points: Sequence[Point]) -> Iterator[CheckFinding]:
    """Fewer lanes than both ends can do. The generation says nothing: it falls while a GPU idles."""
    best = of_each(points, "whichrank.gpu.pcie.lanes.limit")
    wanted = setup.expected.gpu.pcie_lanes
    for name, lanes in of_each(points, "whichrank.gpu.pcie.lanes").items():
        limit = float(wanted) if wanted is not None else best.get(name, lanes)
        if lanes < limit:
            yield CheckFinding(
                family=Family.GPU,
                check="pcie_width",
                status=CheckStatus.WARN if wanted is None else CheckStatus.CRITICAL,
                device=name,
                reason=f"PCIe link has {lanes:.0f} lanes, expected {limit:.0f}",
                remedy="reseat the board or riser; look for PCIe AER lines in the kernel log",
                value=lanes,
            )


def _sizes(setup: Setup, points: Sequence[Point]) -> Iterator[CheckFinding]:
    wanted = setup.expected.gpu.memory_gib
    for name, size in of_each(points, "hw.gpu.memory.limit").items():
        if wanted is not None and size < wanted * 2**30 * 0.98:
            yield CheckFinding(
                family=Family.GPU,
                check="memory_size",
                status=CheckStatus.CRITICAL,
                device=name,
                reason=f"{size / 2**30:.1f} GiB of memory, expected {wanted:g}",
                remedy="look for MIG and for memory that was taken out of use",
                value=size / 2**30,
            )


def _nvlinks(setup: Setup, points: Sequence[Point]) -> Iterator[CheckFinding]:
    up = of_each(points, "whichrank.gpu.nvlink.links", **{"whichrank.gpu.nvlink.state": "up"})
    down = of_each(points, "whichrank.gpu.nvlink.links", **{"whichrank.gpu.nvlink.state": "down"})
    wanted = setup.expected.gpu.nvlinks
    if not any(up.values()) and not wanted:
        # A board without a bridge has links that lead nowhere.
        yield CheckFinding(
            family=Family.NVLINK, check="present", status=CheckStatus.OK, reason="no NVLink is in use here"
        )
        return
    # A GPU that knows of fewer links than its peers misses them as well.
    total = float(wanted) if wanted is not None else max(count + down.get(name, 0.0) for name, count in up.items())
    names = of_each(points, "hw.gpu.memory.limit")
    bad = 0
    for name in names:
        count = up.get(name, 0.0)
        if count < total:
            bad += 1
            yield CheckFinding(
                family=Family.NVLINK,
                check="down",
                status=CheckStatus.CRITICAL,
                device=name,
                reason=f"{count:.0f} NVLinks are up, expected {total:.0f}",
                remedy="drain the node; reset all GPUs and the fabric manager, then run dcgmi diag -r 3",
                value=count,
            )
    if not bad:
        reason = f"all NVLinks of {len(names)} GPUs are up ({max(up.values(), default=0):.0f} each)"
        yield CheckFinding(family=Family.NVLINK, check="down", status=CheckStatus.OK, reason=reason)


def of_each(points: Sequence[Point], metric: str, **labels: str) -> dict[str, float]:
    """By the GPU's name its value of this metric, of points with these labels."""
    return {
        str(point.attributes["hw.name"]): point.value
        for point in points
        if point.name == metric and all(point.attributes.get(key) == text for key, text in labels.items())
    }
