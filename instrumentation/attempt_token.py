"""The attempt token: the ranks of one rendezvous agree, in the c10d store, under which name this attempt is known.

Launcher variables cannot tell attempts apart over nodes (measured: restart counters differed between nodes), the store
can: it belongs to exactly one rendezvous. Whoever comes first puts a token there, everybody takes what is there, in one
atomic call that never waits for another rank: so a rank that joins late, or whose first import takes a minute, finds
it too. Runs in a short-lived thread of its own, never on the hot path: a store call may block behind one of the
training's. The store is asked only while it is there: otherwise torch would print a C++ backtrace into the job's log.
Without a token the agent falls back to the launcher's identity.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .background_thread import start_background_thread

KEY = "whichrank/attempt"
#: The kernel's tables of TCP connections. Columns: local address, remote address, state, ..., inode as the tenth.
CONNECTION_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
ESTABLISHED = "01"


def exchange_token(store: Any, deliver: Callable[[str], None]) -> threading.Thread:
    """Start the exchange on ``store`` in a daemon thread; ``deliver(token)`` is called at most once, from there."""
    return start_background_thread("whichrank-attempt", lambda: _exchange(store, deliver))


def _exchange(store: Any, deliver: Callable[[str], None]) -> None:
    try:
        if is_connected(store):
            mine = os.urandom(8).hex()  # not the random module: its stream belongs to the training
            deliver(store.compare_set(KEY, "", mine).decode())  # mine, unless there was one already
    except Exception:  # edge: a store that went away or cannot compare; identity falls back to the launcher's
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
