"""Threads of our own inside a training process: daemons that no signal is ever delivered to.

A user who blocks a signal everywhere and waits for it in one thread must be the one to get it; a thread of ours with an
open mask would receive it instead, and by default die of it, with the process. Standard library only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

#: Left deliverable: faults of this very thread.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


def start_background_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Starts ``run`` in a daemon thread to which no signal but faults is delivered. Raises RuntimeError.

    Signals are blocked from its first instruction on.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
