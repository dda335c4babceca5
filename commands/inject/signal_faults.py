"""What all faults have in common, and those that a signal does: stop, slow, kill."""

from __future__ import annotations

import signal
import threading
import time
from typing import Protocol

from ..run_folder.run_directory import Unusable
from .target_job import TargetRank

#: One turn of a slow rank: a part of it stopped, the rest running. Shorter than a step, longer than a time slice.
TURN_S = 0.02


class Injection(Protocol):
    """``begin``, perhaps ``tend`` now and then, ``halt``; then ``undo``, which runs in another process (``UndoGuard``).

    done_s: when it was done, Unix seconds; None: not yet. step: at which step of the rank; -1 unknown.
    """

    done_s: float | None
    step: int

    def begin(self) -> None:
        """Does it, or asks for it. Raises Unusable, OSError where it cannot be done."""

    def tend(self) -> None:
        """Called some times a second until ``halt``."""

    def halt(self) -> None:
        """Ends what this process itself does for it."""

    def undo(self) -> None:
        """Puts back what can be. Raises OSError."""


class SignalFault:
    """One signal to one rank: SIGSTOP, which SIGCONT undoes, or SIGKILL."""

    def __init__(self, rank: TargetRank, number: signal.Signals) -> None:
        self.done_s: float | None = None
        self.step = -1
        self._rank, self._number = rank, number

    def begin(self) -> None:
        """Sends the signal. Raises Unusable where the rank is gone."""
        self.step, at_s = self._rank.step, time.time()
        if not self._rank.process.send(self._number):
            raise Unusable(f"rank {self._rank.rank}: its process {self._rank.process.pid} is gone")
        self.done_s = at_s

    def tend(self) -> None:
        """Nothing is left to do."""

    def halt(self) -> None:
        """Nothing goes on."""

    def undo(self) -> None:
        """A stopped rank goes on; one that is gone stays so."""
        if self._number == signal.SIGSTOP:
            self._rank.process.send(signal.SIGCONT)


class SlowRank:
    """A rank whose own work takes ``percent`` longer: of each turn it is stopped for a part. Its waits are as long."""

    def __init__(self, rank: TargetRank, percent: float) -> None:
        self.done_s: float | None = None
        self.step = -1
        self._rank = rank
        self._stopped_s = TURN_S * percent / (100.0 + percent)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begins with the turns."""
        self.step, self.done_s = self._rank.step, time.time()
        self._thread = threading.Thread(target=self._turns, name="whichrank-slow", daemon=True)
        self._thread.start()

    def _turns(self) -> None:
        process = self._rank.process
        while not self._ended.is_set() and process.send(signal.SIGSTOP):
            try:
                time.sleep(self._stopped_s)
            finally:
                process.send(signal.SIGCONT)
            time.sleep(TURN_S - self._stopped_s)

    def tend(self) -> None:
        """The thread does it."""

    def halt(self) -> None:
        """Ends the turns; the rank is left running."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def undo(self) -> None:
        """The rank goes on, also where this process was killed in the middle of a turn."""
        self._rank.process.send(signal.SIGCONT)
