"""What the instrumentation of each rank writes into its ring: ring events of a step, and how the rank stands at a time.

The same events as ``instrumentation`` writes. On a device nobody stamps starts and ends: a thread looks ten times a
second at the flight recorder's status, and they bear the time of its look (``instrumentation/collectives_status.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..agents.rings.ring_events import EVENT
from ..telemetry.vocabulary import EventFlag, EventKind, StepFlag
from .clock import NEVER, to_ns
from .program import Does, StepProgram
from .propagate import StageTimes

Ints = NDArray[np.int64]
LOOK_NS = 100_000_000
BFLOAT16 = 13
#: A blocking call of the host calls wait() so long after it was made.
_WAIT_AFTER_NS = 10_000
_P2P, _POLLED = int(EventFlag.P2P), int(EventFlag.POLLED)
_STEP_FLAGS = int(StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM)


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call of a stage's step. order: its number, from 1, among those of its group row and sort."""

    place: int
    row: int
    is_p2p: bool
    order: int
    op: int
    nbytes: int
    phase: int
    peer: int


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """What a stage's ranks record in a step of this program."""

    calls: tuple[Call, ...]
    #: (place, phase) where the phase changes.
    phases: tuple[tuple[int, int], ...]
    #: Columns of events: kind, phase or call.
    columns: tuple[tuple[int, int], ...]
    #: By (row, sort): calls of a step.
    counts: dict[tuple[int, bool], int]
    on_device: bool

    @classmethod
    def of(cls, program: StepProgram, stage: int, *, on_device: bool, steps_only: bool = False) -> StagePlan:
        """What ranks of the stage record. on_device: devices do the calls, so starts are told, and no ends of P2P.

        steps_only: calls are not recorded.
        """
        rows = {name: row for row, name in enumerate(program.mesh.dimensions)}
        calls: list[Call] = []
        phases: list[tuple[int, int]] = []
        counts: dict[tuple[int, bool], int] = {}
        columns: list[tuple[int, int]] = []
        for place, operation in enumerate(program.stages[stage]):
            if not phases or phases[-1][1] != int(operation.phase):
                columns.append((int(EventKind.PHASE), len(phases)))
                phases.append((place, int(operation.phase)))
            if operation.is_recorded and not steps_only:
                key = rows[operation.group], operation.does is not Does.COLLECTIVE
                counts[key] = counts.get(key, 0) + 1
                columns.append((int(EventKind.ENQUEUE), len(calls)))
                calls.append(
                    Call(place, *key, counts[key], int(operation.op), operation.nbytes, int(operation.phase),
                         operation.peer)
                )  # fmt: skip
        columns.append((int(EventKind.STEP), 0))
        told = [number for number, call in enumerate(calls) if not (on_device and call.is_p2p)]
        if on_device:
            columns += [(int(EventKind.STARTED), number) for number in told]
        columns += [(int(EventKind.COMPLETE), number) for number in told]
        return cls(calls=tuple(calls), phases=tuple(phases), columns=tuple(columns), counts=counts, on_device=on_device)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRecording:
    """A step of a stage's ranks, in nanoseconds of the simulation; NEVER is never. (…, ranks) each.

    before: by (row, sort), how many calls were made before this step. started_before: by row, the newest call that was
    seen to have been started before it. since: when the phase before it began.
    """

    step: int
    plan: StagePlan
    begin: Ints
    end: Ints
    phase_at: Ints
    called: Ints
    started: Ints
    done: Ints
    nbytes: Ints | None
    before: dict[tuple[int, bool], int]
    started_before: dict[int, Ints]
    phase_before: int
    since: Ints
    loss: NDArray[np.float64]
    norm: NDArray[np.float64]

    @property
    def last(self) -> int:
        """The time of its last event, in ns of the simulation; NEVER where one never comes."""
        latest = int(self.end.max())
        return max(latest, int(self.done[self.told].max())) if self.called.size and self.told.any() else latest

    @property
    def told(self) -> NDArray[np.bool_]:
        """By call of the plan, whether its end is told."""
        return np.array([not (self.plan.on_device and call.is_p2p) for call in self.plan.calls], bool)

    def after(self) -> dict[tuple[int, bool], int]:
        """By (row, whether P2P), how many calls were made once this step is over."""
        counts = dict(self.before)
        for key, count in self.plan.counts.items():
            counts[key] = counts.get(key, 0) + count
        return counts

    def started_after(self) -> dict[int, Ints]:
        """By row, for each rank the newest call that was seen to have been started by then; -1: none."""
        newest = dict(self.started_before)
        for number, call in enumerate(self.plan.calls):
            if self.plan.on_device and not call.is_p2p:
                sequence = self.before.get((call.row, False), 0) + call.order
                known = newest.get(call.row)
                known = np.full(self.begin.size, -1) if known is None else known
                newest[call.row] = np.where(self.started[number] < NEVER, sequence, known)
        return newest

    def times(self) -> Ints:
        """By (column of the plan, rank), when that event comes, in ns of the simulation."""
        sources = {
            int(EventKind.PHASE): self.phase_at,
            int(EventKind.ENQUEUE): self.called,
            int(EventKind.STARTED): self.started,
            int(EventKind.COMPLETE): self.done,
        }
        out = np.empty((len(self.plan.columns), self.begin.size), np.int64)
        for place, (kind, number) in enumerate(self.plan.columns):
            out[place] = self.end if kind == int(EventKind.STEP) else sources[kind][number]
        return out


