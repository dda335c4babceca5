"""Completion of collectives: holds the Work of operations that have not ended and reports their ends to the writer.

Two sources. ``Work.wait`` is wrapped: a Python wait stamps its begin and the exact end. Everything else (DDP's C++
waits, functional collectives, calls nobody waits for) is found by testing ``is_completed()`` at the next operation, at
phase edges and from the heartbeat thread; such an end is an upper bound and flagged POLLED. Only Work of host backends
is held: that of a device backend would keep device memory alive, and its wait() does not wait (see collectives_status).
Never waits, never synchronises, never raises into the job except what the original ``wait`` raised.
"""

from __future__ import annotations

import sys
from threading import get_ident
from time import monotonic_ns
from typing import Any

from ..telemetry.vocabulary import EventFlag
from .ring_writer import RankRecorder

#: Work objects held at most, over all groups. The oldest is let go beyond that, so that memory stays bounded.
MAX_HELD = 4096

#: Age from which a Work that no Python code holds was surely handed to its caller and dropped.
ABANDONED_NS = 500_000_000

_P2P = int(EventFlag.P2P)
_POLLED = int(EventFlag.POLLED)
_FAILED = int(EventFlag.FAILED)

Held = tuple[Any, int, int, int]
"""Work, group row, sequence, flags."""


Silent = tuple[Any, int, int, int, int, int]
"""Work, group row, sequence, flags, issuing thread, monotonic ns."""


class CompletionTracker:
    """Open Work objects by identity. Any thread may call any method; dict operations are atomic under the GIL."""

    def __init__(self, writer: RankRecorder) -> None:
        self._writer = writer
        self.held: dict[int, Held] = {}
        #: Gloo's Work of reduce_scatter and point-to-point calls, which completes nowhere but in its own wait().
        self.silent: dict[int, Silent] = {}
        self._original_wait: Any = None
        self._work_class: Any = None
        self.errors = 0

    def __len__(self) -> int:
        return len(self.held) + len(self.silent)

    def clear(self) -> None:
        """Lets go of every Work without reporting its end."""
        self.held.clear()
        self.silent.clear()

    def hold(self, work: Any, group: int, seq: int, flags: int, silent: bool = False) -> None:
        """Keeps the Work of an issued operation until its end is seen. silent: it may never say that it completed.

        Beyond ``MAX_HELD`` the oldest are reported as ended.
        """
        if silent:
            self.silent[id(work)] = (work, group, seq, flags, get_ident(), monotonic_ns())
            if len(self.silent) > MAX_HELD:
                self._finish_silent(next(iter(self.silent)), _POLLED)
            return
        held = self.held
        held[id(work)] = (work, group, seq, flags)
        if len(held) > MAX_HELD:
            self.poll()
            while len(held) > MAX_HELD:
                self._finish(next(iter(held)), _POLLED)

    def poll(self) -> int:
        """Asks every held Work once whether it has completed, and reports the ends; returns how many ended."""
        ended = 0
        for key, entry in list(self.held.items()):
            try:
                if entry[0].is_completed():
                    self._finish(key, _POLLED, entry)
                    ended += 1
            except Exception:
                self.errors += 1
                self._finish(key, _POLLED | _FAILED, entry)
        return ended + self._poll_silent()

    def poll_oldest(self, limit: int = 4) -> None:
        """Asks the oldest held Works, going on only while they have ended, ``limit`` at most.

        Cheap enough for every operation.
        """
        if self.silent:
            self._poll_silent()
        for key, entry in list(self.held.items())[:limit]:
            if not entry[0].is_completed():
                return
            self._finish(key, _POLLED, entry)

    def _poll_silent(self) -> int:
        """End what nobody can wait for from Python any more, which tells its end at best: see ``_is_abandoned``."""
        ended = 0
        for key, entry in list(self.silent.items()):
            if entry[0].is_completed() or _is_abandoned(entry):
                self._finish_silent(key, _POLLED, entry)
                ended += 1
        return ended

    def _finish(self, key: int, flags: int, expected: Held | None = None) -> None:
        entry = self.held.pop(key, None)
        if entry is None:
            return
        if expected is not None and entry is not expected:
            self.held[key] = entry
            return
        if flags & _FAILED == 0 and flags & _POLLED and self._has_failed(entry[0]):
            flags |= _FAILED
        self._writer.complete(entry[1], entry[2], 0, entry[3] | flags)

    def _finish_silent(self, key: int, flags: int, expected: Silent | None = None) -> None:
        entry = self.silent.pop(key, None)
        if entry is None:
            return
        if expected is not None and entry is not expected:
            self.silent[key] = entry
            return
        self._writer.complete(entry[1], entry[2], 0, entry[3] | flags)

    # --- exact ends -------------------------------------------------------------------------------------------------
    def install_wait(self) -> None:
        """Wrap ``Work.wait`` so that waits from Python stamp the end of what they waited for."""
        from torch._C._distributed_c10d import Work

        original = Work.wait
        take = self.held.pop
        take_silent = self.silent.pop
        complete = self._writer.complete
        tracker = self

        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            since = monotonic_ns()
            try:
                result = original(self, *args, **kwargs)
            except Exception:
                tracker.fail(self)
                raise
            key = id(self)
            entry: Any = take(key, None) or take_silent(key, None)
            if entry is not None:
                try:
                    complete(entry[1], entry[2], 0, entry[3], since)
                except Exception:
                    tracker.errors += 1
            return result

        wait.__doc__ = getattr(original, "__doc__", None)
        # Dynamo must call this, not trace into it.
        wait._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._original_wait = original
        self._work_class = Work
        Work.wait = wait  # type: ignore[method-assign]

    def uninstall_wait(self) -> None:
        """Puts torch's own ``Work.wait`` back (tests, level off)."""
        if self._work_class is not None:
            self._work_class.wait = self._original_wait
            self._work_class = None

    def fail(self, work: Any) -> None:
        """Reports that this Work's operation ended with an error, because a wait for it raised."""
        entry: Any = self.held.pop(id(work), None) or self.silent.pop(id(work), None)
        if entry is not None:
            try:
                self._writer.complete(entry[1], entry[2], 0, entry[3] | _FAILED)
            except Exception:
                self.errors += 1

    def _has_failed(self, work: Any) -> bool:
        """Whether an ended operation ended with an error. Its wait() returns or raises at once; asking Work directly
        (``is_success``, ``exception``) prints a deprecation warning into the job's log."""
        wait = self._original_wait
        if wait is None:
            return False
        try:
            wait(work)
        except Exception:
            return True
        return False


def _is_abandoned(entry: Silent) -> bool:
    """Whether a silent operation that is still open can be taken for ended.

    While Python code holds its Work, that may still wait for it, and the exact end comes from there. Otherwise:
    point-to-point: nobody ever will (the Work has reached its caller long since). reduce_scatter: C++ waits for it, in
    the thread that issued it; if that thread is here, it is not waiting there.
    """
    if sys.getrefcount(entry[0]) > 2:  # this tuple, and the argument of getrefcount
        return False
    if entry[3] & _P2P:
        return monotonic_ns() - entry[5] > ABANDONED_NS
    return entry[4] == get_ident()
