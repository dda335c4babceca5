"""Ports: enough that are up and fast, named interfaces, and what their counters do while they are watched."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...diagnosis.counters.enough_ports import RATE_SLACK, judge_ports
from ...diagnosis.counters.port_conditions import PortConditionSpan
from ...diagnosis.counters.port_watch import PortWatch
from ...diagnosis.counters.rules import ExpectedPorts, Grade, expected_ports
from ...diagnosis.counters.sample import Layer, LinkState, NodeSample, PortSample
from ...diagnosis.counters.sysfs import read_sample
from ...diagnosis.health_checks.outcome import CheckStatus
from .check_setup import CheckMode, Setup, Tell
from .finding import CheckFinding, Family
from .gpu_inventory import inventory

_STATUS = {Grade.INFO: CheckStatus.OK, Grade.WARN: CheckStatus.WARN, Grade.CRITICAL: CheckStatus.CRITICAL}
#: Counters are looked at twice, so far apart; rates per minute need more, in a preflight there is time.
_WATCH_S = {CheckMode.PREFLIGHT: 10.0, CheckMode.PROLOG: 2.0, CheckMode.EPILOG: 2.0}
_LOOKS = 3
_WITHOUT_CABLE = ("", "disabled", "polling", "sleep", "down")
_CABLE = "look at the cable and the switch port (ibstat, mlxlink, ethtool); replace the link if it stays"


def check(setup: Setup, tell: Tell) -> None:
    """Tells whether enough ports are up and fast, and named interfaces; and watches their counters for a while."""
    tell.begins("the ports in /sys were read")
    expected, is_guess = _expected(setup)
    first = read_sample(setup.sys, time.monotonic())
    tell.found(*_rdma(first, expected, is_guess=is_guess), *_interfaces(setup, first))
    if first.ports:
        tell.begins("the counters of the ports were watched")
        tell.found(*_watched(setup, first))


def _expected(setup: Setup) -> tuple[ExpectedPorts | None, bool]:
    """What the file says; else what belongs to the GPU's model, and True: such GPUs also stand in other nodes."""
    given = setup.expected.network
    by_model = expected_ports(inventory(setup.root).model)
    if given.ports is None and given.gbps is None:
        return by_model, True
    return ExpectedPorts(ports=given.ports if given.ports is not None else 1, gbps=given.gbps or 0.0), False


def _rdma(sample: NodeSample, expected: ExpectedPorts | None, *, is_guess: bool) -> Iterator[CheckFinding]:
    ports = [port for port in sample.ports if port.layer is not Layer.NETDEV]
    if expected is not None and (ports or not is_guess):
        verdict = judge_ports(ports, expected)
        failed = CheckStatus.WARN if is_guess else CheckStatus.CRITICAL
        reason = f"RDMA: {verdict.text}" + (" of nodes with this GPU" if is_guess and not verdict.is_enough else "")
        yield _finding(
            "rdma_ports",
            CheckStatus.OK if verdict.is_enough else failed,
            reason,
            remedy="" if verdict.is_enough else _CABLE,
            value=float(verdict.good),
        )
        if not is_guess:
            return
    if not ports:
        yield _finding("rdma_ports", CheckStatus.OK, "no RDMA port here", value=0.0)
        return
    good = [port for port in ports if port.state is LinkState.ACTIVE]
    for port in ports:
        # A second port without a cable is usual: only one that is half up is worth a word.
        if port.state in (LinkState.INIT, LinkState.ARMED) or (
            port.state is LinkState.DOWN and port.physical not in _WITHOUT_CABLE
        ):
            reason = f"the port is {port.state.value} ({port.physical or 'physical state unknown'})"
            yield _finding("rdma_port", CheckStatus.WARN, reason, device=port.name, remedy=_CABLE)
    yield from _slow_ports(good)
    status = CheckStatus.OK if good else CheckStatus.CRITICAL
    reason = f"{len(good)} of {len(ports)} RDMA ports are up"
    yield _finding("rdma_up", status, reason, remedy="" if good else _CABLE, value=float(len(good)))