def record(
    times: StageTimes,
    stage: int,
    plan: StagePlan,
    *,
    step: int,
    begin_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    look_offset_ns: Ints,
    silent_from: Ints,
    before: dict[tuple[int, bool], int],
    started_before: dict[int, Ints],
    phase_before: int,
    since: Ints,
    loss: NDArray[np.float64],
    norm: NDArray[np.float64],
    nbytes: Ints | None = None,
) -> StepRecording:
    """The recording of a step of one stage's ranks; arrays by rank of the stage.

    look_offset_ns: of its looks at the status; silent_from: its process writes nothing from then on. before,
    started_before: as ``StepRecording`` has them. nbytes: (calls, ranks), where they differ from the plan's.
    """
    places = [call.place for call in plan.calls]
    called = to_ns(times.called[stage][places])
    began, done = to_ns(times.began[stage][places]), to_ns(times.ended[stage][places])
    if plan.on_device:
        began, done = _looked(began, look_offset_ns), _looked(done, look_offset_ns)
        started = np.where(began < done, began, NEVER)
    else:
        started = np.full(called.shape, NEVER)
    phase_at = to_ns(times.called[stage][[place for place, _ in plan.phases]])
    end = to_ns(end_s)
    for values in (called, started, done, phase_at, end):
        values[values >= silent_from] = NEVER
    return StepRecording(
        step=step,
        plan=plan,
        begin=to_ns(begin_s),
        end=end,
        phase_at=phase_at,
        called=called,
        started=started,
        done=done,
        nbytes=nbytes,
        before=before,
        started_before=started_before,
        phase_before=phase_before,
        since=since,
        loss=loss,
        norm=norm,
    )


