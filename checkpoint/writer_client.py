"""A rank's end of its writer process: starts it, gives it orders, hears what became of them in a thread."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from .orders import Kept, Ready, SaveOrder, Uploaded, WriterPlace

#: A rank's own words for launchers: the writer is no rank.
_NOT_FOR_WRITERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


class WriterClient:
    """hear: called in a thread with each word of the writer's; ``ended`` once, when it is gone."""

    def __init__(
        self, place: WriterPlace, hear: Callable[[Kept | Uploaded | Ready], None], ended: Callable[[], None]
    ) -> None:
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_WRITERS}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "whichrank.checkpoint.writer_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        self._lock = threading.Lock()
        self._hear, self._ended = hear, ended
        self._send(place)
        self._thread = threading.Thread(target=self._listen, name="whichrank-near", daemon=True)
        self._thread.start()

    def order(self, order: SaveOrder) -> bool:
        """False: the writer is gone."""
        try:
            self._send(order)
        except (OSError, ValueError):
            return False
        return True

    def _send(self, word: WriterPlace | SaveOrder) -> None:
        with self._lock:
            self._connection.send_bytes(pickle.dumps(word))

    def _listen(self) -> None:
        try:
            while True:
                self._hear(pickle.loads(self._connection.recv_bytes()))
        except (OSError, EOFError):
            self._process.poll()
            self._ended()

    def close(self, patience_s: float) -> None:
        """Lets it end, and waits for it so long; then it is left to end by itself."""
        try:
            # Not close(): the thread that reads would go on waiting.
            socket.socket(fileno=os.dup(self._connection.fileno())).shutdown(socket.SHUT_WR)
            self._process.wait(patience_s)
        except (OSError, subprocess.TimeoutExpired):
            pass
