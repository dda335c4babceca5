"""A few threads for work that may take long, shared by all jobs of a node: one thing at a time for each owner.

So no owner's slow files or many jobs keep others waiting, and 10,000 jobs need no more threads than one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger("whichrank.agents")

Work = Callable[[], None]


class OwnerWorkers:
    """May be used by any thread. Owners are user ids; their turns go round."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._count = name, threads
        self._lock = threading.Condition()
        self._waiting: dict[int, deque[Work]] = {}
        self._turns: deque[int] = deque()  # owners who have work and nobody at it
        self._running: set[int] = set()
        self._threads: list[threading.Thread] = []

    def submit(self, owner: int, work: Work) -> None:
        """Does a piece of work in one of the threads, after what the owner has asked for before."""
        with self._lock:
            queue = self._waiting.setdefault(owner, deque())
            queue.append(work)
            if len(queue) == 1 and owner not in self._running:
                self._turns.append(owner)
            if len(self._threads) < self._count and len(self._threads) < len(self._turns) + len(self._running):
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._lock.notify()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._turns:
                    self._lock.wait()
                owner = self._turns.popleft()
                work = self._waiting[owner].popleft()
                self._running.add(owner)
            try:
                work()
            except Exception as error:  # edge: a file system, a file of somebody else
                logger.warning("%s: %s: %s", self._name, type(error).__name__, error)
            with self._lock:
                self._running.discard(owner)
                if self._waiting[owner]:
                    self._turns.append(owner)
                    self._lock.notify()
                else:
                    del self._waiting[owner]


#: What reads users' files, which may lie on a dead mount; and what takes stacks.
FILES = OwnerWorkers("whichrank-evidence", 4)
STACKS = OwnerWorkers("whichrank-stacks", 2)
