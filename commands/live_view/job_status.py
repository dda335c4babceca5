"""What a job does right now, for eyes only: built from the records that the agent publishes, judged by nobody.

Verdicts come from the operators; this is the picture a person watches meanwhile. Runs in the watching thread.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from ...processors.job.state.attempts import Attempts, Place, place_of
from ...telemetry.records import Block, Event, Group, Payload
from ...telemetry.ring_layout import format_ranks
from ...telemetry.vocabulary import EventName, ExitState, Op, Phase, ProcessState, StepFlag

_Enum = TypeVar("_Enum", bound=IntEnum)

#: Steps over which the pace is taken.
PACE_STEPS = 40


@dataclass(slots=True)
class RankStatus:
    """One rank as last seen. Ages count from ``seen_ns`` (monotonic)."""

    rank: int
    pid: int = 0
    node: str = ""
    step: int = 0
    phase: Phase = Phase.INIT
    state: ProcessState = ProcessState.UNKNOWN
    seen_ns: int = 0
    phase_since_ns: int = 0
    ended: str = ""  # why the process is gone, empty while it lives


@dataclass(frozen=True, slots=True)
class WaitingRanks:
    """Some members of a group are in an operation that others have not entered."""

    group: str
    operation: str
    sequence: int
    waiters: tuple[int, ...]
    waited_for: tuple[int, ...]
    since_ns: int  # monotonic


@dataclass(slots=True)
class _Member:
    enqueued: int
    completed: int
    open: int
    op: Op
    blind: bool
    open_age_ns: int  # when its rank's progress row was read, which comes after it in the same flush

    @property
    def oldest(self) -> int:
        """The number of the oldest call that is open; the newest's, where no end is seen."""
        return self.enqueued if self.completed < 0 else min(self.completed + 1, self.enqueued)


