"""Notes a fatal signal, its time and its sender in the ring's crash area, with the C module ``_fatal`` where it loads.

Only where the disposition is the default (or faulthandler's, which then runs as before): a handler that the program
installed with Python's ``signal`` is the program's own affair. There is no Python fallback, because a Python handler
runs too late or never and would change the outcome; the agent then still sees the signal in the exit status.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ..telemetry import ring_layout as layout

FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTERM)


def watch_fatal_signals(ring: Path, crash_offset: int) -> tuple[int, ...]:
    """Install the handlers; returns the signals watched. Raises ImportError without the C module, OSError, ValueError.

    crash_offset: where the crash area of the ring file begins, in bytes.
    """
    if os.environ.get("WHICHRANK_NATIVE") == "0":
        return ()
    from . import _fatal

    # None means "not installed from Python": faulthandler and other C code.
    free = [int(number) for number in FATAL_SIGNALS if signal.getsignal(number) in (signal.SIG_DFL, None)]
    if os.getpid() == 1 and int(signal.SIGTERM) in free:
        free.remove(int(signal.SIGTERM))  # the kernel spares process 1 its default; a handler would be called
    return tuple(_fatal.install(os.fspath(ring), crash_offset + layout.C_SIG_NUMBER, free))


def unwatch_fatal_signals() -> None:
    """Put the previous dispositions back."""
    from . import _fatal

    _fatal.uninstall()
