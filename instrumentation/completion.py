"""Completion of collectives: holds the Work of operations that have not ended and reports their ends to the writer.

Two sources. ``Work.wait`` is wrapped: a Python wait stamps the exact end. Everything else (DDP's C++ waits, functional
collectives, calls nobody waits for) is found by testing ``is_completed()`` at the next operation, at phase edges and
from the heartbeat thread; such an end is an upper bound and flagged POLLED. Only Work of host backends is held: that of
a device backend would keep device memory alive, and its wait() does not wait (see collectives_status for those).
Never waits, never synchronises, never raises into the job except what the original ``wait`` raised.
"""

from __future__ import annotations

from typing import Any

from ..telemetry.vocabulary import EventFlag
from .ring_writer import RankRecorder

#: Work objects held at most, over all groups. The oldest is let go beyond that, so that memory stays bounded.
MAX_HELD = 4096

_POLLED = int(EventFlag.POLLED)
_FAILED = int(EventFlag.FAILED)

Held = tuple[Any, int, int, int]
"""Work, group row, sequence, flags."""


class CompletionTracker:
    """Open Work objects by identity. Any thread may call any method; dict operations are atomic under the GIL."""

    def __init__(self, writer: RankRecorder) -> None:
        self._writer = writer
        self.held: dict[int, Held] = {}
        self._original_wait: Any = None
        self._work_class: Any = None
        self.errors = 0

    def __len__(self) -> int:
        return len(self.held)

    def clear(self) -> None:
        """Let everything go without reporting an end."""
        self.held.clear()

    def hold(self, work: Any, group: int, seq: int, flags: int) -> None:
        """Remember an issued operation until its end is seen."""
        held = self.held
        held[id(work)] = (work, group, seq, flags)
        if len(held) > MAX_HELD:
            self.poll()
            while len(held) > MAX_HELD:
                self._finish(next(iter(held)), _POLLED)

    def poll(self) -> int:
        """Test every held Work once; returns how many ended."""
        ended = 0
        for key, entry in list(self.held.items()):
            try:
                if entry[0].is_completed():
                    self._finish(key, _POLLED, entry)
                    ended += 1
            except Exception:
                self.errors += 1
                self._finish(key, _POLLED | _FAILED, entry)
        return ended

    def poll_oldest(self, limit: int = 4) -> None:
        """Test the oldest held Work, going on only while they have ended: cheap enough for every operation."""
        for key, entry in list(self.held.items())[:limit]:
            if not entry[0].is_completed():
                return
            self._finish(key, _POLLED, entry)

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

    # --- exact ends -------------------------------------------------------------------------------------------------
    def install_wait(self) -> None:
        """Wrap ``Work.wait`` so that waits from Python stamp the end of what they waited for."""
        from torch._C._distributed_c10d import Work

        original = Work.wait
        held = self.held
        complete = self._writer.complete
        tracker = self

        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(self, *args, **kwargs)
            except Exception:
                tracker.fail(self)
                raise
            entry = held.pop(id(self), None)
            if entry is not None:
                try:
                    complete(entry[1], entry[2], 0, entry[3])
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
        """Put the original ``wait`` back (tests, level off)."""
        if self._work_class is not None:
            self._work_class.wait = self._original_wait
            self._work_class = None

    def fail(self, work: Any) -> None:
        """The wait for this Work raised: the operation ended with an error."""
        entry = self.held.pop(id(work), None)
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
