"""A few threads that poll all watched folders: 10,000 tiny jobs cost what one large one does.

One thread waits for what comes first: a folder's next look, or the end of a rank's process. Others do the looks. Each
owner has a share of the processor's time: whoever uses more is looked at less often, and nobody else is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import threading
import time
from dataclasses import dataclass, field

from .job_watch import JobWatch

logger = logging.getLogger("whichrank.agents")

THREADS = 4
#: Of one core, and how much of it may be used in advance: a job that starts or ends has much to tell at once.
OWNER_SHARE, OWNER_BURST_S = 0.1, 2.0
#: All owners together, beyond their bursts.
NODE_SHARE = 0.5
_LONGEST_S = 0.5
_AFTER_TROUBLE_S = 1.0


@dataclass(slots=True, eq=False)
class _Entry:
    watch: JobWatch
    due_s: float = 0.0
    is_running: bool = False
    wakes: int = -1
    done: threading.Event = field(default_factory=threading.Event)


class WatchPool:
    """``add`` and ``close`` are called by one thread."""

    def __init__(self, threads: int = THREADS) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}  # by the watch's id
        self._by_wake: dict[int, _Entry] = {}
        #: Until when each owner has used up his share.
        self._paid_until_s: dict[int, float] = {}
        self._node_paid_until_s = 0.0
        #: When the waiting thread wakes next, and owners whose next folder is due and waits for another of theirs.
        self._wakes_s = 0.0
        self._held_back: set[int] = set()
        self._ready: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._ending = False
        self._threads: list[threading.Thread] = []
        self._count = threads

    def add(self, watch: JobWatch) -> None:
        """Polls a folder from now on, until it is over."""
        with self._lock:
            self._entries[id(watch)] = _Entry(watch)
        if not self._threads:
            named = [("whichrank-watch", self._dispatch)]
            named += [(f"whichrank-watch-{number}", self._work) for number in range(self._count)]
            self._threads = [threading.Thread(target=act, name=name, daemon=True) for name, act in named]
            for thread in self._threads:
                thread.start()
        self._ring()

    def close(self, patience_s: float) -> None:
        """Ends all watches, waiting ``patience_s`` for all together; looks that take longer are left."""
        deadline_s = time.monotonic() + patience_s
        self._ending = True
        self._ring()
        with self._lock:
            left = list(self._entries.values())
        for entry in left:
            entry.done.wait(max(0.0, deadline_s - time.monotonic()))
        for _ in range(self._count):
            self._ready.put(None)
        for thread in self._threads:
            thread.join(max(0.1, deadline_s - time.monotonic()))

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._bell, 1)

    # --- the thread that waits ----------------------------------------------------------------------------------------
    def _dispatch(self) -> None:
        while True:
            wait_s = self._hand_out()
            if wait_s is None:
                return
            for fd, _ in self._epoll.poll(wait_s):
                if fd == self._bell:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._bell)
                    continue
                with self._lock:
                    entry = self._by_wake.get(fd)
                    if entry is not None:
                        entry.due_s = 0.0

    def _hand_out(self) -> float | None:
        """Gives the folders that are due to the workers, one of each owner at a time.

        Returns in how many seconds the next is due; None: all is over.
        """
        now_s = time.monotonic()
        next_s = now_s + _LONGEST_S
        with self._lock:
            if self._ending and not self._entries:
                return None
            busy = {entry.watch.folder.owner_uid for entry in self._entries.values() if entry.is_running}
            self._held_back.clear()
            waiting = sorted((e for e in self._entries.values() if not e.is_running), key=lambda e: e.due_s)
            for entry in waiting:
                uid = entry.watch.folder.owner_uid
                due_s = entry.due_s if self._ending else max(entry.due_s, self._allowed_s(uid))
                if due_s > now_s:
                    next_s = min(next_s, due_s)
                elif uid in busy:  # its worker rings when it is done
                    self._held_back.add(uid)
                else:
                    busy.add(uid)
                    entry.is_running = True
                    self._ready.put(entry)
            self._wakes_s = next_s
        return max(next_s - now_s, 0.0)

    def _allowed_s(self, uid: int) -> float:
        owner_s = self._paid_until_s.get(uid, 0.0) - OWNER_BURST_S / OWNER_SHARE
        node_s = min(self._node_paid_until_s - OWNER_BURST_S / NODE_SHARE, self._paid_until_s.get(uid, 0.0))
        return max(owner_s, node_s)

    # --- the threads that look ----------------------------------------------------------------------------------------
    def _work(self) -> None:
        while (entry := self._ready.get()) is not None:
            began_s = time.thread_time()
            wait_s = _AFTER_TROUBLE_S
            try:
                if self._ending:
                    entry.watch.end()
                else:
                    wait_s = entry.watch.step()
            except Exception as error:  # edge: whatever lies in one folder is no other folder's trouble
                logger.warning("%s: a look failed: %s: %s", entry.watch.folder.path, type(error).__name__, error)
            self._done(entry, wait_s, time.thread_time() - began_s)

    def _done(self, entry: _Entry, wait_s: float, used_s: float) -> None:
        now_s = time.monotonic()
        uid = entry.watch.folder.owner_uid
        with self._lock:
            self._paid_until_s[uid] = max(self._paid_until_s.get(uid, 0.0), now_s) + used_s / OWNER_SHARE
            self._node_paid_until_s = max(self._node_paid_until_s, now_s) + used_s / NODE_SHARE
            entry.due_s = now_s + wait_s
            entry.is_running = False
            if entry.watch.is_over:
                self._forget(entry)
            else:
                self._listen(entry)
            is_awaited = self._ending or uid in self._held_back or entry.due_s < self._wakes_s
        if is_awaited:
            self._ring()

    def _listen(self, entry: _Entry) -> None:
        """Once: while a look is under way nobody is woken by what that look will see."""
        wakes = entry.watch.wakes
        if wakes < 0:
            return
        if entry.wakes < 0:
            entry.wakes = wakes
            self._by_wake[wakes] = entry
            self._epoll.register(wakes, select.EPOLLIN | select.EPOLLONESHOT)
        else:
            self._epoll.modify(wakes, select.EPOLLIN | select.EPOLLONESHOT)

    def _forget(self, entry: _Entry) -> None:
        self._entries.pop(id(entry.watch), None)
        if entry.wakes >= 0:  # its agent has closed it, so it is none of the epoll's any more
            self._by_wake.pop(entry.wakes, None)
        uid = entry.watch.folder.owner_uid
        has_others = any(each.watch.folder.owner_uid == uid for each in self._entries.values())
        if not has_others and self._paid_until_s.get(uid, 0.0) < time.monotonic():
            self._paid_until_s.pop(uid, None)
        entry.done.set()
