"""The ring writer in pure Python: events, group rows and the rank row, written on the training threads' hot path.

One per process. Any thread may call it; a re-entrant lock keeps one record whole (a signal handler may interrupt its
own thread). It never blocks on anything else, never raises for a full area, and does nothing in a forked child.
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
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

from ..telemetry import ring_layout as layout
from ..telemetry.vocabulary import EventFlag, EventKind, Level, Op, Phase, StepFlag
from .ring_file import IdentityValue, PreparedRing, RingGeometry, geometry_for, prepare_ring
from .ring_records import Frame, RingRecords, float_bits
from .run_delay import RunDelay

#: Operations remembered per group and sort. One that is still open after so many more is given up: counts as complete.
MAX_OPEN = 1024

_ENQUEUE = int(EventKind.ENQUEUE)
_COMPLETE = int(EventKind.COMPLETE)
_STARTED = int(EventKind.STARTED)
_PHASE = int(EventKind.PHASE)
_STEP = int(EventKind.STEP)
_P2P = int(EventFlag.P2P)
_P2P_OPS = (int(Op.SEND), int(Op.RECV))
#: Flags on which members of a collective must agree; whether a call is asynchronous is each rank's own affair.
_SIGNATURE_FLAGS = int(EventFlag.P2P | EventFlag.NO_SIZE)
_UNKNOWN = layout.UNKNOWN_U64
_EVENT = layout.EVENT_STRUCT
_GROUP_FRONT = struct.Struct("<6Q")
_GROUP_DONE = struct.Struct("<6Q")
_HEAD_WORD = layout.H_EVENT_HEAD >> 3


class RankRecorder(Protocol):
    """What hooks, phases and the heartbeat write to: RingWriter, or the C recorder's NativeRingWriter."""

    path: Path
    geometry: RingGeometry
    groups_defined: int
    groups_blind: int

    def define(self, kind: int, index: int, payload: dict[str, Any]) -> bool: ...
    def define_group(self, definition: dict[str, Any]) -> int: ...
    def drop_group(self, group: int) -> None: ...
    def track_completion(self, enabled: bool) -> None: ...
    def enqueue(self, group: int, op: int, nbytes: int, dtype: int, peer: int, flags: int) -> int: ...
    def skip(self, group: int, flags: int) -> int: ...
    def complete(self, group: int, seq: int, enqueued_ns: int, flags: int) -> None: ...
    def complete_through(self, group: int, seq: int, flags: int) -> int: ...
    def started_through(self, group: int, seq: int) -> None: ...
    def enqueued(self, group: int, flags: int = 0) -> int: ...
    def append_event(self, kind: int, group: int = 0, seq: int = 0, value: int = 0, extra: int = 0) -> None: ...
    def set_phase(self, phase: int) -> int: ...
    def end_step(self, loss: float | None, grad_norm: float | None, flags: int) -> int: ...
    def add_microstep(self) -> None: ...
    def set_loss(self, loss: float) -> None: ...
    def set_level(self, level: int, hook_state: int) -> None: ...
    def add_cost(self, ns: int, calls: int) -> None: ...
    def beat(
        self,
        groups_defined: int | None = None,
        groups_blind: int | None = None,
        hook_errors: int = 0,
        pending: int = 0,
        fr_enqueued: int = _UNKNOWN,
        fr_completed: int = _UNKNOWN,
    ) -> None: ...
    def record_exception(self, text: str, frames: Sequence[Frame], in_main: bool) -> bool: ...
    def record_stack(self, frames: Sequence[Frame]) -> None: ...
    def record_exit(self, exit_state: int) -> None: ...
    def close(self) -> None: ...
    def forget_in_child(self) -> None: ...


_writers: list[weakref.ref[Any]] = []


def register_for_fork(writer: weakref.ref[Any]) -> None:
    """Have ``forget_in_child`` called on a writer in every forked child."""
    _writers[:] = [known for known in _writers if known() is not None]
    _writers.append(writer)


def _forget_all_in_child() -> None:
    for reference in _writers:
        writer = reference()
        if writer is not None:
            writer.forget_in_child()


os.register_at_fork(after_in_child=_forget_all_in_child)


