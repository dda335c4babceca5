"""Events and group rows of the pure Python ring writer: the path that every collective of the job takes.

Runs on whichever thread issues or ends an operation. A re-entrant lock keeps one record whole (a signal handler may
interrupt its own thread). The order of the writes is that of docs/decisions/0001-ring.md, so that a reader, or a death
between any two of them, never shows half a record. Written for few steps, not for beauty: right after a collective
every step costs several times what it costs in a tight loop.
"""

from __future__ import annotations

import struct
import threading
from time import monotonic_ns

from ..telemetry import ring_layout as layout
from ..telemetry.vocabulary import EventFlag, EventKind, Phase
from .ring_creation import RingGeometry
from .ring_records import RingRecords

#: Operations remembered per group and sort. One that is still open after so many more is given up: counts as complete.
MAX_OPEN = 1024

_ENQUEUE = int(EventKind.ENQUEUE)
_COMPLETE = int(EventKind.COMPLETE)
_STARTED = int(EventKind.STARTED)
_P2P = int(EventFlag.P2P)
#: Flags on which members of a collective must agree; whether a call is asynchronous is each rank's own affair.
_SIGNATURE_FLAGS = int(EventFlag.P2P | EventFlag.NO_SIZE)
_HEAD_WORD = layout.H_EVENT_HEAD >> 3
#: An event (layout.EVENT_STRUCT) and G_ENQUEUE_NS to G_PEER of a group row, with the fields of the head word and of the
#: signature (layout.pack_head, pack_signature) apart: packing them in C is cheaper than shifting Python's integers.
_pack_event = struct.Struct("<Q4B2H6Q").pack_into
_pack_signature = struct.Struct("<Q2BH4x2Q").pack_into


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


