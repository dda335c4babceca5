"""Conditions of ports from looks at them: flaps, errors of counters, ports that are gone (``diagnosis.counters``).

What a port's metrics already say where they are judged (that it is down, that acknowledgements fail) is left to those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ....diagnosis.counters.port_conditions import ChangeKind, ConditionChange, PortCondition
from ....diagnosis.counters.port_watch import PortWatch
from ....diagnosis.counters.rules import Grade
from ....diagnosis.counters.sample import Layer, LinkRate, LinkState, NodeSample, PortSample
from ..base.collector import NodeEvent, Timestamps
from ..base.node_condition import NodeCondition, looks_anew
from .sysfs_ports import Port

SOURCE = "ports"
#: By the same names the entity operator has them from metrics: ``port_down``, ``port_loses_packets``.
_KNOWN_BY_METRICS = frozenset({PortCondition.LINK_DOWN.value, "local_ack_timeout_err"})
_SEVERITY = {Grade.INFO: "info", Grade.WARN: "warning", Grade.CRITICAL: "error"}
_STATES = {1: LinkState.DOWN, 2: LinkState.INIT, 3: LinkState.ARMED, 4: LinkState.ACTIVE}


class PortJudge:
    """One node's ports. Call ``take`` with every look."""

    def __init__(self) -> None:
        self._watch = PortWatch()
        self._has_begun = False

    def take(self, ports: Iterable[tuple[Port, Mapping[str, int]]], now: Timestamps) -> list[NodeEvent]:
        """Ports with all their counters; returns what has begun, got worse or ended by this look."""
        sample = NodeSample(t_s=now.mono_ns / 1e9, ports=tuple(_sample(port, counters) for port, counters in ports))
        told = [
            _told(change, sample.t_s).happening(SOURCE, now) for change in self._watch.take(sample) if _is_told(change)
        ]
        if not self._has_begun:
            self._has_begun = True
            told.insert(0, looks_anew(SOURCE, now))
        return told


def _is_told(change: ConditionChange) -> bool:
    name = change.condition.name
    return name not in _KNOWN_BY_METRICS and not name.startswith(PortCondition.COUNTER_FULL.value)


def _told(change: ConditionChange, now_s: float) -> NodeCondition:
    condition = change.condition
    return NodeCondition(
        name=condition.name,
        device=condition.port,
        device_kind="nic",
        severity=_SEVERITY[condition.grade],
        domain="network",
        action=condition.action,
        scope=condition.scope,
        text=condition.shows,
        since_s=now_s - condition.since_s,
        is_over=change.kind is ChangeKind.ENDED,
    )


def _sample(port: Port, counters: Mapping[str, int]) -> PortSample:
    device, is_infiniband, number = port.id.partition("/")
    rate = port.rate_bytes_per_s
    return PortSample(
        device=device,
        port=int(number) if number.isdecimal() else 1,
        layer=_layer(port) if is_infiniband else Layer.NETDEV,
        state=_state(port),
        rate=LinkRate(gbps=rate * 8 / 1e9, lanes=port.lanes or 0, generation=port.speed) if rate else None,
        counters=counters,
    )


def _layer(port: Port) -> Layer:
    return Layer.INFINIBAND if port.link_layer == "InfiniBand" else Layer.ETHERNET


def _state(port: Port) -> LinkState:
    if port.state is not None:
        return _STATES.get(port.state, LinkState.UNKNOWN)
    if port.enabled is False or port.up is None:
        return LinkState.UNKNOWN  # put down on purpose, or nobody knows
    return LinkState.ACTIVE if port.up else LinkState.DOWN