class _OpenOperations(dict[int, tuple[int, int]]):
    """Sequence -> (enqueue time_ns, step) of one group's open operations of one sort."""

    __slots__ = ("first",)

    def __init__(self) -> None:
        super().__init__()
        #: No lower sequence is open.
        self.first = 0

    def oldest(self) -> int:
        """Lowest open sequence; there must be one. (Walking: a dict that loses its first items finds them slowly.)"""
        first = self.first
        while first not in self:
            first += 1
        self.first = first
        return first

    def make_room(self, seq: int) -> None:
        """Number ``seq`` has been counted: operations MAX_OPEN older that are still open are given up."""
        while self and seq - self.oldest() >= MAX_OPEN:
            del self[self.first]


class RingWriter(RingRecords):
    """Writes one rank's ring. Create with :meth:`create`."""

    def __init__(self, prepared: PreparedRing) -> None:
        """Map a prepared ring file. Raises OSError or ValueError; the caller discards the file then."""
        geometry = prepared.geometry
        self._start_records(prepared.path, geometry)
        self._fd = prepared.fd
        self._map: mmap.mmap | None = mmap.mmap(prepared.fd, geometry.file_bytes)
        self._set_views(memoryview(self._map))
        self._lock = threading.RLock()
        self._head = 0
        self._event_mask = geometry.event_slots - 1
        self._events_offset = geometry.events_offset
        self._rank_word = self._row_word(layout.RANK_ROW)
        self._first_group_word = self._row_word(layout.FIRST_GROUP_ROW)
        self._step = 0
        self._phase = int(Phase.INIT)
        self._tracks_completion = False
        rows = geometry.group_rows
        self._counts = [[0] * rows, [0] * rows]  # collectives, point-to-point
        self._open = [[_OpenOperations() for _ in range(rows)] for _ in range(2)]
        self._completed = [[0] * rows, [0] * rows]
        now = monotonic_ns()
        self._words[self._rank_word + (layout.R_LEVEL >> 3)] = int(Level.OFF)
        self._words[self._rank_word + (layout.R_PHASE_SINCE_NS >> 3)] = now
        self._words[self._rank_word + (layout.R_STEP_SINCE_NS >> 3)] = now
        self._words[self._rank_word] = 2
        self._phase_since_ns = now
        self._step_since_ns = now
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

    def _set_views(self, view: memoryview) -> None:
        self._bytes = view
        self._words = view.cast("Q")
        self._floats = view.cast("d")

    def _open_group(self, group: int) -> None:
        self._counts[0][group] = self._counts[1][group] = 0

    def track_completion(self, enabled: bool) -> None:
        """Whether enqueued operations count as open until completed; off where nothing would report their end."""
        self._tracks_completion = enabled

    # --- collectives ------------------------------------------------------------------------------------------------
    def enqueue(self, group: int, op: int, nbytes: int, dtype: int, peer: int, flags: int) -> int:
        """Record one issued operation; returns its sequence number (first is 1, P2P counted apart).

        ``nbytes`` in bytes, ``dtype`` a small code, ``peer`` the root or peer rank (-1 = none), ``flags`` EventFlag.
        """
        with self._lock:
            now = monotonic_ns()
            p2p = flags & _P2P
            counts = self._counts[p2p]
            seq = counts[group] + 1
            counts[group] = seq
            head = self._head + 1
            self._head = head
            words = self._words
            slot = self._events_offset + (((head - 1) & self._event_mask) << 6)
            _EVENT.pack_into(
                self._bytes,
                slot,
                0,
                _ENQUEUE | op << 8 | self._phase << 16 | flags << 24 | group << 32 | dtype << 48,
                seq,
                now,
                nbytes,
                self._step,
                peer + 1,
                head,
            )
            # Begin goes last: a reader copies upwards, so begin == end means that all between is whole.
            words[slot >> 3] = head
            words[_HEAD_WORD] = head
            row = self._first_group_word + (group << 4)
            words[row] = head + head - 1
            begin = (row << 3) + 8
            self._bytes[begin : begin + 48] = _GROUP_FRONT.pack(
                self._counts[0][group],
                self._counts[1][group],
                now,
                op | (flags & _SIGNATURE_FLAGS) << 8 | dtype << 16,
                nbytes,
                peer + 1,
            )
            words[row] = head + head
            if self._tracks_completion:
                opened = self._open[p2p][group]
                if opened:
                    opened.make_room(seq)
                else:
                    opened.first = seq
                opened[seq] = (now, self._step)
                count = len(opened) + len(self._open[1 - p2p][group])
                if count == 1:
                    words[row + 8] = head + head - 1
                    words[row + 13] = now
                    words[row + 14] = 1
                    words[row + 8] = head + head
                else:
                    words[row + 14] = count
            return seq

    def skip(self, group: int, flags: int) -> int:
        """Count an operation without recording it (level below events), so that numbers agree again later."""
        with self._lock:
            p2p = flags & _P2P
            seq = self._counts[p2p][group] + 1
            self._counts[p2p][group] = seq
            self._open[p2p][group].make_room(seq)
            return seq

    def enqueued(self, group: int, flags: int = 0) -> int:
        """Sequence number of the last operation counted on the group (of P2P if ``flags`` has P2P)."""
        return self._counts[flags & _P2P][group]

    def complete(self, group: int, seq: int, enqueued_ns: int, flags: int) -> None:
        """Record the end of one operation. A second report of the same end, or of an unknown one, does nothing.

        ``enqueued_ns`` 0 means "as recorded at enqueue".
        """
        with self._lock:
            p2p = flags & _P2P
            opened = self._open[p2p][group]
            entry = opened.pop(seq, None)
            if entry is None:
                return
            now = monotonic_ns()
            head = self._head + 1
            self._head = head
            words = self._words
            slot = self._events_offset + (((head - 1) & self._event_mask) << 6)
            _EVENT.pack_into(
                self._bytes,
                slot,
                0,
                _COMPLETE | self._phase << 16 | flags << 24 | group << 32,
                seq,
                now,
                enqueued_ns or entry[0],
                entry[1],
                0,
                head,
            )
            words[slot >> 3] = head
            words[_HEAD_WORD] = head
            if opened or self._open[1 - p2p][group]:
                self._write_done_half(group, p2p, now)
                return
            # Nothing is open any more: the usual case, in fewer steps.
            row = self._first_group_word + (group << 4)
            self._completed[p2p][group] = completed = self._counts[p2p][group]
            words[row + 8] = head + head - 1
            words[row + 9 + p2p] = completed
            words[row + 11] = now
            words[row + 13] = 0
            words[row + 14] = 0
            words[row + 8] = head + head

    def complete_through(self, group: int, seq: int, flags: int) -> int:
        """Record the end of every open operation up to ``seq``; returns how many that were."""
        with self._lock:
            p2p = flags & _P2P
            opened = self._open[p2p][group]
            ended = sorted(number for number in opened if number <= seq)
            if not ended:
                return 0
            now = monotonic_ns()
            for number in ended:
                enqueued_ns, step = opened.pop(number)
                self._write_end(_COMPLETE, group, number, enqueued_ns, step, now, flags)
            self._write_done_half(group, p2p, now)
            return len(ended)

    def started_through(self, group: int, seq: int) -> None:
        """Record that the device has started every collective up to ``seq`` (only where the backend can tell)."""
        with self._lock:
            row = self._first_group_word + (group << 4)
            if self._words[row + 12] == seq:
                return
            entry = self._open[0][group].get(seq, (0, self._step))
            self._write_end(_STARTED, group, seq, entry[0], entry[1], monotonic_ns(), 0)
            self._words[row + 12] = seq

    def _write_end(self, kind: int, group: int, seq: int, begin_ns: int, step: int, now: int, flags: int) -> None:
        head = self._head + 1
        self._head = head
        slot = self._events_offset + (((head - 1) & self._event_mask) << 6)
        _EVENT.pack_into(
            self._bytes,
            slot,
            0,
            kind | self._phase << 16 | flags << 24 | group << 32,
            seq,
            now,
            begin_ns,
            step,
            0,
            head,
        )
        self._words[slot >> 3] = head
        self._words[_HEAD_WORD] = head

    def _write_done_half(self, group: int, p2p: int, now: int) -> None:
        """Completed means: every lower number is complete as well, so an open older one holds the count back."""
        opened = self._open[p2p][group]
        other = self._open[1 - p2p][group]
        completed = self._completed
        completed[p2p][group] = opened.oldest() - 1 if opened else self._counts[p2p][group]
        oldest = opened[opened.first][0] if opened else 0
        if other:
            other_oldest = other[other.oldest()][0]
            oldest = min(oldest, other_oldest) if oldest else other_oldest
        words = self._words
        row = self._first_group_word + (group << 4)
        head = self._head
        words[row + 8] = head + head - 1
        words[row + 9] = completed[0][group]
        words[row + 10] = completed[1][group]
        words[row + 11] = now
        words[row + 13] = oldest
        words[row + 14] = len(opened) + len(other)
        words[row + 8] = head + head

    def append_event(self, kind: int, group: int = 0, seq: int = 0, value: int = 0, extra: int = 0) -> None:
        """Publish one event in the current phase and step, stamped now."""
        with self._lock:
            self._append(int(kind), group, seq, monotonic_ns(), value, self._step, extra, 0)

    def _append(self, kind: int, group: int, seq: int, now: int, value: int, step: int, extra: int, flags: int) -> None:
        head = self._head + 1
        self._head = head
        slot = self._events_offset + (((head - 1) & self._event_mask) << 6)
        _EVENT.pack_into(
            self._bytes,
            slot,
            0,
            kind | self._phase << 16 | flags << 24 | group << 32,
            seq,
            now,
            value,
            step,
            extra,
            head,
        )
        self._words[slot >> 3] = head
        self._words[_HEAD_WORD] = head

    # --- phase, step, loss ------------------------------------------------------------------------------------------
    def set_phase(self, phase: int) -> int:
        """Enter a phase; returns the previous one. Entering the current phase writes nothing."""
        with self._lock:
            previous = self._phase
            if phase == previous:
                return previous
            now = monotonic_ns()
            self._phase = phase
            self._append(_PHASE, 0, previous, now, self._phase_since_ns, self._step, 0, 0)
            self._phase_since_ns = now
            words = self._words
            row = self._rank_word
            version = words[row] | 1
            words[row] = version
            words[row + 2] = phase
            words[row + 3] = now
            words[row] = version + 1
            return previous

    def end_step(self, loss: float | None, grad_norm: float | None, flags: int) -> int:
        """Close the current step; returns the number of the new one. Flags for loss and norm are set here."""
        with self._lock:
            now = monotonic_ns()
            words = self._words
            row = self._rank_word
            step = self._step
            loss_bits = norm_bits = 0
            if loss is not None:
                flags |= StepFlag.HAS_LOSS
                loss_bits = float_bits(loss)
            if grad_norm is not None:
                flags |= StepFlag.HAS_GRAD_NORM
                norm_bits = float_bits(grad_norm)
            delay = self._run_delay.since_last(now)  # takes the place of group and dtype
            self._append(_STEP, delay, step, now, loss_bits, self._step_since_ns, norm_bits, int(flags))
            self._step = step + 1
            self._step_since_ns = now
            version = words[row] | 1
            words[row] = version
            words[row + 1] = step + 1
            words[row + 4] = now
            if loss is not None:
                words[row + 5] = loss_bits
                words[row + 7] = step
            if grad_norm is not None:
                words[row + 6] = norm_bits
            words[row + 13] = int(flags)
            words[row] = version + 1
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
            version = words[row] | 1
            words[row] = version
            self._floats[row + 5] = loss
            words[row + 7] = self._step
            words[row] = version + 1

    # --- level, cost, exit ------------------------------------------------------------------------------------------
    def set_level(self, level: int, hook_state: int) -> None:
        """Publish the level and the hooks' state; a LEVEL event marks the moment."""
        with self._lock:
            self._append(int(EventKind.LEVEL), 0, 0, monotonic_ns(), int(level), self._step, int(hook_state), 0)
            words = self._words
            words[self._rank_word + 8] = int(level)
            words[self._rank_word + 9] = int(hook_state)

    def add_cost(self, ns: int, calls: int) -> None:
        """Add to the own cost so far: nanoseconds and hook calls."""
        with self._lock:
            self._words[self._rank_word + 10] += ns
            self._words[self._rank_word + 11] += calls

    def record_exit(self, exit_state: int) -> None:
        """Say how the process leaves (ExitState)."""
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
            self._floats.release()
            self._words.release()
            self._bytes.release()
            self._set_views(memoryview(bytearray(self.geometry.file_bytes)))
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
        native_wanted, required = os.environ.get("WHICHRANK_NATIVE", "1") != "0", False
    else:
        native_wanted = required = native
    creator: Any = RingWriter.create
    if native_wanted:
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
