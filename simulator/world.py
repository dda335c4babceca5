"""The simulation: windows of half a second in which faults change resources, jobs go on, and agents send.

``World.run`` gives messages in the order of their arrival. All randomness comes from the seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..agents.reduction.large_jobs import GroupLists, is_large
from ..telemetry.otlp_redaction import RequestRedactor
from ..telemetry.packed_flush import Packing, TaughtList, groups_of, taught_list
from ..telemetry.records import Block, Event
from ..telemetry.topics import TOPIC_BLOCKS, TOPIC_METRICS
from .allocation import Allocation
from .asked_storage import AskedStorage
from .clock import START_UNIX_NS, generator, ns
from .cluster_topology import Topology
from .fabric import UplinkState, group_rates, uplink_state
from .gateway import Gateway
from .ground_truth import GroundTruth, Truth
from .hardware import Hardware
from .hazards import Hazards
from .heat import Heat
from .held_ranks import RankHere
from .jobs import JobSpec
from .live_steps import Conditions, saves_of, saving_ranks
from .node_agents import NodeClocks
from .pipe import LossyPipe
from .reactions import RANK_BYTES, begin, is_usable, react
from .resources import ParameterChange, Resources, Schedule
from .room import Room
from .running_job import RunningJob
from .sensing import Sensing
from .sensors import PERIODS_S, NodeSensors
from .sent import SentMessage
from .shared_storage import Demand, StorageState, read_s, storage_state
from .simulated_attempt import FLUSH_S
from .site_exporters import SiteExporters
from .startup_services import ask_services
from .step_conditions import conditions_of
from .unsent_events import TOLD_AFTER_S

_NO_RANKS: Mapping[int, RankHere] = {}
#: Texts that the messages of all nodes have in common, and those of each, at most.
_TEXTS, _TEXTS_OF_NODE = 8192, 64
#: Share of the time that a job's rings send.
_TRAFFIC = 0.3


class World:
    def __init__(
        self,
        topology: Topology,
        jobs: Sequence[JobSpec],
        *,
        seed: int,
        scenario: str = "",
        changes: Sequence[ParameterChange] = (),
        truths: Sequence[Truth] = (),
        start_unix_ns: int = START_UNIX_NS,
        senses: bool | Collection[int] = True,
        sensing: Sensing = Sensing.CLIENTS,
        window_s: float = FLUSH_S,
        gateway_s: float = 0.0,
    ) -> None:
        """A cluster with jobs, at time 0. changes, truths: what goes wrong. senses: whether nodes have collectors, or
        which of them; ranks are told of in any case. sensing: whether these see, and whether servers and switches tell.

        window_s: length of a window; agents flush, and collectors look, at most so often. gateway_s: for how long
        messages are held, to go on as one; 0: they come to the bus by themselves. start_unix_ns: the Unix time of time
        0, where its messages go to somebody who lives now.
        """
        self.topology, self.seed, self._window_s = topology, seed, window_s
        self.resources = Resources(topology)
        self.heat = Heat(topology, self.resources)
        self.ledger = GroundTruth(seed=seed, scenario=scenario, start_unix_ns=start_unix_ns, faults=list(truths))
        random, nodes = generator(seed, "clocks"), topology.nodes
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
        self._asked = AskedStorage(nodes)
        #: By node, until when an agent that is told to end speaks.
        self._last_words_s = np.full(nodes, -np.inf)
        self.room = Room(self.resources)
        self._exporters = SiteExporters(topology, self.resources, self._asked) if sensing.has_servers else None
        for collector in () if sensing.has_clients else PERIODS_S:
            self.resources.apply(ParameterChange(at_s=0.0, family="agent", name=collector, value=0.0))
        offsets = random.uniform(0.0, 60.0, nodes)
        requests = RequestRedactor(_TEXTS + _TEXTS_OF_NODE * nodes)
        sensed = range(nodes if senses else 0) if isinstance(senses, bool) else sorted(senses)
        self._sensors = [self._sensors_of(node, float(offsets[node]), requests) for node in sensed]
        self._is_sensed = np.zeros(nodes, bool)
        self._is_sensed[[sensors.node for sensors in self._sensors]] = True
        self.pipe, self._gateway = LossyPipe(self.resources, seed), Gateway(gateway_s)
        for spec in jobs:
            self.resources.add_job(spec.name, spec.mesh.world_size)
        self.jobs = [self._job_of(spec) for spec in jobs]
        self._allocation, self._hazards = Allocation(self.jobs), Hazards(self.resources, seed)
        self._by_name = {job.spec.name: job for job in self.jobs}
        self._true_wall_ns = self.clocks.wall_ns.copy()
        self._group_lists: dict[tuple[str, str], GroupLists] = {}
        self._rates: tuple[object, dict[str, dict[str, NDArray[np.float64]]], UplinkState | None] = (None, {}, None)
        self.start_unix_ns, self.now_s = start_unix_ns, 0.0

    def _sensors_of(self, node: int, offset_s: float, requests: RequestRedactor) -> NodeSensors:
        return NodeSensors(
            node,
            topology=self.topology,
            resources=self.resources,
            heat=self.heat,
            hardware=self.hardware,
            mono_ns=int(self.clocks.mono_ns[node]),
            wall_ns=int(self.clocks.wall_ns[node]),
            offset_s=offset_s,
            operations=self._asked.of_node(node),
            room_bytes=partial(self.room.left, "room_bytes"),
            requests=requests,
            least_period_s=self._window_s if self._window_s > FLUSH_S else 0.0,
        )

    def _job_of(self, spec: JobSpec) -> RunningJob:
        return RunningJob(
            spec,
            seed=self.seed,
            topology=self.topology,
            clocks=self.clocks,
            conditions=partial(self._conditions, spec.name),
            says=partial(self._hear, spec.name),
            ledger=self.ledger,
            is_usable=partial(self._is_usable, spec.name),
            begins=self._begin,
            joins=partial(self.resources.of, "host", "joins"),
            moves=partial(self.resources.of, "program", "moves", spec.name),
            flush_s=self._window_s,
        )

    def expect(self, changes: Sequence[ParameterChange], truths: Sequence[Truth], *, scenario: str) -> None:
        """Adds changes and truths to those known, and names the scenario. Raises ValueError for a
        change in the past.
        """
        if late := [change for change in changes if change.at_s <= self.now_s > 0]:
            raise ValueError(f"it is {self.now_s:g} s, too late for a change at {late[0].at_s:g} s")
        self.planned = (*self.planned, *changes)
        self._schedule.add(changes)
        self.ledger.faults += truths
        self.ledger.scenario = scenario

    # --- time ---------------------------------------------------------------------------------------------------------
    def run(self, until_s: float) -> Iterator[tuple[float, list[SentMessage]]]:
        """Runs window by window: (end of the window, messages that arrive in it, in order).

        Goes on from where it was; the last window may end after ``until_s``.
        """
        while self.now_s < until_s:
            begin_s, end_s = self.now_s, self.now_s + self._window_s
            for change in self._schedule.take_until(end_s):
                for job in self.jobs:
                    job.advance(change.at_s)
                self.resources.apply(change)
                self._set_clocks(change)
                self._end_agents(change)
                self.hardware.changed(change)
                self.room.changed(change)
                for job in self.jobs:
                    react(job, change, self.topology, self.resources)
            self._allocation.make_room(begin_s, end_s)
            for job in self.jobs:
                job.advance(end_s)
            self._hazards.strike(self.jobs, begin_s, end_s)
            self._serve_writes(end_s)
            self.heat.advance(self._window_s, self._busy())
            self._asked.ask(self.jobs, self.resources, self._storage(), self.now_s, self._window_s)
            sent: list[SentMessage] = []
            for job in self.jobs:
                lists = self._group_lists if is_large(job.spec.mesh.world_size) else None
                job.ship(begin_s, end_s, partial(_add, sent, lists, job.spec.name), self._heard_until_s(job))
            self._sense(end_s, sent)
            self._tell_of_servers(end_s, sent)
            self.now_s = end_s
            yield end_s, self._gateway.through(self.pipe.through(sent, end_s), end_s)

    def settle(self) -> GroundTruth:
        """Ends the account of every job now, and returns the truth."""
        for job in self.jobs:
            job.settle(self.now_s)
        return self.ledger

    def _end_agents(self, change: ParameterChange) -> None:
        """An agent that is told to end says so before it does, behind all that it has seen."""
        if (change.family, change.name, change.value) != ("agent", "wanted", 0.0):
            return
        nodes = change.places or range(self.topology.nodes)
        for node in nodes:
            if self._works("host", "agent")[node]:
                self._last_words_s[node] = change.at_s + TOLD_AFTER_S
                for job in self.jobs:
                    job.tell_of_agent(node, change.at_s)

    def _set_clocks(self, change: ParameterChange) -> None:
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

    def _is_usable(self, job: str, node: int) -> bool:
        return is_usable(node, self.topology, self.resources) and self._allocation.is_free(node, job)

    def _begin(self, job: RunningJob) -> None:
        begin(job, self.resources)
        assert job.attempt is not None
        ask_services(job.attempt, self.resources)

    def _serve_writes(self, until_s: float) -> None:
        for job in self.jobs:
            if job.attempt is not None:
                self.room.serve(job.spec.name, job.attempt, self._save_bytes(job), until_s)

    def _save_bytes(self, job: RunningJob) -> float:
        """Of a rank's part of a checkpoint."""
        share = float(self.resources.of("program", "save_bytes", job.spec.name)[0])
        return job.spec.recipe.save_bytes_per_rank * share

    def _tell_of_servers(self, until_s: float, sent: list[SentMessage]) -> None:
        """What servers and switches count, and their exporters' pages."""
        if self._exporters is None:
            return
        _, uplinks = self._traffic()
        pages = self._exporters.advance(until_s, self._window_s, uplinks, self.room.left("room_bytes"))
        for at_s, value in pages:
            at_ns = self.start_unix_ns + ns(at_s)
            sent.append(SentMessage(at_s=at_s, topic=TOPIC_METRICS, key="", node="", value=value(at_ns)))

    def _sense(self, until_s: float, sent: list[SentMessage]) -> None:
        """The collectors of all nodes."""
        lines, words = self.hardware.take_lines(until_s), self.hardware.take_words(until_s)
        ranks, works = self._ranks_by_node(until_s), self._works("host", "agent")
        for sensors in self._sensors:
            node = sensors.node
            if not self.resources.of("agent", "wanted")[node] or not works[node]:
                continue
            sensors.ranks_are(ranks.get(node, _NO_RANKS))
            sensors.tick(
                until_s,
                [line for line in lines if line.node == node] if lines else [],
                [word for word in words if self.topology.node_of_gpu(word.gpu) == node] if words else [],
                partial(_add_bytes, sent, sensors.name),
            )

    def _ranks_by_node(self, at_s: float) -> dict[int, Mapping[int, RankHere]]:
        found: dict[int, Mapping[int, RankHere]] = {}
        for job in self.jobs:
            if job.attempt is not None:
                seen = self._is_sensed[list(job.spec.nodes)]
                for place, here in job.attempt.ranks_here(at_s, job.gpus, seen).items():
                    node = job.spec.nodes[place]
                    if here:  # one job's ranks end while another's are there already
                        found[node] = {**found[node], **here} if node in found else here
        return found

    def _heard_until_s(self, job: RunningJob) -> NDArray[np.float64]:
        """By node of the job, until when its agent speaks: inf, it works; -inf, it does not."""
        until_s = np.where(self.resources.of("agent", "wanted") != 0, np.inf, self._last_words_s)
        return np.where(self._works("host", "agent"), until_s, -np.inf)[list(job.spec.nodes)]

    def _works(self, *families: str) -> NDArray[np.bool_]:
        """By node, whether what is meant is up."""
        found: NDArray[np.bool_] = np.all([self.resources.of(family, "up") != 0 for family in families], axis=0)
        return found

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
        job = self._by_name[name]
        # It reads before or after it saves, not beside it.
        storage = self._storage(but=name)
        saving = self._storage(but=name, savers=job.gpus.size) if job.spec.recipe.saves(step) else storage
        return conditions_of(
            job,
            step,
            seed=self.seed,
            resources=self.resources,
            heat=self.heat,
            storage=storage,
            read_s=read_s(job.spec.recipe.input_bytes, storage, self._storage(quiet=True), self._busy_s(name)),
            save_s=self._save_bytes(job) / saving.save_bytes_per_s,
            rates=self._traffic()[0][name],
        )

    def _traffic(self) -> tuple[dict[str, dict[str, NDArray[np.float64]]], UplinkState]:
        """What the groups of running jobs get, and how uplinks and spines do with it."""
        running = {job.spec.name: job.flows for job in self.jobs if job.is_running}
        sending = {job.spec.name for job in self.jobs if job.attempt and job.attempt.first_step_s <= self.now_s}
        key, state = (self.resources.version, tuple(running), frozenset(sending)), self._rates[2]
        if self._rates[0] != key or state is None:
            traffic = {name: _TRAFFIC if name in sending else 0.0 for name in running}
            state = uplink_state(running, self.resources, self.topology, traffic)
            self._rates = key, group_rates(running, self.resources, state), state
        return self._rates[1], state

    def _busy_s(self, but: str) -> float:
        """How long those of other jobs that save now go on."""
        ends_s = []
        for job in self.jobs:
            for live in job.attempt.steps.live if job.attempt and job.spec.name != but else ():
                saving = saving_ranks([live], self.now_s)
                if saving.any():
                    ends_s.append(float(saves_of(live)[1][saving].max()))
        return max(0.0, max(ends_s, default=0.0) - self.now_s)

    def _storage(self, *, but: str = "", savers: int = 0, quiet: bool = False) -> StorageState:
        """As it is now. but, savers: this job's ranks that save are so many, whatever they do now. quiet: none does."""
        demands = [
            Demand(
                clients=job.spec.mesh.world_size,
                metadata_ops_per_step=float(self.resources.of("program", "metadata_ops", job.spec.name)[0]),
                background_ops=float(self.resources.of("program", "background_ops", job.spec.name)[0]),
                step_s=job.spec.recipe.step_s,
                bytes_per_s=job.spec.recipe.input_bytes / job.spec.recipe.step_s,
                savers=0 if quiet else savers if job.spec.name == but else _savers(job, self.now_s),
            )
            for job in self.jobs
            if job.is_running
        ]
        return storage_state(demands, self.resources, self.topology.gpus)


