"""The ring writer in pure Python: its life, and the rank row (phase, step, loss, level, exit).

One per process; collectives are RingCollectives', rare writes RingRecords'. Any thread may call it, under their lock.
It never blocks on anything else, never raises for a full area, and does nothing in a forked child.
The C recorder (``_recorder``) has the same methods and writes the same bytes; ``open_ring_writer`` prefers it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

from ..telemetry import ring_layout as layout
from ..telemetry.vocabulary import EventKind, Level, StepFlag
from .forked_writers import register_for_fork
from .ring_collectives import RingCollectives
from .ring_creation import IdentityValue, PreparedRing, RingGeometry, geometry_for, prepare_ring
from .ring_records import Frame
from .run_delay import RunDelay
from .support.native import native_wanted

_PHASE = int(EventKind.PHASE)
_STEP = int(EventKind.STEP)
_BAD_LOSS = int(EventKind.BAD_LOSS)
_HAS_LOSS, _HAS_GRAD_NORM = int(StepFlag.HAS_LOSS), int(StepFlag.HAS_GRAD_NORM)
_PARTLY_SEEN = int(StepFlag.PARTLY_SEEN)
_HEAD_WORD = layout.H_EVENT_HEAD >> 3
_pack_words = layout.EVENT_STRUCT.pack_into
#: An event whose value (loss) and extra (gradient norm) are floats.
_pack_step = struct.Struct("<4QdQdQ").pack_into
_pack_float = struct.Struct("<d").pack_into
_UNKNOWN = layout.UNKNOWN_U64


class RankRecorder(Protocol):
    """What hooks, phases and the heartbeat write to: RingWriter, or the C recorder's NativeRingWriter."""

    path: Path
    geometry: RingGeometry
    groups_defined: int
    groups_blind: int

    def define(self, kind: int, index: int, payload: dict[str, Any]) -> bool:
        """Append a definition; False where their area is full."""

    def define_group(self, definition: dict[str, Any]) -> int:
        """Gives a new process group a row, and returns it; -1 where none is left (the group is blind)."""

    def drop_group(self, group: int) -> None:
        """Mark the row as that of a destroyed group; its numbers stay readable."""

    def track_completion(self, enabled: bool) -> None:
        """Whether enqueued operations count as open; off where nothing would report their ends."""

    def enqueue(self, group: int, op: int, nbytes: int, dtype: int, peer: int, flags: int) -> int:
        """Records an issued operation, and returns its sequence number, from 1, point-to-point counted apart."""

    def skip(self, group: int, flags: int) -> int:
        """Counts an operation without an event, and returns its sequence number."""

    def complete(self, group: int, seq: int, enqueued_ns: int, flags: int, waiting_since_ns: int = 0) -> None:
        """Records the end of one operation; nothing if it is not open."""

    def complete_through(self, group: int, seq: int, flags: int) -> int:
        """Records the ends of all open operations up to ``seq``, and returns how many that were."""

    def started_through(self, group: int, seq: int) -> None:
        """Records that the device has started every collective up to ``seq``."""

    def enqueued(self, group: int, flags: int = 0) -> int:
        """The last sequence number of the group; of point-to-point where ``flags`` has P2P."""

    def append_event(self, kind: int, group: int = 0, seq: int = 0, value: int = 0, extra: int = 0) -> None:
        """Writes an event of the present phase and step, stamped now."""

    def set_phase(self, phase: int) -> int:
        """Enters a phase, and returns the one before."""

    def phase_since_ns(self) -> int:
        """Monotonic time (ns) at which the shown phase began."""

    def end_step(self, loss: float | None, grad_norm: float | None, flags: int) -> int:
        """Closes the step, and returns the number of the next one. None: loss or norm is not known."""

    def add_microstep(self) -> None:
        """Count a backward pass."""

    def set_loss(self, loss: float) -> None:
        """Shows a loss before its step ends."""

    def set_level(self, level: int, hook_state: int) -> None:
        """Publish the level and the hooks' state."""

    def add_cost(self, ns: int, calls: int) -> None:
        """Adds to what recording has cost so far: nanoseconds and calls of hooks."""

    def beat(
        self, hook_errors: int = 0, pending: int = 0, fr_enqueued: int = _UNKNOWN, fr_completed: int = _UNKNOWN, /
    ) -> None:
        """Writes a sign of life, with what the heartbeat thread counted."""

    def define_call_site(self, number: int, payload: dict[str, Any]) -> bool:
        """Defines a line that issues operations; False where there is no room."""

    def note_call(self, number: int, word: int) -> None:
        """Notes which line issued operation ``number``. word: as ``ring_layout`` has it."""

    def record_exception(self, text: str, frames: Sequence[Frame], in_main: bool) -> bool:
        """Keep an uncaught exception; False where an earlier one is kept already."""

    def record_stack(self, frames: Sequence[Frame]) -> None:
        """Keep the main thread's stack in place of the last one."""

    def record_exit(self, exit_state: int) -> None:
        """Notes how the process leaves (ExitState)."""

    def close(self) -> None:
        """Let go of lock and memory; the file stays for the agent."""

    def forget_in_child(self) -> None:
        """To be called in a forked child: what is written from now on reaches no ring."""


