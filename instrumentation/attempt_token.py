"""The attempt token: rank 0 says once per rendezvous, in the c10d store, under which name this attempt is known.

Launcher variables cannot tell attempts apart over nodes (measured: restart counters differed between nodes), the store
can: it belongs to exactly one rendezvous. Runs in a short-lived thread of its own, never on the hot path: a store call
may block behind one of the training's. Only non-blocking store calls are used, and only while the store is there: asked
once more, torch would print a C++ backtrace into the job's log. Without a token the agent falls back to the launcher's
identity.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .background_thread import start_background_thread

KEY = "whichrank/attempt"
#: How long ranks look for rank 0's token, and how often.
PATIENCE_S = 60.0
PERIOD_S = 0.25
#: The kernel's tables of TCP connections. Columns: local address, remote address, state, ..., inode as the tenth.
CONNECTION_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
ESTABLISHED = "01"


def exchange_token(store: Any, rank: int, deliver: Callable[[str], None], leaving: threading.Event) -> threading.Thread:
    """Start the exchange on ``store`` in a daemon thread; ``deliver(token)`` is called at most once, from there.

    leaving: set when the process ends; the thread ends then, unless it is inside a call of the store.
    """
    return start_background_thread("whichrank-attempt", lambda: _exchange(store, rank, deliver, leaving))


def _exchange(store: Any, rank: int, deliver: Callable[[str], None], leaving: threading.Event) -> None:
    try:
        if rank == 0:
            if not is_connected(store):
                return
            token = os.urandom(8).hex()  # not the random module: its stream belongs to the training
            store.set(KEY, token)
            deliver(token)
            return
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not leaving.is_set() and is_connected(store):
            if store.check([KEY]):  # get() alone would block, and hold the store's lock against the training
                deliver(store.get(KEY).decode())
                return
            leaving.wait(PERIOD_S)
    except Exception:  # edge: a store that went away; identity falls back to the launcher's
        return


def is_connected(store: Any) -> bool:
    """Whether this process still has its connection to the process that keeps ``store``.

    A store without a connection (a file, a dictionary) counts as connected. Nothing is sent, and nothing of torch's is
    touched: its socket cannot be had from Python. Raises OSError where the kernel's tables cannot be read.
    """
    while hasattr(store, "underlying_store"):  # prefixes of keys, one around the other
        store = store.underlying_store
    port = getattr(store, "port", None)
    if port is None:
        return True
    here = f":{port:04X} {ESTABLISHED} "
    lines = [
        line for table in CONNECTION_TABLES if table.exists() for line in table.read_text().splitlines() if here in line
    ]
    return not _own_sockets().isdisjoint(line.split()[9] for line in lines)


def _own_sockets() -> set[str]:
    """Inodes of this process's sockets."""
    inodes = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    return inodes
