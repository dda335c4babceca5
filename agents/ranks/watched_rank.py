"""What the agent knows of one rank: its ring, its process, the last good rows, how far its events were read.

Mutable, owned by the polling thread, no decisions: reading steps live here, verdicts in ``local_verdicts``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...telemetry import ring_layout as L
from ...telemetry.records import Event, Identity
from ...telemetry.vocabulary import ExitState, HookState, Phase, ProcessState
from ..processes import processes
from ..rings.progress_page import (
    RankRow,
    heartbeat_time_ns,
    parse_rank_row,
)
from ..rings.ring_file import NOTHING_HOT, HotWords, RingFile
from .motion import RankMotion
from .rank_groups import RankGroups
from .ring_reading import RingReading
from .told_of_rank import ToldOfRank

#: Plain numbers: operators of enum flags cost ten times as much, and these are asked at every look.
#: A thread that holds the GIL and computes gets at least this share of a core, unless the machine is overloaded.
_STARVED_SHARE = 0.5
_COMPLETION_HOOKED = int(HookState.COMPLETION_HOOKED)
#: Parts of the rank row that change when the rank gets on: step and phase, backward passes. Own cost is none of them.
_STEP_AND_PHASE = slice(L.R_STEP, L.R_PHASE_SINCE_NS)
_MICROSTEPS = slice(L.R_MICROSTEPS, L.R_MICROSTEPS + 8)


@dataclass(slots=True, kw_only=True)
class WatchedRank:
    """One ring and its process. Times are monotonic ns of this node; 0 = not yet."""

    ring: RingFile
    slot: int
    identity: Identity
    pid: int  # in our PID namespace; 0 unknown
    start_ticks: int
    pidfd: int = -1
    #: False when the ring's process was already gone (or not provably the ring's) at the first look.
    alive: bool = True
    found_ns: int = 0
    left_behind: bool = False

    hot: HotWords = NOTHING_HOT
    page: tuple[bytes, bytes] = (b"", b"")
    heartbeat_ns: int = 0  # time of the last heartbeat
    _rank_row: RankRow | None = None
    _rows_parsed: bool = False
    groups: RankGroups = field(default_factory=RankGroups)
    reading: RingReading = field(default_factory=RingReading)
    told: ToldOfRank = field(default_factory=ToldOfRank)

    moved_ns: int = 0  # when the head or the rank row was last seen to change
    inferred_step: int = -1  # of a loop without steps of its own, and since when; -1: none
    inferred_since_ns: int = 0
    motion: RankMotion = field(default_factory=RankMotion)  # what its process does while they do not
    process: processes.ProcessStat | None = None
    process_read_ns: int = 0
    cpu_samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))  # (read_ns, cpu_ns)
    stop_first_seen_ns: int = 0
    stopped: bool = False
    stale: bool = False
    notes: list[str] = field(default_factory=list)
    token: str = ""  # of the store in which it met the others

    @property
    def rank(self) -> int:
        """The global rank, by the ring's header."""
        return self.ring.header.rank

    def look(self, now_ns: int) -> bool:
        """Reads the ring's hot words, page and heartbeat.

        True, and ``moved_ns`` is set, if events, step or phase moved.
        """
        ring = self.ring
        hot = ring.read_hot()
        first, second = ring.read_page()
        before = self.page[1]
        moved = (
            hot.event_head != self.hot.event_head
            or second[_STEP_AND_PHASE] != before[_STEP_AND_PHASE]
            or second[_MICROSTEPS] != before[_MICROSTEPS]
        )
        self.hot = hot
        self.page = (first, second)
        beat_ns = heartbeat_time_ns(first, second)
        if beat_ns is not None:
            self.heartbeat_ns = beat_ns
        self._rows_parsed = False
        if moved or not self.moved_ns:
            self.moved_ns = now_ns
        return moved

    @property
    def rank_row(self) -> RankRow | None:
        """The rank row of the last look, or the last good one before; None before any.

        Parsed when asked for: most looks never ask.
        """
        if not self._rows_parsed:
            self._rows_parsed = True
            row = parse_rank_row(*self.page)
            if row is None and self.page[1]:
                self.page = self.ring.read_page()  # torn by a writer that has long finished
                row = parse_rank_row(*self.page)
            if row is not None:
                self._rank_row = row
        return self._rank_row

    def read_page_again(self) -> None:
        """Reads the page once more, after it grew by newly defined groups, whose rows are wanted now."""
        self.page = self.ring.read_page()

    def last_sign_of_life_ns(self) -> int:
        """The newest monotonic time that the ring holds: heartbeat, last event, creation; 0: none.

        For writers that are gone.
        """
        times = [self.ring.header.created_mono_ns, self.heartbeat_ns]
        if len(self.reading.last_event) == L.EVENT_BYTES:
            times.append(L.EVENT_STRUCT.unpack(self.reading.last_event)[L.E_TIME_NS])
        return max(time for time in times if time < 1 << 63) if any(time < 1 << 63 for time in times) else 0

    def step_and_phase(self) -> tuple[int, int]:
        """(step, phase) from the rank row, or the last complete event where the row is torn; step -1: unknown.

        A loop without steps of its own has its inferred step.
        """
        row = self.rank_row
        step, phase = (row.step, row.phase) if row is not None else (-1, int(Phase.OTHER))
        if row is None and len(self.reading.last_event) == L.EVENT_BYTES:
            event = L.EVENT_STRUCT.unpack(self.reading.last_event)
            head = event[L.E_HEAD]
            phase = head >> 16 & 0xFF
            step = event[L.E_STEP] if head & 0xFF != 5 else event[L.E_SEQ] + 1
        if self.inferred_step >= 0 and step <= 0:
            step, phase = self.inferred_step, int(Phase.OTHER) if phase == Phase.INIT else phase
        return (step if 0 <= step < 1 << 62 else -1), (phase if phase < len(Phase) else int(Phase.OTHER))

    def completion_seen(self) -> bool:
        """Whether the rank's hooks see the ends of operations; True as long as no row says otherwise."""
        return self.rank_row is None or bool(self.rank_row.hook_state & _COMPLETION_HOOKED)

    def leaving(self) -> bool:
        """Whether the rank has said that it leaves: no heartbeat or progress is owed any more."""
        row = self.rank_row
        return row is not None and (row.exit_state != ExitState.RUNNING or row.phase == Phase.EXIT)

    def process_state(self) -> ProcessState:
        """State of the process by the last look at /proc; DEAD once it ended, UNKNOWN before the first look."""
        if not self.alive:
            return ProcessState.DEAD
        return self.process.state if self.process is not None else ProcessState.UNKNOWN

    def is_starved(self) -> bool:
        """Whether the process is runnable and got hardly any CPU lately: silent for want of a core, not by itself."""
        if self.process is None or self.process.state is not ProcessState.RUNNING or len(self.cpu_samples) < 2:
            return False
        (begin_ns, begin_cpu_ns), (end_ns, end_cpu_ns) = self.cpu_samples[0], self.cpu_samples[-1]
        return end_cpu_ns - begin_cpu_ns < _STARVED_SHARE * (end_ns - begin_ns)

    def heartbeat_age_ns(self, now_ns: int) -> int:
        """Age of the last heartbeat; 0 if the rank has none at all: nothing was promised. now_ns: monotonic."""
        return max(now_ns - self.heartbeat_ns, 0) if 0 < self.heartbeat_ns < 1 << 63 else 0

    def read_process(self, now_ns: int) -> None:
        """Reads /proc/PID/stat into ``process``, and sets ``alive`` to False if it has ended. now_ns: monotonic.

        A process with another start time is not ours: the pid was reused.
        """
        self.process_read_ns = now_ns
        stat = processes.read_stat(self.pid) if self.pid else None
        if stat is not None and stat.start_ticks == self.start_ticks:
            self.process = stat
            self.cpu_samples.append((now_ns, stat.cpu_ns))
            if stat.state in (ProcessState.ZOMBIE, ProcessState.DEAD):
                self.alive = False
        elif self.pid or processes.lock_holder(self.ring.fd) is None:
            # Without a pid (another PID namespace) only the lock on the ring tells that its process lives.
            self.alive = False

    def close(self) -> None:
        """Lets go of the ring and the pidfd; may be called again."""
        self.ring.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def requested_rank(ranks: Sequence[WatchedRank], event: Event) -> WatchedRank | None:
    """The rank that a request asks for: of the request's launch, else of any; the one found last. None: not here."""
    wanted = event.attributes.get("rank", event.identity.rank)
    found = [rank for rank in ranks if rank.rank == wanted]
    of_launch = [rank for rank in found if rank.identity.attempt == event.identity.attempt]
    return next(reversed(of_launch or found), None)
