"""A training job that never ran: ranks as little programs on one clock, an agent's view of them, faults by mechanism.

A rank that sleeps arrives late, so everybody's waits follow; nothing is written into the records by hand. The agent
flushes each 250 ms and looks at progress each second, as the real one does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whichrank.diagnosis.goodput.interval import Interval, of_body
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.records import Block, Event, Finding, Group, Identity, Record
from whichrank.telemetry.ring_layout import format_ranks
from whichrank.telemetry.tables import COLLECTIVES, GROUP_PROGRESS, PROGRESS, STEP_GROUPS, STEPS
from whichrank.telemetry.vocabulary import (
    EventFlag,
    EventName,
    ExitState,
    HookState,
    Level,
    Op,
    Phase,
    ProcessState,
    StepFlag,
)

SECOND = 1_000_000_000
FLUSH_NS = SECOND // 4
WALL_NS = 1_790_000_000 * SECOND
NEVER_NS = 1 << 60
#: As a delay: the rank does not come back.
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Call:
    """A collective (peer: root) or, with Op.SEND and Op.RECV, a P2P call (peer: place in the group)."""

    group: str
    op: Op = Op.ALL_REDUCE
    bytes: int = 4
    asynchronous: bool = False
    peer: int = -1
    dtype: int = 6


@dataclass(frozen=True, slots=True)
class Enter:
    phase: Phase


@dataclass(frozen=True, slots=True)
class Work:
    seconds: float


@dataclass(frozen=True, slots=True)
class WaitAll:
    """Waits in C++ for every asynchronous call so far: the end is seen by polling only."""


@dataclass(frozen=True, slots=True)
class WaitEarlier:
    """Waits in Python for the asynchronous calls of earlier steps. As the recorder has it: where such a call is still
    open, since when it was waited for and its exact end; else only that it had ended by some look."""


Action = Call | Enter | Work | WaitAll | WaitEarlier
Program = Callable[["SyntheticJob", int, int], list[Action]]


def ddp_step(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """Data, forward, a sync all_reduce of the loss, backward with three asynchronous buckets, optimizer."""
    second = job.step_s
    return [
        Enter(Phase.DATA),
        Work(0.1 * second),
        Enter(Phase.FORWARD),
        Work(0.3 * second),
        Enter(Phase.BACKWARD),
        *[
            action
            for size in (4000, 8000, 1200)
            for action in (Work(0.15 * second), Call("world", bytes=size, asynchronous=True))
        ],
        WaitAll(),
        Enter(Phase.OPTIMIZER),
        Work(0.1 * second),
        Enter(Phase.OTHER),
        Call("world", bytes=4),
        Work(0.05 * second),
    ]


#: rank, step, end, time per phase, loss, gradient norm
Finished = tuple[int, int, int, dict[Phase, int], float, float]


@dataclass(slots=True)
class _Row:
    rank: int
    call: Call
    seq: int
    step: int
    phase: Phase
    enqueued_ns: int
    done_ns: int = 0
    waited_ns: int = 0  # when its rank began to wait for it from Python, 0 never


@dataclass(slots=True)
class _Rank:
    rank: int
    clock: int = 0
    step: int = 0
    phase: Phase = Phase.INIT
    phases: list[tuple[int, Phase, int]] = field(default_factory=list)  # (since, phase, step)
    phase_ns: dict[Phase, int] = field(default_factory=dict)
    rows: list[_Row] = field(default_factory=list)
    pending: list[_Row] = field(default_factory=list)
    seqs: dict[tuple[str, bool], int] = field(default_factory=dict)
    ended_ns: int = NEVER_NS


@dataclass(slots=True)
class SyntheticJob:
    """Defaults make a clean DDP job. Every random draw comes from ``seed``.

    delays: (rank, step, phase) -> extra seconds of own work, spent where the phase begins; FOREVER = hangs.
    edit: (rank, step, actions) -> actions, for skipped, swapped or wrong calls.
    events: (seconds, name, rank, attributes), at that time of the job. at_work: ranks whose
    processes always move; in_io: that stand in I/O wherever they stand still.
    """

    ranks: int = 4
    steps: int = 60
    step_s: float = 0.2
    jitter: float = 0.03
    seed: int = 1
    at_work: frozenset[int] = frozenset()
    in_io: frozenset[int] = frozenset()
    program: Program = ddp_step
    groups: dict[str, list[int]] = field(default_factory=dict)
    delays: list[Callable[[int, int, Phase], float]] = field(default_factory=list)
    edit: Callable[[int, int, list[Action]], list[Action]] | None = None
    slow: Callable[[int, int], float] = lambda rank, step: 1.0
    numbers: Callable[[int, int], tuple[float, float]] = lambda rank, step: (1.0 / (step + 1), 2.0)
    events: list[tuple[float, EventName, int, dict[str, Any]]] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)  # rank -> seconds at which its process is gone
    states: Callable[[int, float], ProcessState] = lambda rank, at: ProcessState.SLEEPING
    heartbeat_s: Callable[[int, float], float] = lambda rank, at: 0.05
    #: (rank, seconds): what its instrumentation records then. Calls and steps are counted at every level.
    level: Callable[[int, float], Level] = lambda rank, at: Level.EVENTS
    #: Groups whose calls nobody sees: exchange through shared memory, files or flags. The last of ``groups``.
    unseen: tuple[str, ...] = ()
    #: (rank, round of the program): its calls are made, but no step of its own ends, as under DDP's ``join``.
    shadows: Callable[[int, int], bool] = lambda rank, step: False
    starved_ns: Callable[[int, int], int] = lambda rank, step: 0
    transfer_s: Callable[[int], float] = lambda step: 0.001
    attempt: str = "a1"
    after_s: float = 8.0
    start_s: float = 100.0
    timeout_s: float = 1800.0
    world_size: int | None = None
    absent: tuple[int, ...] = ()
    node_of: Callable[[int], str] = lambda rank: "node-0"
    clock_skew_ns: Callable[[str], int] = lambda node: 0
    people: list[_Rank] = field(default_factory=list)
    first_unsent: dict[int, int] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)

    # --- the ranks ----------------------------------------------------------------------------------------------------
    def run(self) -> SyntheticJob:
        """Lets the programs run until they end or nobody can move."""
        self.groups = {"world": list(range(self.ranks)), **self.groups}
        start = int(self.start_s * SECOND)
        self.people = [_Rank(rank=rank, clock=start, phases=[(start, Phase.INIT, 0)]) for rank in range(self.ranks)]
        for rank, at in self.ends.items():
            self.people[rank].ended_ns = start + int(at * SECOND)
        instances: dict[tuple[Any, ...], list[_Row]] = {}
        flows = {
            rank.rank: self._flow(rank, random.Random(self.seed * 1000 + rank.rank), instances)
            for rank in self.people
            if rank.rank not in self.absent
        }
        waiting: dict[int, list[_Row]] = {rank: [] for rank in flows}
        moved = True
        while moved and flows:
            moved = False
            for rank in list(flows):
                if any(self._completion(row, instances) is None for row in waiting[rank]):
                    continue
                me = self.people[rank]
                ends = [self._completion(row, instances) or 0 for row in waiting[rank]]
                me.clock = max([me.clock, *ends])
                moved = True
                try:
                    waiting[rank] = next(flows[rank])
                except StopIteration:
                    del flows[rank]
        for person in self.people:
            for row in person.rows:
                row.done_ns = self._completion(row, instances) or 0
        return self

    def _flow(
        self, me: _Rank, chance: random.Random, instances: dict[tuple[Any, ...], list[_Row]]
    ) -> Iterator[list[_Row]]:
        own = 0
        for step in range(self.steps):
            me.step = own
            actions = self.program(self, me.rank, step)
            if self.edit:
                actions = self.edit(me.rank, step, actions)
            factor = self.slow(me.rank, step) * max(0.5, chance.gauss(1.0, self.jitter))
            for action in actions:
                if me.clock >= me.ended_ns:
                    return
                if isinstance(action, Enter):
                    self._enter(me, action.phase)
                    extra = sum(delay(me.rank, step, action.phase) for delay in self.delays)
                    if extra == FOREVER:
                        return
                    me.clock += int(extra * SECOND)
                elif isinstance(action, Work):
                    me.clock += int(action.seconds * factor * SECOND)
                elif isinstance(action, WaitAll):
                    pending, me.pending = me.pending, []
                    yield pending
                elif isinstance(action, WaitEarlier):
                    due = [row for row in me.pending if row.step < me.step]
                    me.pending = [row for row in me.pending if row.step == me.step]
                    for row in due:
                        row.waited_ns = me.clock
                    yield due
                else:
                    row = self._enqueue(me, action, instances)
                    if me.clock >= me.ended_ns:
                        return
                    if action.asynchronous:
                        me.pending.append(row)
                    else:
                        yield [row]
            if not self.shadows(me.rank, step):
                self._end_step(me, own)
                own += 1

    def _enter(self, me: _Rank, phase: Phase) -> None:
        since, old, _ = me.phases[-1]
        me.phase_ns[old] = me.phase_ns.get(old, 0) + me.clock - since
        me.phase = phase
        me.phases.append((me.clock, phase, me.step))

    def _end_step(self, me: _Rank, step: int) -> None:
        self._enter(me, me.phase)
        me.phases[-1] = (me.clock, me.phase, step + 1)
        loss, norm = self.numbers(me.rank, step)
        self.finished.append((me.rank, step, me.clock, dict(me.phase_ns), loss, norm))
        me.phase_ns.clear()

    def _enqueue(self, me: _Rank, call: Call, instances: dict[tuple[Any, ...], list[_Row]]) -> _Row:
        p2p = call.op in (Op.SEND, Op.RECV)
        seq = me.seqs[(call.group, p2p)] = me.seqs.get((call.group, p2p), 0) + 1
        row = _Row(rank=me.rank, call=call, seq=seq, step=me.step, phase=me.phase, enqueued_ns=me.clock)
        me.rows.append(row)
        if me.clock < me.ended_ns:
            instances.setdefault(self._instance(row), []).append(row)
        return row

    def _instance(self, row: _Row) -> tuple[Any, ...]:
        members = self.groups[row.call.group]
        if row.call.op not in (Op.SEND, Op.RECV):
            return (row.call.group, row.seq)
        other = members[row.call.peer]
        pair = (row.rank, other) if row.call.op is Op.SEND else (other, row.rank)
        before = sum(
            1
            for earlier in self.people[row.rank].rows
            if earlier.call.op is row.call.op
            and earlier.call.peer == row.call.peer
            and earlier is not row
            and earlier.enqueued_ns <= row.enqueued_ns
            and earlier.seq < row.seq
        )
        return (row.call.group, "p2p", pair, before)

    def _completion(self, row: _Row, instances: Mapping[tuple[Any, ...], list[_Row]]) -> int | None:
        """When the last member arrived, and a little; None while one is missing, or for ever if they disagree."""
        there = instances.get(self._instance(row), [])
        p2p = row.call.op in (Op.SEND, Op.RECV)
        if len(there) < (2 if p2p else len(self.groups[row.call.group])):
            return None
        if not p2p and len({(other.call.op, other.call.bytes) for other in there}) > 1:
            return None
        last = max(other.enqueued_ns for other in there)
        if any(last >= self.people[other.rank].ended_ns for other in there):
            return None
        return last + int(self.transfer_s(row.step) * SECOND)

    # --- the agent ----------------------------------------------------------------------------------------------------
    def records(self) -> list[Record]:
        """Everything an agent per node would have shipped, in order of arrival."""
        if not self.people:
            self.run()
        present = [person for person in self.people if person.rank not in self.absent]
        start = int(self.start_s * SECOND)
        end = max(min(person.clock, person.ended_ns) for person in present) + int(self.after_s * SECOND)
        records: list[Record] = []
        for person in present:
            attributes = {
                "pid": 4000 + person.rank,
                "world_size": self.world_size or self.ranks,
                "local_rank": person.rank,
            }
            records.append(self._event(start, EventName.RANK_STARTED, person.rank, attributes))
        happenings = sorted(
            ((start + int(at * SECOND), name, rank, values) for at, name, rank, values in self.events),
            key=lambda item: item[0],
        )
        sent_open: set[tuple[int, int]] = set()
        sent_done: set[tuple[int, int]] = set()
        steps = sorted(self.finished, key=lambda item: item[2])
        times = sorted({*range(start + FLUSH_NS, end + FLUSH_NS, FLUSH_NS), *(item[0] for item in happenings)})
        for now in times:
            for node in sorted({self.node_of(person.rank) for person in present}):
                here = [person for person in present if self.node_of(person.rank) == node]
                rows = self._collectives(here, now, sent_open, sent_done)
                if rows.size:
                    records.append(self._block(now, EventName.BLOCK_COLLECTIVES, node, rows))
                ready = [item for item in steps if item[2] <= now and self.node_of(item[0]) == node]
                if ready:
                    rows, groups = self._steps(ready)
                    records.append(self._block(now, EventName.BLOCK_STEP_GROUPS, node, groups))
                    records.append(self._block(now, EventName.BLOCK_STEPS, node, rows))
                    steps = [item for item in steps if item not in ready]
                if (now - start) // FLUSH_NS % 4 == 0 or any(item[0] == now for item in happenings):
                    rows, groups = self._progress(here, now)
                    if rows.size:
                        records.append(self._block(now, EventName.BLOCK_GROUP_PROGRESS, node, groups))
                        records.append(self._block(now, EventName.BLOCK_PROGRESS, node, rows))
            for at, name, rank, values in happenings:
                if at == now:
                    records.append(self._event(at, name, rank, values))
        return records

    def group_list(self) -> tuple[Group, ...]:
        return tuple(
            Group(
                uid=f"{self.attempt}-{name}",
                name=name,
                ranks=format_ranks(members),
                size=len(members),
                backend="gloo",
                timeout_s=self.timeout_s,
                is_default=name == "world",
            )
            for name, members in self._seen().items()
        )

    def _seen(self) -> dict[str, list[int]]:
        return {name: members for name, members in self.groups.items() if name not in self.unseen}

    def _identity(self, node: str, rank: int = -1) -> Identity:
        return Identity(cluster="lab", run="run-1", job="job-1", attempt=self.attempt, world="w", node=node, rank=rank)

    def _block(self, now: int, name: EventName, node: str, rows: np.ndarray) -> Record:
        skew = self.clock_skew_ns(node)
        for column in ("enqueued_ns", "started_ns", "done_ns", "begin_ns", "end_ns", "read_ns"):
            if column in (rows.dtype.names or ()):
                rows[column] = np.where(rows[column] > 0, rows[column] + skew, 0)
        block = Block(
            name=name,
            identity=self._identity(node),
            rows=rows,
            groups=self.group_list(),
            clock_offset_ns=WALL_NS,
            time_ns=now + WALL_NS + skew,
        )
        return Record(topic="whichrank.blocks", key="job-1", stamp_ns=now + WALL_NS + 5_000_000, payload=block)

    def _event(self, now: int, name: EventName, rank: int, values: Mapping[str, Any]) -> Record:
        node = self.node_of(rank)
        mono_ns = now + self.clock_skew_ns(node)
        identity = self._identity(node, rank)
        event = Event(name=name, identity=identity, time_ns=mono_ns + WALL_NS, mono_ns=mono_ns, attributes=values)
        return Record(topic="whichrank.blocks", key="job-1", stamp_ns=now + WALL_NS + 5_000_000, payload=event)

    def _collectives(
        self, people: Sequence[_Rank], now: int, sent_open: set[tuple[int, int]], sent_done: set[tuple[int, int]]
    ) -> np.ndarray:
        names = list(self.groups)
        out: list[tuple[Any, ...]] = []
        for person in people:
            first = self.first_unsent.get(person.rank, 0)
            while first < len(person.rows) and (person.rank, first) in sent_done:
                first += 1
            self.first_unsent[person.rank] = first
            for index in range(first, len(person.rows)):
                row, place = person.rows[index], (person.rank, index)
                if row.enqueued_ns > min(now, person.ended_ns - 1):
                    break
                if place in sent_done or row.call.group in self.unseen or not self._records(person.rank, row):
                    continue
                done = 0 < row.done_ns <= now
                if not done and place in sent_open:
                    continue
                (sent_done if done else sent_open).add(place)
                flags = EventFlag.P2P if row.call.op in (Op.SEND, Op.RECV) else EventFlag.NONE
                exact = 0 < row.waited_ns < row.done_ns
                if row.call.asynchronous and not exact:
                    flags |= EventFlag.POLLED
                out.append(
                    (
                        person.rank, names.index(row.call.group), row.call.op, flags, row.call.dtype, row.phase, 0,
                        row.call.peer, row.seq, row.call.bytes, row.step, row.enqueued_ns,
                        row.waited_ns if exact and done else 0,
                        row.done_ns + (50_000_000 if row.call.asynchronous and not exact else 0) if done else 0,
                    )
                )  # fmt: skip
        return np.array(out, COLLECTIVES)

    def _level_at(self, rank: int, time_ns: int) -> Level:
        return self.level(rank, time_ns / SECOND - self.start_s)

    def _records(self, rank: int, row: _Row) -> bool:
        return self._level_at(rank, row.enqueued_ns) is Level.EVENTS

    def _steps(
        self, ready: Iterable[tuple[int, int, int, dict[Phase, int], float, float]]
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, groups = [], []
        for rank, step, end, phase_ns, loss, norm in ready:
            phases = [phase_ns.get(phase, 0) for phase in Phase]
            mine = [row for row in self.people[rank].rows if row.step == step]
            flags = StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM
            begin, starved_ns = end - sum(phases), self.starved_ns(rank, step)
            if self._level_at(rank, end) is Level.OFF:
                continue
            looks = np.linspace(begin, end, 20).astype(int).tolist()
            partly = any(self._level_at(rank, look) is not Level.EVENTS for look in looks)
            if partly:
                flags |= StepFlag.PARTLY_SEEN
            mine = [row for row in mine if self._records(rank, row)]
            calls_ns = sum(max(0, row.done_ns - row.enqueued_ns) for row in mine)
            rows.append((rank, flags, step, begin, end, phases, calls_ns, len(mine), loss, norm, starved_ns))
            for index, name in enumerate(self._seen()):
                used = [row for row in mine if row.call.group == name and row.call.op not in (Op.SEND, Op.RECV)]
                if used and not partly:
                    last = used[-1]
                    groups.append((rank, index, 0, step, len(used), 0, last.seq, last.call.op, last.call.bytes))
        return np.array(rows, STEPS), np.array(groups, STEP_GROUPS)

    def _progress(self, people: Sequence[_Rank], now: int) -> tuple[np.ndarray, np.ndarray]:
        rows, groups = [], []
        start = int(self.start_s * SECOND)
        hooks = HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED
        for person in people:
            if now >= person.ended_ns:
                continue
            since, phase, step = next(item for item in reversed(person.phases) if item[0] <= now)
            level = self._level_at(person.rank, now)
            blind = int(level < Level.EVENTS)
            open_total = 0
            at = (now - start) / SECOND
            for index, (name, members) in enumerate(self._seen().items()):
                if person.rank not in members:
                    continue
                mine = [row for row in person.rows if row.call.group == name and row.enqueued_ns <= now]
                plain = [row for row in mine if row.call.op not in (Op.SEND, Op.RECV)]
                p2p = [row for row in mine if row.call.op in (Op.SEND, Op.RECV)]
                still = [row for row in mine if not 0 < row.done_ns <= now and self._records(person.rank, row)]
                open_total += len(still)
                oldest = min((row.enqueued_ns for row in still), default=now)
                last = mine[-1] if mine else None
                done = [row for row in plain if row not in still]
                p2p_done = [row for row in p2p if 0 < row.done_ns <= now]
                groups.append(
                    (
                        person.rank, index, last.call.op if last else 0, EventFlag.NONE, 0, blind, 0, -1,
                        last.call.bytes if last else 0, len(plain), -1, len(done), len(p2p), len(p2p_done), len(still),
                        now - oldest, now - max((row.enqueued_ns for row in mine), default=start),
                    )
                )  # fmt: skip
            state = self.states(person.rank, at)
            beat = int(self.heartbeat_s(person.rank, at) * SECOND)
            rows.append(
                (
                    person.rank, 4000 + person.rank, step, phase, state, level, ExitState.RUNNING, hooks, now,
                    now - since, now - since, beat, -1, 0, open_total,
                    self._still_ns(person, since, now), int(person.rank in self.in_io),
                )
            )  # fmt: skip
        return np.array(rows, PROGRESS), np.array(groups, GROUP_PROGRESS)

    def _still_ns(self, person: _Rank, since: int, now: int) -> int:
        """A rank that has begun nothing for half a second stands still, as one that sleeps does."""
        called = [at for row in person.rows for at in (row.enqueued_ns, row.done_ns) if 0 < at <= now]
        moved = max([since, *called])
        return -1 if person.rank in self.at_work or now - moved < SECOND // 2 else now - moved


# --- a runner for tests -----------------------------------------------------------------------------------------------
class MemoryTable:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, row: str) -> bytes | None:
        return self.values.get(row)

    def put(self, row: str, value: bytes) -> None:
        assert isinstance(value, bytes)
        self.values[row] = value

    def put_later(self, row: str, make: Callable[[], bytes]) -> None:
        self.put(row, make())

    def delete(self, row: str) -> None:
        self.values.pop(row, None)

    def rows(self) -> Iterator[tuple[str, bytes]]:
        yield from sorted(self.values.items())


class MemoryContext:
    """One key. ``emitted`` holds everything in order."""

    def __init__(self, key: str = "job-1") -> None:
        self.key = key
        self.now = 0
        self.tables: dict[str, MemoryTable] = {}
        self.emitted: list[Record] = []
        self.timers: dict[str, int] = {}

    @property
    def state(self) -> MemoryContext:
        return self

    def table(self, name: str) -> MemoryTable:
        return self.tables.setdefault(name, MemoryTable())

    def emit(self, record: Record) -> None:
        self.emitted.append(record)

    def set_timer(self, name: str, at_ns: int) -> None:
        self.timers[name] = at_ns

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)

    def owner_of(self, job: str) -> str:
        return ""

    def attempt(self, act: Callable[[], None], about: Record | str) -> bool:
        act()
        return True

    def findings(self) -> list[Finding]:
        """Conclusions about faults."""
        return [f for record in self.emitted if isinstance(f := record.payload, Finding) and "kind" in f.body]

    def intervals(self) -> list[Interval]:
        """What the seconds were spent on, revisions over what they replace."""
        found: dict[str, Interval] = {}
        for record in self.emitted:
            if isinstance(payload := record.payload, Finding) and "interval" in payload.body:
                who = payload.identity
                found[payload.key] = of_body(payload.body["interval"], run=who.run, job=who.job, attempt=who.attempt)
        return list(found.values())

    def placements(self) -> list[Finding]:
        return [f for record in self.emitted if isinstance(f := record.payload, Finding) and "placement" in f.body]

    def final(self) -> dict[str, Finding]:
        """The last revision of every finding, by key, in order of opening."""
        return {finding.key: finding for finding in self.findings()}


def drive(
    records: Sequence[Record],
    *,
    batches: Sequence[int] | None = None,
    fresh_each_time: bool = False,
    idle_s: float = 5.0,
    listens: bool = False,
) -> MemoryContext:
    """Feeds records as a runner does: timers due before a record fire first; batches end before a timer is due."""
    context = MemoryContext()
    operator = JobOperator(listens=listens)
    sizes = list(batches or [1])
    position = turn = 0
    while position < len(records):
        _fire(operator, context, records[position].stamp_ns)
        size = max(1, sizes[turn % len(sizes)])
        turn += 1
        due = min(context.timers.values(), default=None)
        batch = []
        for record in records[position : position + size]:
            if due is not None and record.stamp_ns >= due:
                break
            batch.append(record)
        batch = batch or [records[position]]
        context.now = batch[-1].stamp_ns
        if fresh_each_time:
            operator = JobOperator(listens=listens)
        operator.process(batch, context)
        position += len(batch)
    _fire(operator, context, records[-1].stamp_ns + int(idle_s * SECOND))
    return context


def _fire(operator: JobOperator, context: MemoryContext, until_ns: int) -> None:
    while context.timers and min(context.timers.values()) <= until_ns:
        due, name = min((due, name) for name, due in context.timers.items())
        del context.timers[name]
        context.now = due
        operator.on_timer(Timer(name, due), context)
