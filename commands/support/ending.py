"""When a service is asked to end, or to read its settings again: by signals, seen between two pieces of work."""

from __future__ import annotations

import signal
import time
from types import FrameType


class EndRequest:
    """SIGTERM and SIGINT end, SIGHUP reloads."""

    def __init__(self) -> None:
        self.asked = False
        self.reload = False
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, self._end)
        signal.signal(signal.SIGHUP, self._reload)

    def wait(self, seconds: float) -> None:
        """Sleeps for so long, or until it is asked to end.

        In pieces: a signal's handler does not end a sleep.
        """
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def _reload(self, number: int, frame: FrameType | None) -> None:
        self.reload = True
