"""The attempt token: rank 0 says once per rendezvous, in the c10d store, under which name this attempt is known.

Launcher variables cannot tell attempts apart over nodes (measured: restart counters differed between nodes), the store
can: it belongs to exactly one rendezvous. Runs in a short-lived thread of its own, never on the hot path: a store call
may block behind one of the training's. Only non-blocking store calls are used; without a token the agent falls back
to the launcher's identity.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .background_thread import start_background_thread

KEY = "whichrank/attempt"
#: How long ranks look for rank 0's token, and how often.
PATIENCE_S = 60.0
PERIOD_S = 0.25


def exchange_token(store: Any, rank: int, deliver: Callable[[str], None], leaving: threading.Event) -> threading.Thread:
    """Start the exchange on ``store`` in a daemon thread; ``deliver(token)`` is called at most once, from there.

    leaving: set when the process ends; the thread ends then, unless it is inside a call of the store.
    """
    return start_background_thread("whichrank-attempt", lambda: _exchange(store, rank, deliver, leaving))


def _exchange(store: Any, rank: int, deliver: Callable[[str], None], leaving: threading.Event) -> None:
    try:
        if rank == 0:
            token = os.urandom(8).hex()  # not the random module: its stream belongs to the training
            store.set(KEY, token)
            deliver(token)
            return
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not leaving.is_set():
            if store.check([KEY]):  # get() alone would block, and hold the store's lock against the training
                deliver(store.get(KEY).decode())
                return
            leaving.wait(PERIOD_S)
    except Exception:  # edge: a store that went away; identity falls back to the launcher's
        return
