"""A node's collectors: they look at the resources as they are, and tell it in the words of the agent's own code.

Each looks at its own moments. What it says goes through the agent's ``NodeReports``, as in life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..agents.base.priority import Priority
from ..agents.collectors.base.collector import Collected, NodeEvent, Timestamps
from ..agents.collectors.host.host_collector import clock_step
from ..agents.collectors.logs.kernel_events import KernelEvents
from ..agents.collectors.network.network_collector import NetworkCollector
from ..agents.collectors.network.sysfs_ports import Port
from ..agents.collectors.schedule import Seen, own_points
from ..agents.node_reports import NodeReports
from ..telemetry.otlp_redaction import RequestRedactor
from ..telemetry.records import Identity, Point
from ..telemetry.vocabulary import EventName
from .clock import generator, ns
from .cluster_topology import Topology
from .encoded_points import RepeatedGate, RepeatedPoints
from .fabric import PORT_BYTES_PER_S
from .gpu_sensors import GpuSensors
from .hardware import DriverWord, Hardware, SimulatedKernelLine
from .heat import Heat
from .held_ranks import HeldRanks, RankHere
from .mounts import MOUNTS, SimulatedMountProbe
from .resources import Resources
from .shared_storage import LIMIT_BYTES

#: Seconds between two looks, as the collectors have them.
PERIODS_S: Mapping[str, float] = {
    "gpu": 10.0,
    "network": 5.0,
    "storage": 5.0,
    "host": 10.0,
    "processes": 5.0,
    "kernel_log": 1.0,
}
_OWN_S = 10.0
_REQUEST_BYTES = 600_000
Publish = Callable[[float, str, str, bytes], None]


@dataclass(kw_only=True)
class _Telemetry:
    """In place of ``NodeTelemetry``: what was seen since the last turn."""

    seen: list[Seen] = field(default_factory=list)
    counters: Mapping[str, int] = field(default_factory=dict)

    def start(self) -> None: ...

    def close(self) -> None: ...

    def take(self) -> list[Seen]:
        taken, self.seen = self.seen, []
        return taken


class NodeSensors:
    def __init__(
        self,
        node: int,
        *,
        topology: Topology,
        resources: Resources,
        heat: Heat,
        hardware: Hardware,
        mono_ns: int,
        wall_ns: int,
        offset_s: float,
        operations: Mapping[str, Callable[[], float]],
        room_bytes: Callable[[], float],
        requests: RequestRedactor,
        least_period_s: float = 0.0,
    ) -> None:
        """Collectors of one node. mono_ns, wall_ns: its clocks at the run's begin; offset_s: shifts when each looks.

        operations: by kind, that the node has asked of the shared file system so far. room_bytes: left on it. requests:
        of the gates of all nodes. least_period_s: no collector looks more often.
        """
        self.node, self.name = node, topology.node_name(node)
        self._topology, self._resources, self._hardware = topology, resources, hardware
        self._mono_ns, self._wall_ns = mono_ns, wall_ns
        self._gpus = GpuSensors(node, topology=topology, resources=resources, heat=heat, hardware=hardware)
        self._held_ranks = HeldRanks(PERIODS_S["processes"])
        self._kernel = KernelEvents()
        self._network = NetworkCollector(look=self._ports, statistics=None)
        self._telemetry = _Telemetry()
        self._operations, self._room_bytes = operations, room_bytes
        self._offset_ns = wall_ns - mono_ns  # of its wall clock, when it was last looked at
        self._is_placed = False
        self._release = ""
        self._ranks: Mapping[int, RankHere] = {}
        self._sent: list[tuple[str, str, bytes]] = []
        encode = RepeatedPoints()
        self._reports = NodeReports(
            self._telemetry,  # type: ignore[arg-type]
            Identity(cluster=topology.cluster, node=self.name),
            self._keep,
            rank_processes=lambda: {pid: rank.identity for pid, rank in self._ranks.items()},
            request_bytes=_REQUEST_BYTES,
            encode=encode,
            gate=RepeatedGate(encode, requests),
        )
        self._least_period_s = least_period_s
        self._due = {name: offset_s % period for name, period in PERIODS_S.items()}
        self._own_due_s = offset_s % _OWN_S
        self._looked_s = self._waited_for_cores_s = 0.0
        #: Until then nothing is due, as long as nothing changes: of the resources, and whose ranks are here.
        self._idle_until_s, self._version = 0.0, -1
        self._probes = {name: SimulatedMountProbe(mount=mount) for name, mount in MOUNTS.items()}

    def ranks_are(self, ranks: Mapping[int, RankHere]) -> None:
        """Sets the ranks of this node, by pid. Another object than before means others: all is looked at at the next
        tick.
        """
        if ranks is not self._ranks:
            self._ranks = ranks
            self.look_again()

    def look_again(self) -> None:
        """Lets the next ``tick`` look for what is due, even if nothing has changed."""
        self._idle_until_s = 0.0

    def set_clock(self, wall_ns: int) -> None:
        """Sets the node's wall clock. wall_ns: what it would have shown at the run's begin, as it goes from now on."""
        self._wall_ns = wall_ns

    def tick(self, until_s: float, lines: list[SimulatedKernelLine], words: list[DriverWord], publish: Publish) -> None:
        """Does all looks that are due before ``until_s`` and publishes what they tell.

        lines, words: what kernel and driver of this node have said since the last tick.
        """
        is_quiet = not lines and not words and self._version == self._resources.version
        if is_quiet and until_s <= self._idle_until_s:
            return
        for word in words:
            if self._sees("gpu"):  # whoever listens hears the driver at once
                self._see("gpu", self._gpus.hear(word, self._moment(word.at_s)))
        while True:
            name, due_s = min(self._due.items(), key=lambda item: item[1])
            if due_s >= until_s:
                break
            self._due[name] = due_s + max(PERIODS_S[name], self._least_period_s)
            if not self._sees(name) or (name == "gpu" and self._gpus.driver_hangs_since_s < due_s):
                continue
            if name == "kernel_log":
                lines = self._read(lines, due_s)
                continue
            self._see(name, getattr(self, f"_look_{name}")(due_s))
        if lines and self._sees("kernel_log"):
            self._read(lines, until_s)  # its next look is in the next window; a storm of lines waits for nobody
        if self._own_due_s < until_s:
            self._own_due_s += max(_OWN_S, self._least_period_s)
            moment = self._moment(until_s)
            points = [
                point
                for name in PERIODS_S
                for point in own_points(
                    name, moment, late_s=self._late_s(name, until_s), failures=0, sees=self._sees(name)
                )
            ]
            self._see("collectors", Collected(points=points))
        self._place_node(until_s)
        self._look_release(until_s)
        if self._sees("gpu"):
            self._see("gpu", self._gpus.place_ranks(self._ranks, self._moment(until_s)))
        if self._telemetry.seen:
            self._reports.turn()
        for topic, key, value in self._sent:
            publish(until_s - 0.01, topic, key, value)
        self._sent = []
        # The kernel log is read again when there is a line in it.
        due_s = min(due_s for name, due_s in self._due.items() if name != "kernel_log")
        self._version, self._idle_until_s = self._resources.version, min(due_s, self._own_due_s)

    # --- looks --------------------------------------------------------------------------------------------------------
    def _look_gpu(self, at_s: float) -> Collected:
        return self._gpus.look(at_s, self._moment(at_s))

    def _look_network(self, at_s: float) -> Collected:
        self._looked_s = at_s
        return self._network.collect(self._moment(at_s))

    def _ports(self) -> Iterator[Port]:
        resources = self._resources
        leaf_up = resources.of("leaf", "up")[self._topology.leaf_of_node[self.node]]
        for port in self._gpus.numbers:
            up = bool(resources.of("port", "up")[port] and leaf_up)
            share = float(resources.of("port", "rate")[port])
            yield Port(
                id=self._topology.port_name(port),
                link_layer="InfiniBand",
                identity=f"{self.name}/{port}",
                up=up,
                enabled=True,
                state=4 if up else 1,
                phys_state=5 if up else 2,
                rate_bytes_per_s=PORT_BYTES_PER_S * share,
                lanes=max(1, round(4 * share)),
                speed="NDR",
                mtu_bytes=4096,
                counters={
                    "link_downed": self._hardware.link_downs.get(port, 0),
                    "local_ack_timeout_err": self._hardware.ack_timeouts(port, self._looked_s),
                    "symbol_error": int(float(resources.of("port", "errors")[port])),
                },
            )

    def _look_storage(self, at_s: float) -> Collected:
        now = self._moment(at_s)
        points: list[Point] = []
        happenings: list[NodeEvent] = []
        for name, probe in self._probes.items():
            point, late = probe.look(at_s, now, answers=bool(self._resources.of("host", name)[self.node]))
            points.append(point)
            happenings += late
        mount = MOUNTS["mount"]
        for kind, asked in self._operations.items():
            about = {"system.filesystem.mountpoint": mount.path, "whichrank.storage.operation": kind}
            name = "whichrank.nfs.operations"
            points.append(Point(name=name, value=float(int(asked())), attributes=about, time_ns=now.wall_ns))
        if self._resources.of("host", "mount")[self.node]:
            points += self._space(now)
        return Collected(points=points, happenings=happenings)

    def _space(self, now: Timestamps) -> Iterator[Point]:
        mount = MOUNTS["mount"]
        about = {"system.filesystem.mountpoint": mount.path, "system.filesystem.type": mount.fstype}
        free = min(self._room_bytes(), LIMIT_BYTES)
        yield Point(name="system.filesystem.limit", value=LIMIT_BYTES, attributes=about, time_ns=now.wall_ns)
        for state, value in (("free", free), ("used", LIMIT_BYTES - free)):
            of_state = {**about, "system.filesystem.state": state}
            yield Point(name="system.filesystem.usage", value=value, attributes=of_state, time_ns=now.wall_ns)

    def _look_host(self, at_s: float) -> Collected:
        now = self._moment(at_s)
        taken = float(self._resources.of("host", "shared_memory")[self.node])
        self._waited_for_cores_s += PERIODS_S["host"] * (
            1.0 - min(1.0, float(self._resources.of("host", "cpu")[self.node]))
        )
        points = [
            Point(name="whichrank.shared_memory.utilization", value=taken, time_ns=now.wall_ns),
            Point(
                name="whichrank.pressure.time",
                value=self._waited_for_cores_s,
                attributes={"whichrank.resource": "cpu", "whichrank.kind": "some"},
                time_ns=now.wall_ns,
            ),
        ]
        step = clock_step(self._offset_ns, now)
        self._offset_ns = now.wall_ns - now.mono_ns
        return Collected(points=points, happenings=(step,) if step is not None else ())

    def _look_processes(self, at_s: float) -> Collected:
        return self._held_ranks.look(self._ranks, at_s, self._moment(at_s))

    def _read(self, lines: list[SimulatedKernelLine], at_s: float) -> list[SimulatedKernelLine]:
        """The kernel log, up to then. Returns the lines that are not written yet."""
        happenings: list[NodeEvent] = []
        lost = float(self._resources.of("agent", "lines_lost")[self.node])
        for line in lines:
            if line.at_s <= at_s and (not lost or generator(self.node, line.text).random() >= lost):
                happenings += self._kernel(line.text, self._moment(line.at_s))
        if happenings:
            self._see("kernel_log", Collected(happenings=happenings))
        return [line for line in lines if line.at_s > at_s]

    def _place_node(self, at_s: float) -> None:
        """Where it stands, from the site's own table: told once."""
        if self._is_placed:
            return
        self._is_placed, now = True, self._moment(at_s)
        labels = self._topology.labels(self.node)
        told = NodeEvent(name=EventName.NODE_TOPOLOGY, time_ns=now.wall_ns, mono_ns=now.mono_ns, attributes=labels)
        self._see("topology", Collected(happenings=(told,)))

    def _look_release(self, at_s: float) -> None:
        """The driver's release: told at the first look, and when it is another."""
        release = self._topology.driver_release(int(self._resources.of("host", "release")[self.node]))
        if release == self._release:
            return
        now = self._moment(at_s)
        attributes = {
            "what": "nvidia_driver",
            "old": self._release,
            "new": release,
            "where": "",
            "baseline": not self._release,
            "while_away": False,
        }
        self._release = release
        told = NodeEvent(name=EventName.CHANGE, time_ns=now.wall_ns, mono_ns=now.mono_ns, attributes=attributes)
        self._see("versions", Collected(happenings=(told,)))

    # --- for the looks ------------------------------------------------------------------------------------------------
    def _late_s(self, collector: str, at_s: float) -> float:
        """For how long its look has been out, once that is longer than it ever takes."""
        out_s = at_s - self._gpus.driver_hangs_since_s if collector == "gpu" else 0.0
        return out_s if out_s > 3 * PERIODS_S["gpu"] else 0.0

    def _sees(self, collector: str) -> bool:
        return bool(self._resources.of("agent", collector)[self.node])

    def _see(self, collector: str, collected: Collected) -> None:
        if collected.points or collected.happenings:
            self._telemetry.seen.append(Seen(collector=collector, collected=collected))

    def _keep(self, topic: str, key: str, value: bytes, priority: Priority) -> None:
        if priority is not Priority.COPIES:
            self._sent.append((topic, key, value))

    def _moment(self, at_s: float) -> Timestamps:
        return Timestamps(wall_ns=ns(at_s) + self._wall_ns, mono_ns=ns(at_s) + self._mono_ns)
