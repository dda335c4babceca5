"""SIGTERM, held back until the emergency save is over, and then passed on to whatever handled it before.

Only where the owner asked for it by ``on_checkpoint``. The main thread may stand in a call of C, where no handler of
Python runs: the interpreter's wake-up descriptor tells the watching thread all the same. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_TERM = int(signal.SIGTERM)
#: More than any system's ``struct sigaction``.
_ACTION_BYTES = 512
#: The system call's number by machine, and where siginfo has its parts: number, errno, code, then sender and user.
_QUEUE_INFO = {"x86_64": 129, "aarch64": 138}
_SIGINFO_BYTES = 128


class TermSignal:
    """Holds SIGTERM back from ``install`` (main thread) until ``pass_on`` or ``release`` (any thread)."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._action = ctypes.create_string_buffer(_ACTION_BYTES)
        self._before: Any = None
        self._owns_wakeup = False
        self._gave_up = False
        self.is_held = False
        #: Whether one came that was not passed on.
        self.is_pending = False

    def install(self) -> None:
        """Takes SIGTERM over. Raises ValueError outside of the main thread, OSError."""
        if self._libc.sigaction(_TERM, None, self._action):
            raise OSError(ctypes.get_errno(), "sigaction")
        self._before = signal.getsignal(_TERM)
        signal.signal(_TERM, self._on_signal)
        self.is_held = True
        other = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._owns_wakeup = other < 0
        if not self._owns_wakeup:  # somebody's event loop: then the handler has to do
            signal.set_wakeup_fd(other, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> bool:
        """Whether a SIGTERM came; waits so long for one. For the watching thread."""
        ready, _, _ = select.select([self._read_end], [], [], seconds)
        came = bool(ready) and _TERM in os.read(self._read_end, 4096) and self.is_held
        self.is_pending |= came
        return came

    def pass_on(self, in_main: bool) -> None:
        """Lets the signal do what it would have done, if one came; the next ones find the handler of before.

        Without a handler of before the process ends here. Its own sender is not known: 0.
        """
        if not self.is_pending:
            return
        self.is_pending = False
        before = self._before
        if callable(before):
            self.is_held = False
            if in_main:
                signal.signal(_TERM, before)
                before(_TERM, None)
            else:  # from our handler, as soon as the main thread runs
                self._gave_up = True
                signal.pthread_kill(threading.main_thread().ident or 0, _TERM)
            return
        self.release()
        if before != signal.SIG_IGN:
            self._send()

    def release(self) -> None:
        """Puts back what handled SIGTERM before, from any thread."""
        if self.is_held and not callable(self._before):
            self.is_held = False
            self._libc.sigaction(_TERM, self._action, None)

    def forget_in_child(self) -> None:
        """In a forked child: SIGTERM is as it was, and nothing is told to the parent."""
        if self._owns_wakeup:
            signal.set_wakeup_fd(-1)
        if self.is_held and callable(self._before):
            signal.signal(_TERM, self._before)
            self.is_held = False
        self.release()

    def remove(self) -> None:
        """Takes the handler out again. For the main thread."""
        if self._owns_wakeup:
            signal.set_wakeup_fd(-1)
        if self.is_held and callable(self._before) and signal.getsignal(_TERM) == self._on_signal:
            signal.signal(_TERM, self._before)
            self.is_held = False
        self.release()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before: Callable[[int, FrameType | None], Any] | Any = self._before
        if self._gave_up and callable(before):
            before(number, frame)
        elif not self._owns_wakeup:
            try:
                os.write(self._write_end, bytes([_TERM]))
            except OSError:  # full: it is known already
                return

    def _send(self) -> None:
        """SIGTERM to this process, with nobody as its sender: whoever sent the first is not known any more."""
        call = _QUEUE_INFO.get(os.uname().machine)
        info = ctypes.create_string_buffer(_SIGINFO_BYTES)
        ctypes.c_int.from_buffer(info, 0).value = _TERM
        if call is None or self._libc.syscall(call, os.getpid(), _TERM, info):
            os.kill(os.getpid(), _TERM)
