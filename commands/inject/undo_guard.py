"""A process of its own that undoes a fault as soon as its parent has let go of it, whichever way the parent ends.

There is one way to undo, and it runs in there: at the end of ``--for``, at Ctrl-C, at SIGTERM, and at a SIGKILL too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class UndoGuard:
    """Make it before the fault is done, and before any thread is."""

    def __init__(self, undo: Callable[[], None]) -> None:
        """undo: called once, in the other process. Raises OSError (no more processes)."""
        hold, self._let_go = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._let_go)
            _wait_and_undo(hold, undo)
        os.close(hold)
        self._is_over = False
        self._undone = False

    def close(self) -> bool:
        """Lets go, and waits until it is undone; whether it is. May be called again."""
        if not self._is_over:
            self._is_over = True
            os.close(self._let_go)
            _, status = os.waitpid(self._pid, 0)
            self._undone = os.waitstatus_to_exitcode(status) == 0
        return self._undone


def _wait_and_undo(hold: int, undo: Callable[[], None]) -> None:
    """The other process; never returns."""
    status = 1
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        while os.read(hold, 1):
            pass
        undo()
        status = 0
    finally:
        os._exit(status)
