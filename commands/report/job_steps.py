"""Blocks of one job, in the order of the bus, into a grid of ranks and steps. Memory is bounded; nothing is read twice.

A step is measured once every rank has passed it by some more: ends of calls are told later than steps. The step in which
an attempt stopped is never told as a step: progress tells who waited in it and who did not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...processors.job.waits import GroupShape, Places
from ...telemetry.records import Block, Group
from ...telemetry.ring_layout import parse_ranks
from ...telemetry.tables import COLLECTIVES, DEVICE_STEPS, NO_GROUP, STEPS
from ...telemetry.vocabulary import EventName, ExitState, is_device_backend
from .grid import Column, Grid
from .measure import measure_steps

#: So many steps after a step its calls' ends have been told.
SETTLE_STEPS = 4
#: Who is further behind than this holds up nobody.
FURTHEST_BEHIND = 64
#: Steps that are measured at once, and rows at which it is done earlier: 80 bytes each.
STEPS_AT_ONCE = 16
ROWS_AT_ONCE = 2_000_000
#: More rows than these without any step that could be measured: the oldest go, and are counted.
MOST_ROWS = 6_000_000
#: A rank whose last sign of life is older than the newest one's by this much had ended before the others.
ENDED_BEFORE_S = 0.5


@dataclass(slots=True)
class _LastLook:
    """A rank's newest progress: where it is, since when, and whether it has ended as it should."""

    step: int
    at_s: float
    elapsed_s: float
    is_over: bool


@dataclass(slots=True)
class _Attempt:
    """What is open in the attempt that runs."""

    number: int
    launch_of: dict[int, str] = field(default_factory=dict)  # by rank
    node_of: dict[int, str] = field(default_factory=dict)
    newest_step: dict[int, int] = field(default_factory=dict)
    looks: dict[int, _LastLook] = field(default_factory=dict)
    waits: dict[int, tuple[int, float]] = field(default_factory=dict)  # by rank: when told, for how many seconds
    groups: dict[str, int] = field(default_factory=dict)  # index by uid
    members: list[np.ndarray] = field(default_factory=list)
    on_device: list[bool] = field(default_factory=list)
    begin_s: dict[int, float] = field(default_factory=dict)  # by step
    steps: list[np.ndarray] = field(default_factory=list)
    calls: list[np.ndarray] = field(default_factory=list)
    sums: list[np.ndarray] = field(default_factory=list)
    measured: int = -1
    looked_at: int = -1


