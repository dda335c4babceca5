"""Whether a node has the RDMA ports that its jobs need, up and fast enough. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .rules import ExpectedPorts
from .sample import Layer, LinkState, PortSample

#: Rates of the same link differ in the last digits between tools (100 Gb/sec, 103.125).
RATE_SLACK = 0.99
#: Physical states of a working port: sysfs, drivers that repeat the logical state, operstate.
_WORKING = frozenset({"", "linkup", "up", "active"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PortsVerdict:
    """``good``: ports that are up and fast enough. ``bad``: the others, with why."""

    is_enough: bool
    good: int
    bad: tuple[tuple[str, str], ...]
    text: str


def judge_ports(ports: Iterable[PortSample], expected: ExpectedPorts) -> PortsVerdict:
    """Whether enough RDMA ports are up and fast. Ports beyond the expected number may be down: nobody needs them."""
    good = 0
    bad: list[tuple[str, str]] = []
    for port in ports:
        if port.layer is Layer.NETDEV:
            continue
        if why := _why_not(port, expected.gbps):
            bad.append((port.name, why))
        else:
            good += 1
    is_enough = good >= expected.ports
    text = f"{good} ports are up with at least {expected.gbps:g} Gb/s, expected {expected.ports}"
    if not is_enough and bad:
        text += ": " + ", ".join(f"{name} {why}" for name, why in bad[:16])
    return PortsVerdict(is_enough=is_enough, good=good, bad=() if is_enough else tuple(bad), text=text)


def _why_not(port: PortSample, gbps: float) -> str:
    if port.physical not in _WORKING:
        return port.physical
    if port.state is not LinkState.ACTIVE:
        return str(port.state.value)
    if port.rate is None:
        return "rate unknown"
    return f"{port.rate.gbps:g} Gb/s" if port.rate.gbps < gbps * RATE_SLACK else ""
