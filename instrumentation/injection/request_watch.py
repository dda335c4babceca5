"""Listens for the request to do one fault, and says right before it is done that it is. Standard library only.

Exists only in a job that allowed it when it started. A thread looks for the file; the fault itself is done in the main
thread by whoever takes the request (``inside_faults``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...telemetry.injection_words import ANSWER_FILE, MAX_FILE_BYTES, REQUEST_FILE, InsideFault

#: Between two looks at the file, in seconds.
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRequest:
    """until_s: Unix seconds; afterwards it is not done any more."""

    id: str
    kind: InsideFault
    until_s: float


class RequestWatch:
    """``waiting`` is the request that has yet to be done, None most of the time: all that hooks look at."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        *,
        step: Callable[[], int],
        start_thread: Callable[[str, Callable[[], None]], threading.Thread],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """step: the rank's own. on_error: is told what ends the watch."""
        self.waiting: FaultRequest | None = None
        self._directory, self._rank, self._step = directory, rank, step
        self._start_thread, self._on_error = start_thread, on_error
        self._seen: tuple[int, int] | None = None
        self._taken = ""
        self._ended = threading.Event()
        self._pid = os.getpid()

    def start(self) -> None:
        """Begins to look. Raises RuntimeError (no more threads)."""
        self._start_thread("whichrank-inject", self._run)

    def stop(self) -> None:
        """Ends the watch; nothing is done any more."""
        self._ended.set()
        self.waiting = None

    def take(self, *kinds: InsideFault) -> bool:
        """Whether a fault of one of these kinds is to be done now, once. Then it has been written down. Never raises.

        For the main thread of the process that started it.
        """
        request = self.waiting
        if request is None or request.kind not in kinds or os.getpid() != self._pid:
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
        self.waiting = None
        try:
            if time.time() > request.until_s:
                return False
            self._answer(request)
        except Exception as error:  # edge: what cannot be written down is not done
            self._on_error(error)
            return False
        return True

    def _answer(self, request: FaultRequest) -> None:
        said = {"id": request.id, "time": time.time(), "step": self._step()}
        part = self._directory / f".{ANSWER_FILE}.{os.getpid()}"
        part.write_text(json.dumps(said), encoding="utf-8")
        part.replace(self._directory / ANSWER_FILE)

    def _run(self) -> None:
        try:
            while not self._ended.wait(LOOK_S):
                self._look()
        except Exception as error:  # edge: a file that is not ours
            self._on_error(error)

    def _look(self) -> None:
        path = self._directory / REQUEST_FILE
        try:
            state = os.stat(path)
        except OSError:
            self._seen = self.waiting = None  # taken back
            return
        seen = (state.st_mtime_ns, state.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        with open(path, encoding="utf-8", errors="replace") as file:
            request = read_request(file.read(MAX_FILE_BYTES), self._rank)
        if request is not None and request.id != self._taken:
            self._taken = request.id
            self.waiting = request


def read_request(text: str, rank: int) -> FaultRequest | None:
    """The request in the text of the file; None where it is none, or another rank's. Never raises."""
    try:
        said = json.loads(text)
        if said["rank"] != rank:
            return None
        return FaultRequest(id=str(said["id"]), kind=InsideFault(said["kind"]), until_s=float(said["until_s"]))
    except (ValueError, KeyError, TypeError):
        return None
