"""When each rank begins and ends each operation of a step: from what it depends on and whom it waits for. Pure.

Times are seconds (float64) of the simulation; ``inf`` is never. All of a stage's ranks are handled at once, one
operation after the other. Whatever stands before a change comes out the same with and without it, so that a step may be
computed again with what has happened since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ..telemetry.vocabulary import Op
from .mesh import Mesh
from .program import Does, ProgramOperation, StepProgram

Floats = NDArray[np.float64]
#: What it takes a host to call c10d.
CALL_S = 20e-6
_CALLED, _BEGAN, _ENDED = range(3)


class Stop(Enum):
    """What of a rank may stand still."""

    HOST = "host"
    INPUT = "input"
    DEVICE = "device"
    LINK = "link"
    NVLINK = "nvlink"
    KERNEL = "kernel"  # of its device: what moves data between devices ends all the same


@dataclass(frozen=True, slots=True, eq=False)
class RankStandstill:
    """By rank, (N,): from when until when it stands still, in seconds of the simulation; (inf, inf) never."""

    since_s: Floats
    until_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    rank: int
    place: int  # in its stage's list
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class StepGiven:
    """What a step meets; arrays by rank, (N,).

    host_s, device_s: when each is ready. kernel_pace: time of its kernels by that of a sound GPU; launch_pace: the same
    of its host. input_s, save_s: what its batch and its part of a checkpoint take. jitter: of each operation's kernels,
    (places, ranks of the stage) by stage. rate: bytes per second of its group, by dimension. latency_s: of one hop.
    differs: it calls with another size. swaps: it takes two groups in the opposite order. evaluation: length of an
    evaluation by that of the program's. runs_ahead: a device does the calls, and the host only launches them.
    """

    host_s: Floats
    device_s: Floats
    kernel_pace: Floats
    launch_pace: Floats
    input_s: Floats
    save_s: Floats
    rate: Mapping[str, Floats]
    latency_s: Mapping[str, float]
    jitter: Sequence[Floats] | None = None
    pauses: Sequence[Pause] = ()
    stops: Mapping[Stop, RankStandstill] = field(default_factory=dict)
    differs: NDArray[np.bool_] | None = None
    swaps: NDArray[np.bool_] | None = None
    evaluation: Floats | None = None
    runs_ahead: bool = True
    launch_share: float = 0.4


@dataclass(frozen=True, kw_only=True, eq=False)
class StageTimes:
    """By stage, (places, ranks of the stage): when the host called (or began), when the work began, when it ended.

    host_s, device_s: (N,) when each is ready for the next step.
    """

    called: Sequence[Floats]
    began: Sequence[Floats]
    ended: Sequence[Floats]
    host_s: Floats
    device_s: Floats


def through(begin: Floats, seconds: Floats | float, stop: RankStandstill | None, ranks: slice) -> Floats:
    """When work of so many seconds ends that stands still from ``stop.since_s`` to ``until_s``; by rank of ``ranks``.

    stop: None for nothing that stands. inf: never.
    """
    end = begin + seconds
    if stop is None:
        return end
    since, until = stop.since_s[ranks], stop.until_s[ranks]
    held = (end > since) & (begin < until)
    if held.any():
        end[held] += until[held] - np.maximum(begin[held], since[held])
    return end


def share_of_bytes(op: Op, size: int) -> float:
    """What each member of a ring sends, by the collective's bytes. size: members of the group."""
    share = (size - 1) / size
    return 2.0 * share if op is Op.ALL_REDUCE else 0.0 if op is Op.BARRIER else share


def transfer_s(operation: ProgramOperation, mesh: Mesh, given: StepGiven, ranks: slice) -> Floats:
    """What a collective takes in seconds once all members have come, by rank of the stage. ranks: those
    of the stage.
    """
    size = mesh.size_of(operation.group)
    hops = np.ceil(np.log2(max(size, 2)))
    fixed_s = given.latency_s[operation.group] * float(hops)
    return fixed_s + operation.nbytes * share_of_bytes(operation.op, size) / given.rate[operation.group][ranks]


def propagate(program: StepProgram, given: StepGiven) -> StageTimes:
    """When each rank calls, begins and ends each operation of one step."""
    mesh = program.mesh
    run = _Run(program, given)
    world: list[tuple[int, int]] = []
    for stage, place in program.order:
        operation = program.stages[stage][place]
        if operation.does is Does.COLLECTIVE and operation.group == "world":
            world.append((stage, place))
            run.arrive(stage, place)
            if len(world) == mesh.pipeline:
                run.end_world(world)
                world = []
        elif operation.does is Does.COLLECTIVE:
            run.arrive(stage, place)
            run.end_collective(stage, place, operation)
        elif operation.does is Does.SEND:
            run.send(stage, place, operation)
        elif operation.does is Does.RECV:
            run.receive(stage, place, operation)
        else:
            run.work(stage, place, operation)
    return StageTimes(
        called=[times[_CALLED] for times in run.times],
        began=[times[_BEGAN] for times in run.times],
        ended=[times[_ENDED] for times in run.times],
        host_s=run.host,
        device_s=run.device,
    )