def _looked(time_ns: Ints, offset_ns: Ints) -> Ints:
    """When the next look sees it."""
    seen = -(-(time_ns - offset_ns) // LOOK_NS) * LOOK_NS + offset_ns
    return np.where(time_ns >= NEVER, NEVER, seen)


def events_between(
    recording: StepRecording, after: Ints, until: Ints, *, clock_ns: Ints, slots: NDArray[np.uint16]
) -> tuple[NDArray[np.void], NDArray[np.uint16]]:
    """Ring events later than ``after`` and up to ``until`` (by rank, ns of the simulation), and the ring's slot of
    each.

    Per ring contiguous: what the host does in its order, then what is told of its calls' starts and ends. clock_ns: by
    rank, to be added for the node's monotonic clock. slots: by rank.
    """
    plan = recording.plan
    times = recording.times()
    rank, column = np.nonzero(((times > after) & (times <= until)).T)
    events: NDArray[np.void] = np.zeros(rank.size, EVENT)
    if not rank.size:
        return events, slots[:0]
    offset = clock_ns[rank]
    at = times[column, rank]
    kinds = np.array([kind for kind, _ in plan.columns])
    numbers = np.array([number for _, number in plan.columns])
    kind, number = kinds[column], numbers[column]
    events["kind"], events["time_ns"] = kind, at + offset
    events["step"] = recording.step
    _fill_calls(events, recording, rank, number, kind, offset)
    _fill_phases(events, recording, rank, number, kind, offset)
    chosen = kind == int(EventKind.STEP)
    who = rank[chosen]
    events["seq"][chosen], events["flags"][chosen] = recording.step, _STEP_FLAGS
    events["phase"][chosen] = plan.phases[-1][1]
    events["step"][chosen] = recording.begin[who] + offset[chosen]
    events["value"][chosen] = recording.loss[who].view(np.uint64)
    events["extra"][chosen] = recording.norm[who].view(np.uint64)
    events["group"][chosen] = 1  # it never waited for a core
    return events, slots[rank]


def _fill_calls(
    events: NDArray[np.void], recording: StepRecording, rank: Ints, number: Ints, kind: Ints, offset: Ints
) -> None:
    calls = recording.plan.calls
    if not calls:
        return
    chosen = (kind == int(EventKind.ENQUEUE)) | (kind == int(EventKind.STARTED)) | (kind == int(EventKind.COMPLETE))
    which, who = number[chosen], rank[chosen]
    first = [recording.before.get((call.row, call.is_p2p), 0) for call in calls]
    sequence = np.array([begin + call.order for begin, call in zip(first, calls, strict=True)])
    flags = np.array([_P2P if call.is_p2p else 0 for call in calls], np.uint8)
    events["group"][chosen] = np.array([call.row for call in calls])[which]
    events["seq"][chosen] = sequence[which]
    events["phase"][chosen] = np.array([call.phase for call in calls])[which]
    called = recording.called[which, who] + offset[chosen]
    is_enqueue = kind[chosen] == int(EventKind.ENQUEUE)
    sizes = np.array([call.nbytes for call in calls])
    nbytes = sizes[which] if recording.nbytes is None else recording.nbytes[which, who]
    events["value"][chosen] = np.where(is_enqueue, nbytes, called)
    peers = np.array([call.peer + 1 for call in calls])
    is_end = kind[chosen] == int(EventKind.COMPLETE)
    waits = is_end & (not recording.plan.on_device)
    events["extra"][chosen] = np.where(is_enqueue, peers[which], np.where(waits, called + _WAIT_AFTER_NS, 0))
    polled = np.where(is_end & recording.plan.on_device, _POLLED, 0)
    events["flags"][chosen] = flags[which] | polled
    events["op"][chosen] = np.where(is_enqueue, np.array([call.op for call in calls])[which], 0)
    events["dtype"][chosen] = np.where(is_enqueue, BFLOAT16, 0)


def _fill_phases(
    events: NDArray[np.void], recording: StepRecording, rank: Ints, number: Ints, kind: Ints, offset: Ints
) -> None:
    chosen = kind == int(EventKind.PHASE)
    which, who = number[chosen], rank[chosen]
    words = np.array([phase for _, phase in recording.plan.phases])
    ended = np.concatenate(([recording.phase_before], words[:-1]))
    begins = np.concatenate((recording.since[None], recording.phase_at[:-1]))
    events["phase"][chosen] = words[which]
    events["seq"][chosen] = ended[which]
    events["value"][chosen] = begins[which, who] + offset[chosen]
