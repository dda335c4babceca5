"""Notes a fatal signal, its time, its sender and the main thread's stack in the ring, with the C module ``_fatal``.

Only where the disposition is the default (or faulthandler's, which then runs as before): a handler that the program
installed with Python's ``signal`` is the program's own affair. There is no Python fallback, because a Python handler
runs too late or never and would change the outcome; the agent then still sees the signal in the exit status.

The stack matters where a rank that hangs in a collective is ended by its launcher a moment after a peer's death: no
Python code of it runs any more. It is written by faulthandler's own handler, within the C handler.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from ..telemetry import ring_layout as layout
from .support.native import native_wanted

FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTERM)

#: The signal for which faulthandler is registered, and its pipe; None where nothing is.
_borrowed: tuple[int, int, int] | None = None


def watch_fatal_signals(ring: Path, crash_offset: int) -> tuple[int, ...]:
    """Installs handlers that note a fatal signal and stack in the ring; returns the signals that are watched.

    () where C is not wanted; signals that the program handles are left alone. crash_offset: where the ring's crash area
    begins, in bytes. Raises ImportError without the C module, OSError, ValueError.
    """
    if not native_wanted():
        return ()
    from . import _fatal

    # None means "not installed from Python": faulthandler and other C code.
    free = [int(number) for number in FATAL_SIGNALS if signal.getsignal(number) in (signal.SIG_DFL, None)]
    if os.getpid() == 1 and int(signal.SIGTERM) in free:
        free.remove(int(signal.SIGTERM))  # the kernel spares process 1 its default; a handler would be called
    watched = tuple(_fatal.install(os.fspath(ring), crash_offset + layout.C_SIG_NUMBER, free))
    _keep_stacks(crash_offset)
    return watched


def _keep_stacks(crash_offset: int) -> None:
    """Lend faulthandler's stack writer to the C handlers. Where that cannot be, the note has no stack."""
    global _borrowed
    from . import _fatal

    if _borrowed is not None:
        return
    try:
        number = _fatal.unused_signal()
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return
    try:
        faulthandler.register(number, file=write_end, all_threads=False, chain=False)
        _borrowed = (number, read_end, write_end)
        words, text = crash_offset + layout.C_STACK_VERSION, crash_offset + layout.C_STACK
        _fatal.keep_stacks(number, read_end, write_end, words, text, layout.C_STACK_MAX)
    except (OSError, RuntimeError, ValueError):
        _give_back()


def _give_back() -> None:
    global _borrowed
    if _borrowed is not None:
        number, read_end, write_end = _borrowed
        _borrowed = None
        faulthandler.unregister(number)
        os.close(read_end)
        os.close(write_end)


def unwatch_fatal_signals() -> None:
    """Takes our handlers out again, and puts the previous dispositions back."""
    from . import _fatal

    if _fatal.uninstall():
        _give_back()  # else the program uses that signal by now, and unregistering would take its handler away