class RingWriter(RingCollectives):
    """Writes one rank's ring. Create with :meth:`create`."""

    def __init__(self, prepared: PreparedRing) -> None:
        """Map a prepared ring file. Raises OSError or ValueError; the caller discards the file then."""
        geometry = prepared.geometry
        self._start_records(prepared.path, geometry)
        self._fd = prepared.fd
        # Populated: else the first lap of the ring pays a page fault for every 64 events, inside the training step.
        self._map: mmap.mmap | None = mmap.mmap(
            prepared.fd, geometry.file_bytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        )
        self._start_collectives(memoryview(self._map), geometry)
        self._rank_word = self._row_word(layout.RANK_ROW)
        now = monotonic_ns()
        self._words[self._rank_word + (layout.R_LEVEL >> 3)] = int(Level.OFF)
        self._words[self._rank_word + (layout.R_PHASE_SINCE_NS >> 3)] = now
        self._words[self._rank_word + (layout.R_STEP_SINCE_NS >> 3)] = now
        self._words[self._rank_word] = 2
        self._phase_since_ns = now
        self._step_since_ns = now
        #: Level off: steps and phases are kept in the rank row, without events.
        self._silent = False
        #: The level is below events: collectives are only counted. And whether it has been so in this step.
        self._below = self._partly_seen = False
        self._run_delay = RunDelay(now)
        register_for_fork(weakref.ref(self))

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        identity: dict[str, IdentityValue],
        slots: int | None = None,
        group_rows: int | None = None,
    ) -> RingWriter:
        """Create, map and publish a ring file in ``directory``. Raises OSError: then there is no ring at all."""
        prepared = prepare_ring(
            directory,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            identity=identity,
            geometry=geometry_for(world_size, event_slots=slots, group_rows=group_rows),
            writer_kind=layout.WRITER_PYTHON,
        )
        try:
            writer = cls(prepared)
        except BaseException:
            prepared.discard()
            raise
        try:
            prepared.publish()
        except BaseException:
            prepared.remove_temporary()
            writer.close()
            raise
        return writer

    # --- phase, step, loss ------------------------------------------------------------------------------------------
    def set_phase(self, phase: int) -> int:
        """Enter a phase; returns the previous one. Entering the current phase writes nothing."""
        with self._lock:
            previous = self._phase
            if phase == previous:
                return previous
            now = monotonic_ns()
            words = self._words
            if not self._silent:
                # The same as _append, without the call: in a training step this runs cold, six times and more.
                index = (self._head & self._event_mask) << 3
                self._head = head = self._head + 1
                _pack_words(
                    self._events,
                    index << 3,
                    0,
                    _PHASE | phase << 16,
                    previous,
                    now,
                    self._phase_since_ns,
                    self._step,
                    0,
                    head,
                )
                self._event_words[index] = head
                words[_HEAD_WORD] = head
            self._phase = phase
            self._phase_since_ns = now
            row = self._rank_word
            words[row] += 1  # even while nobody writes, and all writers hold the lock
            words[row + 2] = phase
            words[row + 3] = now
            words[row] += 1
            return previous

    def end_step(self, loss: float | None, grad_norm: float | None, flags: int) -> int:
        """Close the current step; returns the number of the new one. Flags for loss and norm are set here."""
        flags = int(flags)
        with self._lock:
            now = monotonic_ns()
            words = self._words
            row = self._rank_word
            step = self._step
            if loss is not None:
                flags |= _HAS_LOSS
            if grad_norm is not None:
                flags |= _HAS_GRAD_NORM
            if self._partly_seen:
                flags |= _PARTLY_SEEN
                self._partly_seen = self._below
            if not self._silent:
                index = (self._head & self._event_mask) << 3
                head = self._head + 1
                _pack_step(
                    self._events,
                    index << 3,
                    0,
                    _STEP | self._phase << 16 | (flags & 0xFF) << 24 | self._run_delay.since_last(now) << 32,
                    step,
                    now,
                    0.0 if loss is None else loss,
                    self._step_since_ns,
                    0.0 if grad_norm is None else grad_norm,
                    head,
                )
                self._head = head
                self._event_words[index] = head
                words[_HEAD_WORD] = head
            self._step = step + 1
            self._step_since_ns = now
            words[row] += 1
            words[row + 1] = step + 1
            words[row + 4] = now
            if loss is not None:
                _pack_float(self._bytes, (row + 5) << 3, loss)
                words[row + 7] = step
            if grad_norm is not None:
                _pack_float(self._bytes, (row + 6) << 3, grad_norm)
            words[row + 13] = flags
            words[row] += 1
            return step + 1

    def add_microstep(self) -> None:
        """Count one backward pass."""
        with self._lock:
            self._words[self._rank_word + 14] += 1

    def set_loss(self, loss: float) -> None:
        """Show a loss of the current step before the step ends."""
        with self._lock:
            words = self._words
            row = self._rank_word
            words[row] += 1
            _pack_float(self._bytes, (row + 5) << 3, loss)
            words[row + 7] = self._step
            words[row] += 1
            if not self._silent and not isfinite(loss):
                bits = words[row + 5]
                self._append(_BAD_LOSS, 0, 0, monotonic_ns(), bits, self._step, 0, 0)

    # --- level, cost, exit ------------------------------------------------------------------------------------------
    def set_level(self, level: int, hook_state: int) -> None:
        """Writes the level and the hooks' state, with a LEVEL event. At OFF phases and steps write no events."""
        with self._lock:
            now = monotonic_ns()
            self._append(int(EventKind.LEVEL), 0, 0, now, int(level), self._step, int(hook_state), 0)
            below = level < Level.EVENTS
            if self._below and not below:
                self._show_counts(now)
            self._silent, self._below = level == Level.OFF, below
            self._partly_seen = self._partly_seen or below
            words = self._words
            words[self._rank_word + 8] = int(level)
            words[self._rank_word + 9] = int(hook_state)

    def add_cost(self, ns: int, calls: int) -> None:
        """Add to the own cost so far: nanoseconds and hook calls."""
        with self._lock:
            self._words[self._rank_word + 10] += ns
            self._words[self._rank_word + 11] += calls

    def record_exit(self, exit_state: int) -> None:
        """Notes how the process leaves (ExitState), with an EXIT event."""
        with self._lock:
            self._words[self._rank_word + 12] = int(exit_state)
            self._append(int(EventKind.EXIT), 0, 0, monotonic_ns(), int(exit_state), self._step, 0, 0)

    # --- end --------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Release the lock and the mapping; the file stays for the agent. Later calls write nowhere."""
        self._detach()

    def forget_in_child(self) -> None:
        """A forked child inherits the mapping, not the rank: from here on every method writes to private memory."""
        self._lock = threading.RLock()
        self._records_lock = threading.Lock()
        self._detach()

    def _detach(self) -> None:
        if self._map is None:
            return
        with self._lock:
            self._run_delay.close()
            old, self._map = self._map, None
            self._release_views()
            self._set_views(memoryview(bytearray(self.geometry.file_bytes)), self.geometry)
            old.close()
            with contextlib.suppress(OSError):
                os.close(self._fd)


def open_ring_writer(
    directory: Path,
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    identity: dict[str, IdentityValue],
    slots: int | None = None,
    group_rows: int | None = None,
    native: bool | None = None,
) -> RankRecorder:
    """Create this process's ring with the C recorder if it loads, else in Python. Raises OSError: no ring then.

    ``native`` None reads WHICHRANK_NATIVE (``0`` keeps to Python); True raises ImportError where C does not load.
    """
    if native is None:
        use_native, required = native_wanted(), False
    else:
        use_native = required = native
    creator: Any = RingWriter.create
    if use_native:
        try:
            from .ring_writer_native import NativeRingWriter

            creator = NativeRingWriter.create
        except ImportError:
            if required:
                raise
    writer: RankRecorder = creator(
        directory,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        identity=identity,
        slots=slots,
        group_rows=group_rows,
    )
    return writer