class _Run:
    def __init__(self, program: StepProgram, given: StepGiven) -> None:
        self._mesh, self._given, self._stages = program.mesh, given, program.stages
        self.host, self.device = given.host_s.copy(), given.device_s.copy()
        size = program.mesh.stage_size
        self.times = [np.empty((3, len(operations), size)) for operations in program.stages]
        self._sent: dict[tuple[int, int], list[Floats]] = {}
        self._came: dict[int, tuple[Floats, Floats]] = {}
        self._pauses: dict[tuple[int, int], list[Pause]] = {}
        for pause in given.pauses:
            self._pauses.setdefault((pause.rank // size, pause.place), []).append(pause)

    def _set(self, stage: int, place: int, called: Floats, began: Floats, ended: Floats) -> None:
        times = self.times[stage]
        times[_CALLED, place], times[_BEGAN, place], times[_ENDED, place] = called, began, ended

    def _call(self, stage: int, place: int, seconds: Floats | float) -> tuple[Floats, Floats]:
        """From when until when the host is about launching this."""
        ranks, stop = self._mesh.stage(stage), self._given.stops.get(Stop.HOST)
        ready = self.host[ranks]
        pauses = self._pauses.get((stage, place), ())
        if pauses or stop is not None:
            ready = ready.copy()
            for pause in pauses:
                ready[pause.rank - ranks.start] += pause.seconds
            ready = through(ready, 0.0, stop, ranks)
        launched = through(ready, seconds, stop, ranks)
        ready = ready.copy()
        self.host[ranks] = launched
        return ready, launched

    def _does(self, stage: int, ended: Floats) -> None:
        """The device is busy until then; and its host with it, where that does the work itself."""
        ranks = self._mesh.stage(stage)
        self.device[ranks] = ended
        if not self._given.runs_ahead:
            self.host[ranks] = ended

    # --- work of one rank ---------------------------------------------------------------------------------------------
    def work(self, stage: int, place: int, operation: ProgramOperation) -> None:
        ranks, given = self._mesh.stage(stage), self._given
        if operation.does in (Does.COMPUTE, Does.EVALUATE):
            work_s: Floats | float = operation.work_s
            if operation.does is Does.EVALUATE and given.evaluation is not None:
                work_s = work_s * given.evaluation[ranks]
            seconds = work_s * given.kernel_pace[ranks]
            if given.jitter is not None:
                seconds = seconds * given.jitter[stage][place]
            launch_s = work_s * given.launch_share * given.launch_pace[ranks] if given.runs_ahead else 0.0
            called, launched = self._call(stage, place, launch_s)
            began = np.maximum(self.device[ranks], called)
            if given.runs_ahead:  # kernels run while those behind them are launched
                stop = _first(given.stops, Stop.DEVICE, Stop.KERNEL)
                ended = np.maximum(through(began, seconds, stop, ranks), launched)
            else:  # the host does a kernel's work
                stop = _first(given.stops, Stop.HOST, Stop.DEVICE, Stop.KERNEL)
                ended = through(began, seconds, stop, ranks)
            self._does(stage, ended)
            self._set(stage, place, called, began, ended)
            return
        began = self.host[ranks].copy()
        if operation.does is Does.SYNC:
            ended = np.maximum(began, self.device[ranks])
        elif operation.does is Does.HOST:
            ended = through(began, operation.work_s * given.launch_pace[ranks], given.stops.get(Stop.HOST), ranks)
        else:
            seconds = given.input_s[ranks] if operation.does is Does.INPUT else given.save_s[ranks]
            ended = through(began, seconds, given.stops.get(Stop.INPUT), ranks)
            ended = through(ended, 0.0, given.stops.get(Stop.HOST), ranks)
        for pause in self._pauses.get((stage, place), ()):
            ended[pause.rank - ranks.start] += pause.seconds
        self.host[ranks] = ended
        if not given.runs_ahead:
            self.device[ranks] = np.maximum(self.device[ranks], ended)
        self._set(stage, place, began, began, ended)

    # --- calls --------------------------------------------------------------------------------------------------------
    def arrive(self, stage: int, place: int) -> None:
        ranks = self._mesh.stage(stage)
        _, called = self._call(stage, place, CALL_S)
        began = np.maximum(called, self.device[ranks])
        stop = self._given.stops.get(Stop.DEVICE)
        if stop is not None:
            began = through(began, 0.0, stop, ranks)
        self._set(stage, place, called, began, began)
        swaps = self._given.swaps
        if swaps is not None and swaps[ranks].any():
            self._swap(stage, place, np.flatnonzero(swaps[ranks]))

    def _swap(self, stage: int, place: int, who: NDArray[np.int64]) -> None:
        """Who calls the next one first (some, not all): that is what he comes to, and this waits until it has ended."""
        operations, (called, began, _) = self._stages[stage], self.times[stage]
        if operations[place].may_swap:
            self._came[stage] = called[place, who], began[place, who]
            called[place, who] += CALL_S if self._given.runs_ahead else np.inf
            began[place, who] = np.inf
        elif place and operations[place - 1].may_swap:
            called[place, who], began[place, who] = self._came[stage]

    def end_collective(self, stage: int, place: int, operation: ProgramOperation) -> None:
        """All leave a collective together: when the last has come, and what was sent has arrived everywhere."""
        ranks, mesh, given = self._mesh.stage(stage), self._mesh, self._given
        last = mesh.reduce(operation.group, self.times[stage][_BEGAN, place], np.maximum)
        seconds = transfer_s(operation, mesh, given, ranks)
        ended = self._carried(last, seconds, ranks, by_network=operation.group != "tp")
        if operation.group == "dp" and mesh.tensor == 1 and Stop.NVLINK in given.stops:
            # Its neighbours in the ring are on the same node, but for the first and the last.
            ended = np.maximum(ended, through(last, seconds, given.stops[Stop.NVLINK], ranks))
        if operation.may_differ and given.differs is not None and given.differs[ranks].any():
            ended = np.where(given.differs[ranks], np.inf, ended)
        if given.stops or given.differs is not None:
            ended = mesh.reduce(operation.group, np.ascontiguousarray(ended), np.maximum)
        self.times[stage][_ENDED, place] = ended
        self._does(stage, self.times[stage][_ENDED, place])

    def end_world(self, places: Sequence[tuple[int, int]]) -> None:
        last = max(float(self.times[stage][_BEGAN, place].max()) for stage, place in places)
        ended = -np.inf
        for stage, place in places:
            ranks, operation = self._mesh.stage(stage), self._stages[stage][place]
            begun = np.full(self._mesh.stage_size, last)
            seconds = transfer_s(operation, self._mesh, self._given, ranks)
            ended = max(ended, float(self._carried(begun, seconds, ranks).max()))
            differs = self._given.differs
            if operation.may_differ and differs is not None and differs[ranks].any():
                ended = np.inf
        for stage, place in places:
            self.times[stage][_ENDED, place] = ended
            self._does(stage, self.times[stage][_ENDED, place])

    def send(self, stage: int, place: int, operation: ProgramOperation) -> None:
        """Goes out by itself: the sender does not wait for the receiver."""
        ranks = self._mesh.stage(stage)
        self.arrive(stage, place)
        began = self.times[stage][_BEGAN, place]
        ended = self._carried(began, operation.nbytes / self._given.rate["pp"][ranks], ranks)
        self._sent.setdefault((stage, operation.peer), []).append(ended)
        self.times[stage][_ENDED, place] = ended

    def receive(self, stage: int, place: int, operation: ProgramOperation) -> None:
        self.arrive(stage, place)
        arrived = self._sent[operation.peer, stage].pop(0)
        ended = np.maximum(self.times[stage][_BEGAN, place], arrived)
        self.times[stage][_ENDED, place] = ended
        self._does(stage, ended)

    def _carried(self, begun: Floats, seconds: Floats, ranks: slice, *, by_network: bool = True) -> Floats:
        """Sent, unless a link or a device of it stands still. by_network: else within the node, by NVLink."""
        ended = through(begun, seconds, self._given.stops.get(Stop.LINK if by_network else Stop.NVLINK), ranks)
        device = self._given.stops.get(Stop.DEVICE)
        if device is not None:
            ended = np.maximum(ended, through(begun, seconds, device, ranks))
        if not self._given.runs_ahead and Stop.HOST in self._given.stops:
            ended = np.maximum(ended, through(begun, seconds, self._given.stops[Stop.HOST], ranks))
        return ended


def _first(stops: Mapping[Stop, RankStandstill], *kinds: Stop) -> RankStandstill | None:
    """By rank, the earliest of them: any holds it up."""
    found: RankStandstill | None = None
    for stop in (stops[kind] for kind in kinds if kind in stops):
        if found is None:
            found = stop
            continue
        first = found.since_s <= stop.since_s
        found = RankStandstill(
            np.where(first, found.since_s, stop.since_s), np.where(first, found.until_s, stop.until_s)
        )
    return found