class RingCollectives(RingRecords):
    """Hot half of RingWriter: appends events, and counts operations per group."""

    def _start_collectives(self, view: memoryview, geometry: RingGeometry) -> None:
        self._lock = threading.RLock()
        self._event_mask = geometry.event_slots - 1
        self._first_group_word = self._row_word(layout.FIRST_GROUP_ROW)
        self._head = 0
        self._step = 0
        self._phase = int(Phase.INIT)
        self._tracks_completion = False
        rows = geometry.group_rows
        self._counts = [[0] * rows, [0] * rows]  # collectives, point-to-point
        self._open = [[_OpenOperations() for _ in range(rows)] for _ in range(2)]
        self._completed = [[0] * rows, [0] * rows]
        self._set_views(view, geometry)

    def _set_views(self, view: memoryview, geometry: RingGeometry) -> None:
        """Write to this memory from now on."""
        self._bytes = view
        self._words = view.cast("Q")
        end = geometry.events_offset + geometry.event_slots * layout.EVENT_BYTES
        self._events = view[geometry.events_offset : end]
        self._event_words = self._events.cast("Q")

    def _release_views(self) -> None:
        for view in (self._event_words, self._events, self._words, self._bytes):
            view.release()

    def _open_group(self, group: int) -> None:
        self._counts[0][group] = self._counts[1][group] = 0

    def track_completion(self, enabled: bool) -> None:
        """Whether enqueued operations count as open until completed; off where nothing would report their end."""
        self._tracks_completion = enabled

    # --- events -----------------------------------------------------------------------------------------------------
    def append_event(self, kind: int, group: int = 0, seq: int = 0, value: int = 0, extra: int = 0) -> None:
        """Publish one event in the current phase and step, stamped now."""
        with self._lock:
            self._append(int(kind), group, seq, monotonic_ns(), value, self._step, extra, 0)

    def _append(
        self, kind: int, group: int, seq: int, now: int, value: int, step: int, extra: int, flags: int, dtype: int = 0
    ) -> None:
        index = (self._head & self._event_mask) << 3
        self._head = head = self._head + 1
        _pack_event(
            self._events, index << 3, 0, kind, 0, self._phase, flags, group, dtype, seq, now, value, step, extra, head
        )
        # Begin goes last: a reader copies upwards, so begin == end means that all between is whole.
        self._event_words[index] = head
        self._words[_HEAD_WORD] = head

    # --- collectives ------------------------------------------------------------------------------------------------
    def enqueue(self, group: int, op: int, nbytes: int, dtype: int, peer: int, flags: int) -> int:
        """Record one issued operation; returns its sequence number (first is 1, P2P counted apart).

        ``nbytes`` in bytes, ``dtype`` a small code, ``peer`` the root or peer rank (-1 = none), ``flags`` EventFlag.
        """
        with self._lock:
            now = monotonic_ns()
            p2p = flags & _P2P
            counts = self._counts[p2p]
            counts[group] = seq = counts[group] + 1
            # The same as _append, without the call.
            index = (self._head & self._event_mask) << 3
            self._head = head = self._head + 1
            step = self._step
            _pack_event(
                self._events,
                index << 3,
                0,
                _ENQUEUE,
                op,
                self._phase,
                flags,
                group,
                dtype,
                seq,
                now,
                nbytes,
                step,
                peer + 1,
                head,
            )
            self._event_words[index] = head
            words = self._words
            words[_HEAD_WORD] = head
            row = self._first_group_word + (group << 4)
            words[row] = head + head - 1
            words[row + 1 + p2p] = seq
            _pack_signature(self._bytes, (row + 3) << 3, now, op, flags & _SIGNATURE_FLAGS, dtype, nbytes, peer + 1)
            words[row] = head + head
            if self._tracks_completion:
                opened = self._open[p2p][group]
                if opened:
                    opened.make_room(seq)
                else:
                    opened.first = seq
                opened[seq] = (now, step)
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

    def complete(self, group: int, seq: int, enqueued_ns: int, flags: int, waiting_since_ns: int = 0) -> None:
        """Record the end of one operation. A second report of the same end, or of an unknown one, does nothing.

        ``enqueued_ns`` 0 means "as recorded at enqueue"; ``waiting_since_ns``: when the host began to wait() for it.
        """
        with self._lock:
            p2p = flags & _P2P
            opened = self._open[p2p][group]
            entry = opened.pop(seq, None)
            if entry is None:
                return
            now = monotonic_ns()
            self._append(_COMPLETE, group, seq, now, enqueued_ns or entry[0], entry[1], waiting_since_ns, flags)
            if opened or self._open[1 - p2p][group]:
                self._write_done_half(group, p2p, now)
                return
            # Nothing is open any more: the usual case, in fewer steps.
            words = self._words
            row = self._first_group_word + (group << 4)
            head = self._head
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
                self._append(_COMPLETE, group, number, now, enqueued_ns, step, 0, flags)
            self._write_done_half(group, p2p, now)
            return len(ended)

    def started_through(self, group: int, seq: int) -> None:
        """Record that the device has started every collective up to ``seq`` (only where the backend can tell)."""
        with self._lock:
            row = self._first_group_word + (group << 4)
            if self._words[row + 12] == seq:
                return
            entry = self._open[0][group].get(seq, (0, self._step))
            now = monotonic_ns()
            self._append(_STARTED, group, seq, now, entry[0], entry[1], 0, 0)
            self._words[row + 15] = now
            self._words[row + 12] = seq

    def _show_counts(self, now: int) -> None:
        """Collectives are recorded again: the rows show what was only counted. The caller has appended an event."""
        words, version = self._words, self._head + self._head
        for group, counts in enumerate(zip(*self._counts, strict=True)):
            if not any(counts):
                continue
            row = self._first_group_word + (group << 4)
            words[row] = version - 1
            words[row + 1], words[row + 2] = counts
            words[row] = version
            if self._tracks_completion:
                for p2p, opened in enumerate((self._open[0][group], self._open[1][group])):
                    self._completed[p2p][group] = opened.oldest() - 1 if opened else counts[p2p]
                self._write_done_half(group, 0, now)

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
