"""InfiniBand, RoCE and Ethernet ports of the node: state, speed, width, errors, congestion, as /sys and ethtool say it.

Runs in a thread. It only measures: what a number means is for ``diagnosis.counters`` (``port_judge``). Counters are
told as sums that grow (``counter_series``); a port that was there and is not is told as absent, never left out in
silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from ....diagnosis.network_counters import network_counters
from ....telemetry.records import Point
from ..base.collector import Collected, Timestamps
from ..base.counter_series import CounterSeries
from .ethtool import interface_statistics
from .port_judge import PortJudge
from .sysfs_ports import MAX_PORTS, Port, infiniband_ports, network_interfaces

#: Gauges of a port that stand still are told again after so long, like counters.
_INFO_PERIOD_NS = 60_000_000_000
#: Points of one collection; a node with 16 ports has some 600 when all of them move.
MAX_POINTS = 2048


class NetworkCollector:
    """``statistics``: what ethtool knows of an interface, beyond its /sys files; None: do not ask.

    look: the ports as they are now, where /sys does not tell them.
    """

    name = "network"

    def __init__(
        self,
        *,
        sys: str | Path = "/sys",
        period_s: float = 5.0,
        statistics: Callable[[str], Mapping[str, int]] | None = interface_statistics,
        look: Callable[[], Iterable[Port]] | None = None,
    ) -> None:
        self.period_s = period_s
        self._sys = Path(sys)
        self._statistics = statistics
        self._look = look
        self._series: dict[tuple[str, str], CounterSeries] = {}
        self._seen: dict[str, Port] = {}
        self._info_told: dict[str, tuple[tuple[str, ...], int]] = {}
        self._judge = PortJudge()

    def collect(self, now: Timestamps) -> Collected:
        """Points of every port there is, and a "present" of 0 for each that has gone since the last look; and what the
        looks so far say of the ports.

        Counters that stand at their maximum, and more values than ``MAX_POINTS``, are problems.
        """
        problems: list[str] = []
        ports = {port.id: port for port in self._looked_at(problems)}
        points: list[Point] = []
        if not ports and not self._seen:
            problems.append(f"{self._sys}/class/net and class/infiniband: no network device can be seen here")
        looked_at: list[tuple[Port, Mapping[str, int]]] = []
        for port in ports.values():
            counters = self._all_counters(port)
            points += self._port_points(port, counters, now)
            problems += saturated(port)
            looked_at.append((port, counters))
        for port_id in self._seen.keys() - ports.keys():
            points.append(_gauge("whichrank.network.port.present", 0, port_id, now))
        if len(points) > MAX_POINTS:
            problems.append(f"network: more than {MAX_POINTS} values at once; the others are left out")
            del points[MAX_POINTS:]
        self._remember(ports)
        return Collected(points=points, happenings=self._judge.take(looked_at, now), problems=problems)

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        return

    def _looked_at(self, problems: list[str]) -> Iterator[Port]:
        if self._look is not None:
            yield from self._look()
            return
        for kind, found in (("infiniband", infiniband_ports(self._sys)), ("net", network_interfaces(self._sys))):
            yield from islice(found, MAX_PORTS)
            if next(found, None) is not None:
                problems.append(f"{self._sys}/class/{kind}: more than {MAX_PORTS} ports; the others are left out")

    def _port_points(self, port: Port, counters: Mapping[str, int], now: Timestamps) -> Iterator[Point]:
        yield from self._info(port, now)
        for name, value in _gauges(port):
            if value is not None:
                yield _gauge(name, value, port.id, now)
        before = self._seen.get(port.id)
        began_anew = before is not None and before.identity != port.identity
        # One counter may wrap; that two do so between two looks is no wrap.
        may_wrap = before is None or sum(raw < before.counters.get(name, 0) for name, raw in port.counters.items()) < 2
        known = network_counters()
        told_as: set[tuple[str, str]] = set()
        for name, raw in counters.items():
            counter = known.get(name)
            if counter is None or (counter.metric, counter.kind) in told_as:
                continue  # a driver may count the same thing under two names
            told_as.add((counter.metric, counter.kind))
            series = self._series.setdefault((port.id, name), CounterSeries())
            for told in series.take(raw, now.wall_ns, began_anew=began_anew, may_wrap=may_wrap):
                yield Point(
                    name=counter.metric,
                    value=float(told.value * counter.factor),
                    attributes={"hw.id": port.id, **counter.attributes},
                    time_ns=told.time_ns,
                    start_ns=told.start_ns,
                )

    def _all_counters(self, port: Port) -> Mapping[str, int]:
        if "/" in port.id or self._statistics is None:
            return port.counters
        # /sys goes first: ethtool's of the same name may count another thing (frames of one queue).
        return {**self._statistics(port.id), **port.counters}

    def _info(self, port: Port, now: Timestamps) -> Iterator[Point]:
        about = (
            port.link_layer,
            port.speed,
            port.interface,
            port.firmware,
            port.board,
            port.driver,
            port.pci_address,
        )
        before, told_ns = self._info_told.get(port.id, ((), 0))
        if about == before and 0 <= now.wall_ns - told_ns < _INFO_PERIOD_NS:
            return
        self._info_told[port.id] = (about, now.wall_ns)
        yield Point(
            name="whichrank.network.port.info",
            value=1.0,
            attributes={
                "hw.id": port.id,
                "hw.name": port.driver,
                "hw.model": port.board,
                "hw.firmware_version": port.firmware,
                "hw.parent": port.pci_address,
                "whichrank.network.link_layer": port.link_layer,
                "whichrank.network.speed": port.speed,
                "whichrank.network.interface": port.interface,
            },
            time_ns=now.wall_ns,
        )

    def _remember(self, ports: Mapping[str, Port]) -> None:
        for port_id, port in ports.items():
            if port_id in self._seen or len(self._seen) < 2 * MAX_PORTS:
                self._seen[port_id] = port
        for key in [key for key in self._series if key[0] not in self._seen]:
            del self._series[key]
        for port_id in self._info_told.keys() - self._seen.keys():
            del self._info_told[port_id]


def saturated(port: Port) -> Iterator[str]:
    """A line for each counter of the port that stands at its register's maximum: it hides what happens from now on."""
    known = network_counters()
    for name, value in port.counters.items():
        counter = known.get(name)
        if counter is not None and counter.maximum and value == counter.maximum:
            yield f"{port.id}: {name} stands at its maximum of {value} and counts no further; perfquery -R sets it to 0"


def _gauges(port: Port) -> Iterator[tuple[str, float | None]]:
    yield "whichrank.network.port.present", 1
    yield "hw.network.up", None if port.up is None else int(port.up)
    yield "whichrank.network.port.enabled", None if port.enabled is None else int(port.enabled)
    yield "hw.network.bandwidth.limit", port.rate_bytes_per_s
    yield "whichrank.network.port.state", port.state
    yield "whichrank.network.port.phys_state", port.phys_state
    yield "whichrank.network.port.lanes", port.lanes
    yield "whichrank.network.port.mtu", port.mtu_bytes


def _gauge(name: str, value: float, port_id: str, now: Timestamps) -> Point:
    return Point(name=name, value=float(value), attributes={"hw.id": port_id}, time_ns=now.wall_ns)