def _savers(job: RunningJob, now_s: float) -> int:
    return int(saving_ranks(job.attempt.steps.live, now_s).sum()) if job.attempt is not None else 0


def _add(
    sent: list[SentMessage],
    lists: dict[tuple[str, str], GroupLists] | None,
    job: str,
    at_s: float,
    node: str,
    payloads: list[Block | Event],
) -> None:
    """lists: what large jobs' agents have told of groups, by job and node; None: of a job that is none."""
    packing, known = Packing.NONE, frozenset[TaughtList]()
    if lists is not None:
        blocks = [payload for payload in payloads if isinstance(payload, Block)]
        told = lists.setdefault((job, node), GroupLists())
        packing, known = told.packing(blocks, ns(at_s)), frozenset(told.lists)
        if blocks:  # as the encoder does, which may be in another process
            told.lists.add(taught_list(blocks[0].identity.attempt, groups_of(blocks)))
    sent.append(
        SentMessage(
            at_s=at_s, topic=TOPIC_BLOCKS, key=job, node=node, payloads=tuple(payloads), packing=packing, lists=known
        )
    )


def _add_bytes(sent: list[SentMessage], node: str, at_s: float, topic: str, key: str, value: bytes) -> None:
    sent.append(SentMessage(at_s=at_s, topic=topic, key=key, node=node, value=value))
