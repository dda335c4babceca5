"""How long the main thread was ready to run and had no CPU: what others on the node took from it, as the kernel counts.

Read at the end of a step by the ring writers (the C recorder has its own reading of the same file). Never raises;
whatever looks odd ends the reading for good. Standard library only.
"""

from __future__ import annotations

import os

from ..telemetry.ring_layout import RUN_DELAY_PERIOD_NS


class RunDelay:
    """Reads ``/proc/self/task/PID/schedstat``: time on a CPU, time waiting for one (both ns), number of turns."""

    __slots__ = ("_fd", "_last_ns", "_read_ns")

    def __init__(self, now_ns: int) -> None:
        self._read_ns = now_ns
        self._last_ns = 0
        try:
            self._fd = os.open(f"/proc/self/task/{os.getpid()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._last_ns = self._total_ns()
        except (OSError, ValueError, IndexError):
            self._fd = -1  # a kernel without it

    def since_last(self, now_ns: int) -> int:
        """Microseconds without a CPU since the last reading, plus one, as a STEP event carries it; 0 = not read this
        time.

        Read every ``RUN_DELAY_PERIOD_NS``. now_ns: monotonic.
        """
        passed_ns = now_ns - self._read_ns
        if self._fd < 0 or passed_ns < RUN_DELAY_PERIOD_NS:
            return 0
        try:
            total_ns = self._total_ns()
        except (OSError, ValueError, IndexError):
            self._fd = -1
            return 0
        delay_ns = total_ns - self._last_ns
        if not 0 <= delay_ns <= 2 * passed_ns:
            self._fd = -1  # the script has closed all its files, and this number is another's now
            return 0
        self._read_ns, self._last_ns = now_ns, total_ns
        return min(delay_ns // 1000 + 1, 0xFFFF_FFFF)

    def close(self) -> None:
        """Closes the file, if it still is ours."""
        try:
            self._total_ns()
            os.close(self._fd)
        except (OSError, ValueError, IndexError):
            pass
        self._fd = -1

    def _total_ns(self) -> int:
        return int(os.pread(self._fd, 64, 0).split()[1])