def _slow_ports(ports: list[PortSample]) -> Iterator[CheckFinding]:
    """Half of a link's lanes, or a step down in its generation: others of this node show what it should be."""
    for layer in (Layer.INFINIBAND, Layer.ETHERNET):
        rates = {port.name: port.rate.gbps for port in ports if port.layer is layer and port.rate is not None}
        fastest = max(rates.values(), default=0.0)
        if sum(rate >= fastest * RATE_SLACK for rate in rates.values()) * 2 <= len(rates):
            continue  # a port for storage beside those of the fabric
        for name, rate in rates.items():
            if rate < fastest * RATE_SLACK:
                reason = f"the port runs at {rate:g} Gb/s, most others at {fastest:g}"
                yield _finding("rdma_rate", CheckStatus.WARN, reason, device=name, remedy=_CABLE, value=rate)


def _interfaces(setup: Setup, sample: NodeSample) -> Iterator[CheckFinding]:
    wanted = setup.expected.network
    found = {port.name: port for port in sample.ports if port.layer is Layer.NETDEV}
    for name in wanted.interfaces:
        port = found.get(name)
        if port is None:
            yield _finding("interface", CheckStatus.CRITICAL, "the interface is not there", device=name, remedy=_CABLE)
        elif port.state is not LinkState.ACTIVE:
            reason = f"the interface is {port.physical or port.state.value}"
            yield _finding("interface", CheckStatus.CRITICAL, reason, device=name, remedy=_CABLE)
        elif wanted.interface_gbps and (port.rate is None or port.rate.gbps < wanted.interface_gbps * RATE_SLACK):
            speed = f"{port.rate.gbps:g} Gb/s" if port.rate else "an unknown speed"
            reason = f"the interface runs at {speed}, expected {wanted.interface_gbps:g}"
            yield _finding("interface", CheckStatus.CRITICAL, reason, device=name, remedy=_CABLE)
    up = sum(port.state is LinkState.ACTIVE for port in found.values())
    if found and not up and not wanted.interfaces:
        reason = f"none of {len(found)} network interfaces is up"
        yield _finding("interfaces", CheckStatus.WARN, reason, remedy="look at ip link; a node needs one")
    else:
        yield _finding("interfaces", CheckStatus.OK, f"{up} of {len(found)} network interfaces are up", value=float(up))


def _watched(setup: Setup, first: NodeSample) -> Iterator[CheckFinding]:
    """Conditions that begin while we look. A state that stands since before has been told already."""
    wanted_s = setup.expected.network.watch_s
    watch_s = min(_WATCH_S[setup.mode] if wanted_s is None else wanted_s, max(setup.limit_s - 2.0, 0.2))
    watch = PortWatch()
    watch.take(first)
    for _ in range(_LOOKS - 1):
        time.sleep(watch_s / (_LOOKS - 1))
        watch.take(read_sample(setup.sys, time.monotonic()))
    bad = [condition for condition in watch.open_conditions if condition.grade is not Grade.INFO]
    yield from (_of_condition(condition) for condition in bad)
    if not bad:
        yield _finding(
            "counters", CheckStatus.OK, f"no error counter of {len(first.ports)} ports grew in {watch_s:.0f} s"
        )


def _of_condition(condition: PortConditionSpan) -> CheckFinding:
    reason = f"{condition.name}: {condition.shows} ({condition.value:g} {condition.unit}".rstrip() + ")"
    return _finding(
        "counters",
        _STATUS[condition.grade],
        reason,
        device=condition.port,
        remedy=f"{condition.action.value.replace('_', ' ')}: {_CABLE}",
        value=condition.value,
    )


def _finding(
    check: str, status: CheckStatus, reason: str, *, device: str = "", remedy: str = "", value: float | None = None
) -> CheckFinding:
    return CheckFinding(
        family=Family.NETWORK, check=check, status=status, reason=reason, device=device, remedy=remedy, value=value
    )