class JobSteps:
    """``take`` blocks of one job; ``finish`` at the end; then ``grid``."""

    def __init__(self) -> None:
        self.grid = Grid()
        #: Unix seconds at which each attempt was first heard of.
        self.attempts: list[float] = []
        self.rows_left_out = 0
        self.node_of: dict[int, str] = {}
        self._attempt_of: dict[str, int] = {}  # by launch
        self._now: _Attempt | None = None

    def take(self, block: Block) -> None:
        rows = block.rows
        if not rows.size:
            return
        now = self._attempt(block)
        if now is None:  # late words of an attempt that is over
            return
        if block.name is EventName.BLOCK_STEPS:
            self._take_steps(now, block)
        elif block.name is EventName.BLOCK_COLLECTIVES:
            now.calls.append(_of_attempt(now, block))
        elif block.name is EventName.BLOCK_DEVICE_STEPS:
            now.sums.append(_of_attempt(now, block))
        elif block.name is EventName.BLOCK_PROGRESS:
            _take_progress(now, block)
        elif block.name is EventName.BLOCK_GROUP_PROGRESS:
            _take_group_progress(now, block)

    def finish(self) -> None:
        """Nothing more comes."""
        if self._now is not None:
            self._close(self._now)
            self._now = None

    def _attempt(self, block: Block) -> _Attempt | None:
        """That of this launch. A launch whose ranks another one of the same attempt has already is of the next one."""
        launch, ranks = block.identity.attempt, np.unique(block.rows["rank"]).tolist()
        number = self._attempt_of.get(launch)
        if number is None:
            now = self._now
            if now is None or any(now.launch_of.get(rank, launch) != launch for rank in ranks):
                self.finish()
                now = self._now = _Attempt(number=len(self.attempts))
                self.attempts.append(block.time_ns / 1e9)
            number = self._attempt_of[launch] = now.number
        if self._now is None or number != self._now.number:
            return None
        for rank in ranks:
            self._now.launch_of[rank] = launch
            self._now.node_of[rank] = self.node_of[rank] = block.identity.node
        return self._now

    def _take_steps(self, now: _Attempt, block: Block) -> None:
        rows = block.rows[block.rows["step"] > now.measured]
        now.steps.append(rows)
        for rank, step, begin_ns in zip(
            rows["rank"].tolist(), rows["step"].tolist(), rows["begin_ns"].tolist(), strict=True
        ):
            begin_s = (begin_ns + block.clock_offset_ns) / 1e9
            now.newest_step[rank] = max(step, now.newest_step.get(rank, -1))
            now.begin_s[step] = min(begin_s, now.begin_s.get(step, begin_s))
        newest = max(now.newest_step.values(), default=-1)
        due = newest - now.measured >= STEPS_AT_ONCE + SETTLE_STEPS
        if newest > now.looked_at and (due or _count(now) > ROWS_AT_ONCE):
            now.looked_at = newest
            behind = (now.newest_step.get(rank, -1) for rank in now.launch_of)
            horizon = min((step for step in behind if step > newest - FURTHEST_BEHIND), default=newest)
            self._measure(now, max(horizon, newest - FURTHEST_BEHIND) - SETTLE_STEPS)
            self._drop_what_is_too_much(now)

    def _measure(self, now: _Attempt, horizon: int) -> None:
        """Every step up to the horizon."""
        if horizon <= now.measured:
            return
        steps, now.steps = _split(now.steps, STEPS, now.measured, horizon)
        calls, now.calls = _split(now.calls, COLLECTIVES, now.measured, horizon)
        sums, now.sums = _split(now.sums, DEVICE_STEPS, now.measured, horizon)
        now.measured = horizon
        on_device = np.array([*now.on_device, False], bool)
        for each in measure_steps(steps, calls, sums, _shape(now), on_device):
            begin_s = now.begin_s.pop(each.step, 0.0)
            column = Column(attempt=now.number, first_step=each.step, last_step=each.step, begin_s=begin_s)
            self.grid.add(column, each.ranks, each.own_s, each.waited_s)
        now.begin_s = {step: begin_s for step, begin_s in now.begin_s.items() if step > horizon}

    def _drop_what_is_too_much(self, now: _Attempt) -> None:
        """Jobs without steps have calls all the same."""
        while len(now.calls) > 1 and _count(now) > MOST_ROWS:
            self.rows_left_out += now.calls.pop(0).size

    def _close(self, now: _Attempt) -> None:
        """The end of an attempt, or of what is known: what is left is measured as far as it was told."""
        newest = max(now.newest_step.values(), default=-1)
        self._measure(now, newest)
        looks = {rank: look for rank, look in now.looks.items() if not look.is_over}
        if not looks or 2 * len(looks) < len(now.looks):
            return  # it ended as it should
        heard_s = max(look.at_s for look in looks.values())
        ranks = np.array(sorted(looks))
        own_s, waited_s = np.zeros(ranks.size), np.zeros(ranks.size)
        for place, rank in enumerate(ranks.tolist()):
            look = looks[rank]
            _, waits_s = now.waits.get(rank, (0, 0.0))
            waited_s[place] = min(waits_s, look.elapsed_s)
            own_s[place] = look.elapsed_s - waited_s[place]
            if look.at_s < heard_s - ENDED_BEFORE_S:
                own_s[place] = waited_s[place] = np.inf
        begin_s = heard_s - max(look.elapsed_s for look in looks.values())
        step = max(look.step for look in looks.values())
        column = Column(attempt=now.number, first_step=step, last_step=step, begin_s=begin_s, unfinished=True)
        self.grid.add(column, ranks, own_s, waited_s)


