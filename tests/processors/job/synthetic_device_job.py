"""A training job on devices that never ran: hosts launch steps ahead, devices do the work, a recorder is looked at.

Each step is a kernel and two collectives. Hosts are held up only by their launch queue; a device begins a collective
when it has done what was launched before, and all leave it together. What it does next waits for that, or only what it
does a step later (``waits_later``). Starts and ends are seen at looks, as on NCCL.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tests.processors.job.synthetic_job import FLUSH_NS, FOREVER, SECOND, WALL_NS, SyntheticJob
from whichrank.telemetry.records import Block, Group, Identity, Record
from whichrank.telemetry.tables import COLLECTIVES, GROUP_PROGRESS, PROGRESS, STEP_GROUPS, STEPS
from whichrank.telemetry.vocabulary import EventFlag, EventName, ExitState, HookState, Level, Op, Phase, ProcessState

CALLS = ((Op.ALL_REDUCE, 4000), (Op.ALL_REDUCE, 4))
TRANSFER_NS = 1_000_000
LAUNCH_NS = 2_000_000


@dataclass(slots=True)
class _Call:
    rank: int
    seq: int
    step: int
    op: Op
    bytes: int
    enqueued: float
    started: float = FOREVER
    done: float = FOREVER


@dataclass(slots=True)
class DeviceJob:
    """Times in ns of one clock, FOREVER where it never comes to that. kernel, host: (rank, step) -> seconds.

    told: whether the recorder tells ends; timing: whether it tells starts. stuck: (step, call) that never ends.
    """

    ranks: int = 4
    steps: int = 40
    step_s: float = 1.0
    ahead: int = 4
    seed: int = 1
    jitter: float = 0.03
    look_s: float = 0.1
    timing: bool = True
    told: bool = True
    kernel: Callable[[int, int], float] = lambda rank, step: 1.0
    host: Callable[[int, int], float] = lambda rank, step: 0.0
    edit: Callable[[int, int, list[tuple[Op, int]]], list[tuple[Op, int]]] = lambda rank, step, calls: calls
    stuck: tuple[int, int] | None = None
    #: (rank, step) -> seconds for which the first collective's data comes later to it than to the others.
    tail: Callable[[int, int], float] = lambda rank, step: 0.0
    #: Collectives are waited for by the collectives of the next step: a kernel waits for nobody.
    waits_later: bool = False
    #: (rank, step) whose looks come upon the ends only: its looks keep time with its steps.
    misses: Callable[[int, int], bool] = lambda rank, step: False
    timeout_s: float = 600.0
    after_s: float = 14.0
    start_s: float = 100.0
    calls: list[list[_Call]] = field(default_factory=list)
    launches: list[list[float]] = field(default_factory=list)

    def run(self) -> DeviceJob:
        start = self.start_s * SECOND
        chance = random.Random(self.seed)
        free, done = [start] * self.ranks, [[start] for _ in range(self.ranks)]
        ended = list(free)  # the newest collective; free: what the next kernel waits for
        self.calls = [[] for _ in range(self.ranks)]
        self.launches = [[start] for _ in range(self.ranks)]
        for step in range(self.steps):
            drawn: list[list[_Call]] = []
            for rank in range(self.ranks):
                room = done[rank][step - self.ahead + 1] if step >= self.ahead else start
                at = max(self.launches[rank][-1] + LAUNCH_NS + self.host(rank, step) * SECOND, room)
                self.launches[rank].append(at)
                plan = self.edit(rank, step, list(CALLS))
                first = len(self.calls[rank]) + 1
                mine = [_Call(rank, first + i, step, op, size, at + i * 1000) for i, (op, size) in enumerate(plan)]
                drawn.append(mine)
                length = self.step_s * self.kernel(rank, step) * max(0.5, chance.gauss(1.0, self.jitter))
                free[rank] = max(free[rank], at) + length * SECOND
                if at != FOREVER:
                    self.calls[rank] += mine
            for place in range(max(len(mine) for mine in drawn)):
                there = [mine[place] for mine in drawn if place < len(mine)]
                for call in there:
                    ready = max(free[call.rank], ended[call.rank]) if self.waits_later else free[call.rank]
                    call.started = ready if call.enqueued != FOREVER else FOREVER
                agree = len(there) == self.ranks and len({(call.op, call.bytes) for call in there}) == 1
                end = max(call.started for call in there) + TRANSFER_NS
                for call in there:
                    call.done = end if agree and (step, place) != self.stuck else FOREVER
                    if place == 0:
                        call.done += self.tail(call.rank, step) * SECOND
                    ended[call.rank] = call.done if call.started != FOREVER else FOREVER
                    if not self.waits_later:
                        free[call.rank] = ended[call.rank]
                    elif place == 0:
                        free[call.rank] = call.started
            for rank in range(self.ranks):
                done[rank].append(free[rank])
        return self

    def records(self) -> list[Record]:
        """Everything one agent would have shipped, in order of arrival."""
        self.run()
        start = int(self.start_s * SECOND)
        ends = [call.done for mine in self.calls for call in mine if call.done != FOREVER]
        ends += [at for mine in self.launches for at in mine if at != FOREVER]
        last = int(max(ends) + self.after_s * SECOND)
        told = SyntheticJob(ranks=self.ranks)
        records = [
            told._event(  # noqa: SLF001
                start,
                EventName.RANK_STARTED,
                rank,
                {"pid": 4000 + rank, "world_size": self.ranks, "launcher_pid": 99},
            )
            for rank in range(self.ranks)
        ]
        before = start
        for now in range(start + FLUSH_NS, last, FLUSH_NS):
            blocks = [(EventName.BLOCK_COLLECTIVES, self._collectives(before, now))]
            groups, steps = self._steps(before, now)
            blocks += [(EventName.BLOCK_STEP_GROUPS, groups), (EventName.BLOCK_STEPS, steps)]
            if (now - start) // FLUSH_NS % 4 == 0:
                blocks.append((EventName.BLOCK_GROUP_PROGRESS, self._group_progress(now)))
                blocks.append((EventName.BLOCK_PROGRESS, self._progress(now)))
            records += [self._block(now, name, rows) for name, rows in blocks if rows.size]
            before = now
        return records

    def _block(self, now: int, name: EventName, rows: np.ndarray) -> Record:
        group = Group(
            uid="a1-world",
            name="world",
            ranks=f"0-{self.ranks - 1}",
            size=self.ranks,
            backend="nccl",
            timeout_s=self.timeout_s,
            is_default=True,
        )
        block = Block(
            name=name,
            identity=Identity(cluster="lab", run="run-1", job="job-1", attempt="a1", world="w", node="node-0", rank=-1),
            rows=rows,
            groups=(group,),
            clock_offset_ns=WALL_NS,
            time_ns=now + WALL_NS,
        )
        return Record(topic="whichrank.blocks", key="job-1", stamp_ns=now + WALL_NS + 5_000_000, payload=block)

    def _seen(self, at: float, rank: int) -> float:
        """When a look of this rank's comes upon what happened then."""
        if at == FOREVER:
            return FOREVER
        look, shift = self.look_s * SECOND, rank * 13_000_000
        return math.ceil((at - shift) / look) * look + shift

    def _ended(self, call: _Call) -> float:
        return self._seen(call.done, call.rank) if self.told else FOREVER

    def _collectives(self, before: int, now: int) -> np.ndarray:
        rows = []
        for mine in self.calls:
            for call in mine:
                done = self._ended(call)
                if not (before < call.enqueued <= now or before < done <= now):
                    continue
                began = self._seen(call.started, call.rank) if self.timing else FOREVER
                # The recorder tells the last start only: of what began and ended between two looks it tells the end.
                began = 0 if began > now or began >= done or self.misses(call.rank, call.step) else began
                rows.append(
                    (
                        call.rank, 0, call.op, EventFlag.POLLED, 6, Phase.BACKWARD, 0, -1, call.seq, call.bytes,
                        call.step, call.enqueued, began, done if done <= now else 0,
                    )
                )  # fmt: skip
        return np.array(rows, COLLECTIVES)

    def _steps(self, before: int, now: int) -> tuple[np.ndarray, np.ndarray]:
        rows, groups = [], []
        for rank, launches in enumerate(self.launches):
            for step, (begin, end) in enumerate(pairwise(launches[1:])):
                if not before < end <= now:
                    continue
                mine = [call for call in self.calls[rank] if call.step == step]
                phases = [int(end - begin) if phase is Phase.BACKWARD else 0 for phase in Phase]
                rows.append((rank, 0, step, begin, end, phases, 0, len(mine), 0.0, 0.0, -1))
                if mine:
                    groups.append((rank, 0, 0, step, len(mine), 0, mine[-1].seq, mine[-1].op, mine[-1].bytes))
        return np.array(groups, STEP_GROUPS), np.array(rows, STEPS)

    def _group_progress(self, now: int) -> np.ndarray:
        rows = []
        for rank, mine in enumerate(self.calls):
            issued = [call for call in mine if call.enqueued <= now]
            ended = [call for call in issued if self._ended(call) <= now]
            begun = [call for call in issued if self._seen(call.started, rank) <= now]
            moved = max((self._ended(call) for call in ended), default=0.0)
            still = issued[len(ended) :]
            since = max(still[0].enqueued, moved) if still else now
            if self.timing and len(begun) > len(ended):
                since = self._seen(still[0].started, rank)
            newest = issued[-1] if issued else None
            told = self.told and bool(ended)
            rows.append(
                (
                    rank, 0, newest.op if newest else 0, 0, 6, 0, 0, -1, newest.bytes if newest else 0, len(issued),
                    len(begun) if self.timing and begun else -1, len(ended) if told else -1, 0, 0,
                    len(still) if told else -1, now - since if told else 0,
                    now - max(moved, newest.enqueued if newest else self.start_s * SECOND),
                )
            )  # fmt: skip
        return np.array(rows, GROUP_PROGRESS)

    def _progress(self, now: int) -> np.ndarray:
        hooks = HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED
        rows = []
        for rank, launches in enumerate(self.launches):
            begun = [at for at in launches[1:] if at <= now]
            since = begun[-1] if begun else launches[0]
            rows.append(
                (
                    rank, 4000 + rank, max(len(begun) - 1, 0), Phase.BACKWARD if begun else Phase.INIT,
                    ProcessState.SLEEPING, Level.EVENTS, ExitState.RUNNING, hooks, now, now - since, now - since,
                    50_000_000, -1, 0, 0, -1, 0,
                )
            )  # fmt: skip
        return np.array(rows, PROGRESS)
