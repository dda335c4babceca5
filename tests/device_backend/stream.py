"""The compute stream of the pretended device: an in-order queue that a thread of its own works off.

The host launches and goes on. It is held up only by a full launch queue, as by CUDA's, or where it asks for the
result (``synchronize``). One per process. Times are seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

#: Launches that may lie in the queue; a step of a small job is about half a dozen.
CAPACITY = 24


class Event:
    """A mark in a stream: set once the device has come so far."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = threading.Event()

    def query(self) -> bool:
        return self._done.is_set()

    def set(self) -> None:
        self._done.set()

    def wait(self, seconds: float | None = None) -> bool:
        return self._done.wait(seconds)


class DeviceStream:
    """Does what was launched, in order, one at a time. ``capacity`` launches at most wait to be done."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.blocking = True
        self.launched = 0
        self.stalled_s = 0.0  # how long the host stood before a full queue
        self._queue: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._thread = threading.Thread(target=self._work, name="device-stream", daemon=True)
        self._thread.start()

    # --- the host's side --------------------------------------------------------------------------------------------
    def run_ahead(self, capacity: int | None = None) -> None:
        """From now on calls return at once."""
        self.capacity = capacity or self.capacity
        self.blocking = False

    def launch(self, kernel: Callable[[], object]) -> None:
        """Puts a kernel at the end of the queue; waits for room in it, and for the kernel while still blocking."""
        with self._changed:
            began = time.monotonic()
            while len(self._queue) >= self.capacity:
                self._changed.wait()
            self.stalled_s += time.monotonic() - began
            self._queue.append(kernel)
            self.launched += 1
            self._changed.notify_all()
        if self.blocking:
            self.synchronize()

    def compute(self, seconds: float, before: Callable[[], object] | None = None) -> None:
        """A kernel that takes so long. ``before``: called by the device when it begins."""

        def kernel() -> None:
            until = time.monotonic() + seconds
            if before is not None:
                before()
            while (rest := until - time.monotonic()) > 0.0:
                time.sleep(rest)

        self.launch(kernel)

    def record_event(self) -> Event:
        """An event that is set once all that was launched before it is done."""
        event = Event()
        self.launch(event.set)
        return event

    def wait_event(self, event: Event) -> None:
        """What is launched from now on begins after the event; the host does not wait."""
        self.launch(event.wait)

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """The host waits until the queue is empty and nothing runs. False: it took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    @property
    def waiting(self) -> int:
        """Launches that the device has not begun."""
        return len(self._queue)

    # --- the device's side ------------------------------------------------------------------------------------------
    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                kernel = self._queue.popleft()
                self._busy = True
                self._changed.notify_all()
            kernel()
            with self._changed:
                self._busy = False
                self._changed.notify_all()


_stream: DeviceStream | None = None


def stream() -> DeviceStream:
    """The stream of this process, made when it is first asked for."""
    global _stream
    if _stream is None:
        _stream = DeviceStream()
    return _stream