def _take_progress(now: _Attempt, block: Block) -> None:
    rows = block.rows
    at_ns = rows["read_ns"] + block.clock_offset_ns
    ended = rows["exit_state"] == int(ExitState.NORMAL)
    for rank, step, at, age, over in zip(
        rows["rank"].tolist(),
        rows["step"].tolist(),
        at_ns.tolist(),
        rows["step_age_ns"].tolist(),
        ended.tolist(),
        strict=True,
    ):
        now.looks[rank] = _LastLook(step=step, at_s=at / 1e9, elapsed_s=max(age, 0) / 1e9, is_over=over)


def _take_group_progress(now: _Attempt, block: Block) -> None:
    """A device waits only in what it has begun; where starts are not told, in what is open."""
    rows, index = block.rows, _index_of(now, block.groups)
    device = np.array([*now.on_device, False], bool)[index[np.minimum(rows["group"], index.size - 1)]]
    begun = ~device | (rows["started"] < 0) | (rows["started"] > rows["completed"])
    waits_s = np.where((rows["open"] > 0) & begun, np.maximum(rows["open_age_ns"], 0), 0) / 1e9
    for rank, waits in zip(rows["rank"].tolist(), waits_s.tolist(), strict=True):
        told_ns, before = now.waits.get(rank, (0, 0.0))
        now.waits[rank] = (block.time_ns, max(waits, before) if told_ns == block.time_ns else waits)


def _of_attempt(now: _Attempt, block: Block) -> np.ndarray:
    """The rows that are not measured yet, with the attempt's numbers of groups."""
    rows: np.ndarray = block.rows[block.rows["step"] > now.measured].copy()
    index = _index_of(now, block.groups)
    rows["group"] = index[np.minimum(rows["group"], index.size - 1)]
    return rows


def _index_of(now: _Attempt, groups: tuple[Group, ...]) -> np.ndarray:
    """By place in a block: the attempt's own number of the group; at the end, of none."""
    found = []
    for group in groups:
        index = now.groups.get(group.uid)
        if index is None:
            index = now.groups[group.uid] = len(now.members)
            try:
                members = np.array(parse_ranks(group.ranks), np.int64)
            except ValueError:
                members = np.zeros(0, np.int64)
            now.members.append(members)
            now.on_device.append(is_device_backend(group.backend))
        found.append(index)
    return np.array([*found, NO_GROUP], np.int64)


def _shape(now: _Attempt) -> GroupShape:
    numbers: dict[str, int] = {}
    node = np.full(max(now.node_of, default=0) + 1, -1, np.int64)
    for rank, name in now.node_of.items():
        node[rank] = numbers.setdefault(name, len(numbers))
    one_clock = []
    for members in now.members:
        nodes = np.unique(node[members]) if members.size and int(members.max()) < node.size else np.array([-1])
        one_clock.append(nodes.size == 1 and int(nodes[0]) >= 0)
    sizes = np.array([members.size for members in now.members] or [0], np.int64)
    return GroupShape(
        sizes=sizes, one_clock=np.array(one_clock or [True], bool), places=Places.of(now.members)
    )


def _split(
    parts: list[np.ndarray], dtype: np.dtype, measured: int, horizon: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The rows up to the horizon, and those after it."""
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype)
    ready, left = rows["step"] <= horizon, rows["step"] > horizon
    late = rows["step"] <= measured
    return rows[ready & ~late], [rows[left]] if left.any() else []


def _count(now: _Attempt) -> int:
    return sum(part.size for part in now.calls)
