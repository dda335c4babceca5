"""The heartbeat thread: says 20 times a second that Python runs here, and does what must not cost a training step.

Per beat: the heartbeat row, completion polling. Once a second: level file, own cost, notes, a replaced exception hook.
While the main thread is long in one phase: its stack into the ring, so that it is known even after a SIGKILL.
It takes no lock that training threads hold for long, and ends with the process (daemon).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .background_thread import start_background_thread

#: Seconds between beats.
PERIOD_S = 0.05
#: Age of a phase from which the main thread's stack is kept, and the time between two stacks of the same phase.
STUCK_AFTER_NS = 1_000_000_000
STACK_PERIOD_NS = 3_000_000_000
SLOW_PERIOD_NS = 1_000_000_000


class Heartbeat:
    """Thread that calls ``beat`` each period, ``slow`` each second and ``stack`` while a phase is old.

    phase_changed_ns: monotonic time at which the shown phase began.
    """

    def __init__(
        self,
        *,
        beat: Callable[[], None],
        slow: Callable[[int], None],
        stack: Callable[[], None],
        phase_changed_ns: Callable[[], int],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._beat = beat
        self._slow = slow
        self._stack = stack
        self._phase_changed_ns = phase_changed_ns
        self._on_error = on_error
        # Held until the end. A lock and not an Event, whose every wait makes a lock and takes five times as long.
        self._running = threading.Lock()
        self._running.acquire()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Raises RuntimeError where the process can have no more threads."""
        self._thread = start_background_thread("whichrank-heartbeat", self._run)

    def stop(self) -> None:
        """End the thread; waits at most a moment for it."""
        if self._running.locked():
            self._running.release()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(0.5)

    def _run(self) -> None:
        next_slow_ns = 0
        next_stack_ns = 0
        stack_phase_ns = 0
        ended = False
        while not ended:
            try:
                self._beat()
                now_ns = time.monotonic_ns()
                changed_ns = self._phase_changed_ns()
                if now_ns - changed_ns > STUCK_AFTER_NS and (changed_ns != stack_phase_ns or now_ns >= next_stack_ns):
                    self._stack()
                    stack_phase_ns = changed_ns
                    next_stack_ns = now_ns + STACK_PERIOD_NS
                if now_ns >= next_slow_ns:
                    self._slow(now_ns)
                    next_slow_ns = now_ns + SLOW_PERIOD_NS
            except Exception as error:  # edge: the thread must outlive one bad look
                self._on_error(error)
            ended = self._running.acquire(timeout=PERIOD_S)
