"""The simulation: windows of half a second in which faults change resources, jobs go on, and agents send.

``World.run`` gives messages in the order of their arrival. All randomness comes from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry.records import Block, Event
from ..telemetry.topics import TOPIC_BLOCKS
from .attempt import FLUSH_S
from .clock import START_UNIX_NS, generator
from .conditions import conditions_of
from .fabric import group_rates
from .hardware import Hardware
from .heat import Heat
from .jobs import JobSpec
from .ledger import Ledger, Truth
from .node_agents import NodeClocks
from .pipe import Pipe
from .reactions import RANK_BYTES, begin, is_usable, react
from .resources import Change, Resources, Schedule
from .running_job import RunningJob
from .sensors import NodeSensors, RankHere
from .steps import Conditions
from .storage import Demand, StorageState, storage_state
from .topology import Topology

#: Share of the time that a job's rings send.
_TRAFFIC = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message on its way to the bus: arrival, topic, key, and what is in it (or its bytes)."""

    at_s: float
    topic: str
    key: str
    node: str
    payloads: tuple[Block | Event, ...] = ()
    value: bytes = b""


class World:
    def __init__(
        self,
        topology: Topology,
        jobs: Sequence[JobSpec],
        *,
        seed: int,
        scenario: str = "",
        changes: Sequence[Change] = (),
        truths: Sequence[Truth] = (),
        start_unix_ns: int = START_UNIX_NS,
        senses: bool = True,
    ) -> None:
        """senses: whether nodes have collectors; ranks are told of in any case.

        start_unix_ns: the time by which its clocks go, where its messages go to somebody who lives now."""
        self.topology, self.seed = topology, seed
        self.resources = Resources(topology)
        self.heat = Heat(topology, self.resources)
        self.ledger = Ledger(seed=seed, scenario=scenario, start_unix_ns=start_unix_ns, faults=list(truths))
        random = generator(seed, "clocks")
        nodes = topology.nodes
        up_s = random.uniform(1e5, 1e6, nodes)
        skew_s = random.normal(0.0, 0.002, nodes)
        self.clocks = NodeClocks(
            mono_ns=np.rint(up_s * 1e9).astype(np.int64),
            wall_ns=start_unix_ns + np.rint(skew_s * 1e9).astype(np.int64),
        )
        #: What faults change, all of it.
        self.planned = tuple(changes)
        self._schedule = Schedule(changes)
        self.hardware = Hardware(topology=topology)
        #: By node: metadata operations that it has asked for so far.
        self._metadata_ops = np.zeros(nodes)
        offsets = random.uniform(0.0, 60.0, nodes)
        self._sensors = [
            NodeSensors(
                node,
                topology=topology,
                resources=self.resources,
                heat=self.heat,
                hardware=self.hardware,
                mono_ns=int(self.clocks.mono_ns[node]),
                wall_ns=int(self.clocks.wall_ns[node]),
                offset_s=float(offsets[node]),
                metadata_ops=partial(self._metadata_ops.item, node),
            )
            for node in range(nodes if senses else 0)
        ]
        self.pipe = Pipe(self.resources, seed)
        for spec in jobs:
            self.resources.add_job(spec.name, spec.mesh.world_size)
        self.jobs = [
            RunningJob(
                spec,
                seed=seed,
                topology=topology,
                clocks=self.clocks,
                conditions=partial(self._conditions, spec.name),
                says=partial(self._hear, spec.name),
                ledger=self.ledger,
                is_usable=partial(is_usable, topology=topology, resources=self.resources),
                begins=partial(begin, resources=self.resources),
                joins=partial(self.resources.of, "host", "joins"),
            )
            for spec in jobs
        ]
        self._by_name = {job.spec.name: job for job in self.jobs}
        self._true_wall_ns = self.clocks.wall_ns.copy()
        self._rates: tuple[object, dict[str, dict[str, NDArray[np.float64]]]] = (None, {})
        self.start_unix_ns, self.now_s = start_unix_ns, 0.0

    # --- time ---------------------------------------------------------------------------------------------------------
    def run(self, until_s: float) -> Iterator[tuple[float, list[Sent]]]:
        """(end of a window, what arrives in it, in order), window by window."""
        while self.now_s < until_s:
            begin_s, end_s = self.now_s, self.now_s + FLUSH_S
            for change in self._schedule.take_until(end_s):
                for job in self.jobs:
                    job.advance(change.at_s)
                self.resources.apply(change)
                self._set_clocks(change)
                self.hardware.changed(change)
                for job in self.jobs:
                    react(job, change, self.topology, self.resources)
            for job in self.jobs:
                job.advance(end_s)
            self.heat.advance(FLUSH_S, self._busy())
            self._ask_storage(FLUSH_S)
            sent: list[Sent] = []
            for job in self.jobs:
                job.ship(begin_s, end_s, partial(_add, sent, job.spec.name), partial(self._is_heard, job))
            self._sense(end_s, sent)
            self.now_s = end_s
            yield end_s, self.pipe.through(sent, end_s)

    def settle(self) -> Ledger:
        """The truth, complete up to now."""
        for job in self.jobs:
            job.settle(self.now_s)
        return self.ledger

    def _set_clocks(self, change: Change) -> None:
        """Nodes whose wall clock is set: whatever is told from then on has the new time."""
        if (change.family, change.name) != ("agent", "clock_s"):
            return
        wall_ns = self._true_wall_ns + np.rint(self.resources.of("agent", "clock_s") * 1e9).astype(np.int64)
        self.clocks.wall_ns[:] = wall_ns
        for sensors in self._sensors:
            sensors.set_clock(int(wall_ns[sensors.node]))
        for job in self.jobs:
            if job.attempt is not None:
                job.attempt.set_clocks(wall_ns[list(job.spec.nodes)])

    def _ask_storage(self, seconds: float) -> None:
        """What the clients' counters will say of it."""
        metadata_s = self._storage().metadata_s
        for job in self.jobs:
            if job.attempt is None:
                continue
            ops, background = (
                float(self.resources.of("program", name, job.spec.name)[0])
                for name in ("metadata_ops", "background_ops")
            )
            each = ops / job.spec.recipe.step_s + background / metadata_s
            running = job.attempt.processes.alive & (job.attempt.processes.started_s < self.now_s)
            np.add.at(self._metadata_ops, job.node_of_rank[running], each * seconds)

    def _sense(self, until_s: float, sent: list[Sent]) -> None:
        """The collectors of all nodes."""
        lines, words = self.hardware.take_lines(until_s), self.hardware.take_words(until_s)
        ranks = self._ranks_by_node(until_s)
        for sensors in self._sensors:
            node = sensors.node
            if not (self.resources.of("host", "up")[node] and self.resources.of("agent", "up")[node]):
                continue
            sensors.ranks_are(ranks.get(node, {}))
            sensors.tick(
                until_s,
                [line for line in lines if line.node == node] if lines else [],
                [word for word in words if self.topology.node_of_gpu(word.gpu) == node] if words else [],
                partial(_add_bytes, sent, sensors.name),
            )

    def _ranks_by_node(self, at_s: float) -> dict[int, dict[int, RankHere]]:
        found: dict[int, dict[int, RankHere]] = {}
        for job in self.jobs:
            if job.attempt is not None:
                for node, here in job.attempt.ranks_here(at_s, job.gpus):
                    found.setdefault(job.spec.nodes[node], {})[here.pid] = here
        return found

    def _is_heard(self, job: RunningJob, node: int, at_s: float) -> bool:
        place = job.spec.nodes[node]
        return bool(self.resources.of("host", "up")[place] and self.resources.of("agent", "up")[place])

    def _busy(self) -> NDArray[np.bool_]:
        busy = np.zeros(self.topology.gpus, bool)
        for job in self.jobs:
            if job.attempt is not None:
                busy[job.gpus[job.attempt.processes.alive]] = True
        return busy

    def _hear(self, job: str, at_s: float, rank: int, what: str, details: dict[str, Any]) -> None:
        """What happens to a process that others than itself tell of."""
        if what == "bad_access":
            self.hardware.bad_access(at_s, int(self._by_name[job].gpus[rank]), int(details["pid"]))
        if what == "oom_kill":
            node = int(self._by_name[job].node_of_rank[rank])
            free = float(self.resources.of("host", "memory_bytes")[node])
            self.hardware.killed(at_s, node, int(details["pid"]), free - 7 * RANK_BYTES)

    # --- what a job meets ---------------------------------------------------------------------------------------------
    def _conditions(self, name: str, step: int) -> Conditions:
        return conditions_of(
            self._by_name[name],
            step,
            seed=self.seed,
            resources=self.resources,
            heat=self.heat,
            storage=self._storage(),
            rates=self._group_rates()[name],
        )

    def _group_rates(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        running = {job.spec.name: job.flows for job in self.jobs if job.is_running}
        key = (self.resources.version, tuple(running))
        if self._rates[0] != key:
            everyone = {job.spec.name: job.flows for job in self.jobs}
            traffic = {name: _TRAFFIC if name in running else 0.0 for name in everyone}
            self._rates = key, group_rates(everyone, self.resources, self.topology, traffic)
        return self._rates[1]

    def _storage(self) -> StorageState:
        demands = [
            Demand(
                clients=job.spec.mesh.world_size,
                metadata_ops_per_step=float(self.resources.of("program", "metadata_ops", job.spec.name)[0]),
                background_ops=float(self.resources.of("program", "background_ops", job.spec.name)[0]),
                step_s=job.spec.recipe.step_s,
                bytes_per_s=job.spec.recipe.input_bytes / job.spec.recipe.step_s,
            )
            for job in self.jobs
            if job.is_running
        ]
        return storage_state(demands, self.resources, self.topology.gpus)


def _add(sent: list[Sent], job: str, at_s: float, node: str, payloads: list[Block | Event]) -> None:
    sent.append(Sent(at_s=at_s, topic=TOPIC_BLOCKS, key=job, node=node, payloads=tuple(payloads)))


def _add_bytes(sent: list[Sent], node: str, at_s: float, topic: str, key: str, value: bytes) -> None:
    sent.append(Sent(at_s=at_s, topic=topic, key=key, node=node, value=value))