@dataclass(slots=True)
class JobStatus:
    """The picture. ``update`` takes payloads in the order of the bus."""

    #: This node's name. Other nodes have clocks and processes of their own.
    node: str = ""
    world_size: int = 0
    ranks: dict[int, RankStatus] = field(default_factory=dict)
    #: No optimizer makes the steps that are seen: they are turns of calls that repeat.
    steps_inferred: bool = False
    _attempts: Attempts = field(default_factory=Attempts)
    _groups: dict[str, Group] = field(default_factory=dict)
    _members: dict[str, dict[int, _Member]] = field(default_factory=dict)
    _step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))

    def update(self, payload: Payload) -> None:
        """Takes one payload into the picture; kinds that say nothing here are passed over."""
        if isinstance(payload, Block):
            if not self._enter(payload):
                return
            if payload.name is EventName.BLOCK_PROGRESS:
                self._take_progress(payload)
            elif payload.name is EventName.BLOCK_GROUP_PROGRESS:
                self._take_group_progress(payload)
            elif payload.name is EventName.BLOCK_STEPS:
                if len(payload.rows):
                    self.steps_inferred = bool((payload.rows["flags"] & int(StepFlag.INFERRED)).all())
                first = payload.rows["rank"] == payload.rows["rank"].min() if len(payload.rows) else []
                for row in payload.rows[first]:
                    self._step_seconds.append((int(row["end_ns"]) - int(row["begin_ns"])) / 1e9)
        elif isinstance(payload, Event):
            self._take_event(payload)

    @property
    def step(self) -> int:
        """The step of the slowest living rank; once none lives, how far the first had come."""
        living = [rank.step for rank in self.ranks.values() if not rank.ended]
        return min(living) if living else max((rank.step for rank in self.ranks.values()), default=0)

    @property
    def seconds_per_step(self) -> float | None:
        """Median seconds of the last steps; None before the first."""
        return statistics.median(self._step_seconds) if self._step_seconds else None

    @property
    def has_steps(self) -> bool:
        """Whether any step of this attempt has ended."""
        return bool(self._step_seconds)

    def calls(self) -> tuple[str, int]:
        """(group, calls that its furthest rank has made in it), of the group with most calls; ("", 0) none."""
        made = {uid: max(member.enqueued for member in members.values()) for uid, members in self._members.items()}
        uid = max(made, key=lambda each: made[each], default="")
        return (self._groups[uid].label or uid[:8], made[uid]) if uid else ("", 0)

    def living(self) -> list[int]:
        """Ranks of this node whose process is still there, as the kernel says."""
        here = [rank for rank in self.ranks.values() if rank.node in ("", self.node)]
        return [rank.rank for rank in here if not rank.ended and rank.pid and Path(f"/proc/{rank.pid}").exists()]

    def waiting(self) -> list[WaitingRanks]:
        """Who waits for whom, by group; the longest wait first. Empty while nobody waits."""
        found = []
        for uid, members in self._members.items():
            gone = {rank for rank, status in self.ranks.items() if status.ended}
            sighted = {rank: m for rank, m in members.items() if not m.blind}
            if not sighted:
                continue
            # The oldest call that is open, as in incidents; the newest may be some calls further on.
            standing = {rank: m.oldest for rank, m in sighted.items() if m.open > 0 and rank not in gone}
            behind = min(m.enqueued for m in sighted.values())
            sequence = min((oldest for oldest in standing.values() if oldest > behind), default=0)
            waiters = [rank for rank, oldest in standing.items() if oldest == sequence]
            late = [rank for rank, m in sighted.items() if m.enqueued < sequence]
            if waiters and late:
                group = self._groups[uid]
                found.append(
                    WaitingRanks(
                        group=group.label or uid[:8],
                        operation=sighted[waiters[0]].op.name.lower(),
                        sequence=sequence,
                        waiters=tuple(sorted(waiters)),
                        waited_for=tuple(sorted(late)),
                        since_ns=min(self._rank(rank).seen_ns - sighted[rank].open_age_ns for rank in waiters),
                    )
                )
        return sorted(found, key=lambda w: w.since_ns)

    @property
    def attempts(self) -> int:
        """How many attempts of the job have begun."""
        return self._attempts.count

    @property
    def attempt(self) -> str:
        """The present attempt, as incidents name it; "" before its first rank has come."""
        return self._attempts.name

    def _enter(self, payload: Block | Event) -> bool:
        """False for a record of an attempt that is over."""
        place = place_of(payload, self._attempts) if payload.identity.attempt else Place.CURRENT
        if place is Place.BEGINS:
            self._forget()
        return place is not Place.PAST

    def _forget(self) -> None:
        """Other processes from here on."""
        self.ranks.clear()
        self._members.clear()
        self._groups.clear()
        self._step_seconds.clear()

    def _take_progress(self, block: Block) -> None:
        node = block.identity.node
        for row in block.rows:
            rank = self._rank(int(row["rank"]))
            rank.node = node
            rank.pid = int(row["pid"])
            rank.step = int(row["step"])
            rank.phase = _member(Phase, int(row["phase"]), Phase.OTHER)
            rank.state = _member(ProcessState, int(row["process_state"]), ProcessState.UNKNOWN)
            rank.seen_ns = int(row["read_ns"]) if node == self.node else time.monotonic_ns()
            rank.phase_since_ns = rank.seen_ns - int(row["phase_age_ns"])
            if rank.state is ProcessState.DEAD and not rank.ended:
                rank.ended = "gone"
            elif int(row["exit_state"]) == ExitState.NORMAL and not rank.ended:
                rank.ended = "done"

    def _take_group_progress(self, block: Block) -> None:
        for row in block.rows:
            index = int(row["group"])
            if index >= len(block.groups):
                continue
            group = block.groups[index]
            self._groups[group.uid] = group
            rank = int(row["rank"])
            self._members.setdefault(group.uid, {})[rank] = _Member(
                enqueued=int(row["enqueued"]),
                completed=int(row["completed"]),
                open=int(row["open"]),
                op=_member(Op, int(row["op"]), Op.UNKNOWN),
                blind=bool(row["blind"]),
                open_age_ns=int(row["open_age_ns"]),
            )

    def _take_event(self, event: Event) -> None:
        attributes = event.attributes
        if event.name is EventName.LAUNCH_MET:
            if self._attempts.tell_token(event.identity.attempt, str(attributes.get("token", ""))) is Place.BEGINS:
                self._forget()
            return
        if not self._enter(event):
            return
        if event.name is EventName.RANK_STARTED:
            self.world_size = int(attributes.get("world_size", self.world_size))
            self._rank(event.identity.rank).pid = int(attributes.get("pid", 0))
        elif event.name is EventName.RANK_EXIT:
            number = int(attributes.get("signal", 0))
            code = attributes.get("exit_code")
            status = self._rank(event.identity.rank)
            status.ended = f"signal {number}" if number else "gone" if code is None else f"exit {code}"
        elif event.name is EventName.RANK_EXCEPTION:
            self._rank(event.identity.rank).ended = f"raised {attributes.get('type', '')}"

    def _rank(self, rank: int) -> RankStatus:
        return self.ranks.setdefault(rank, RankStatus(rank))


def describe_ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """The ranks in words: ``rank 3`` or ``ranks 0-2,5``."""
    return f"rank{'s' if len(ranks) != 1 else ''} {format_ranks(list(ranks))}"


def _member(kind: type[_Enum], value: int, otherwise: _Enum) -> _Enum:
    """A number from the wire as its enum; one of a later release reads as ``otherwise``."""
    try:
        return kind(value)
    except ValueError:
        return otherwise
