"""What comes to a running job from outside: neighbours on its machine, suspends. Runs in a thread beside the job.

Each function is a scenario's ``beside``: it gets the job and an event that is set when the job is over, and returns
soon after that. What it draws follows from the plan's seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import psutil

from .runner import Job

POLL_S = 0.05
#: Before anything happens, the job has got going.
STEPS_BEFORE = 5
SUSPENDED_S = (4.0, 15.0)
PAUSE_S = (8.0, 20.0)
SUSPENDS = 2
NEIGHBOURS = 2


def busy_neighbours(job: Job, over: threading.Event) -> None:
    """Two foreign busy loops at nice 19, for as long as the job runs."""
    with _neighbours(NEIGHBOURS):
        over.wait()


def suspend_ranks(job: Job, over: threading.Event) -> None:
    """All ranks are stopped and continued, as a scheduler does that lets another job go first."""
    for _ in range(SUSPENDS):
        _suspend(job, over, _rank_pids)


def suspend_machine(job: Job, over: threading.Event) -> None:
    """Everything stands still, whichrank with it, as when a virtual machine is paused."""
    for _ in range(SUSPENDS):
        _suspend(job, over, _all_pids)


@contextlib.contextmanager
def _neighbours(count: int) -> Iterator[None]:
    command = ["nice", "-n", "19", sys.executable, "-S", "-c", "while True: pass"]
    loops = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _suspend(job: Job, over: threading.Event, pids_of: Callable[[Job], Sequence[int]]) -> None:
    """Once, some seconds of steps after the last time; never while the job starts or ends."""
    drawn = random.Random(f"{job.plan.jitter_seed}/suspend/{job.steps_done()}")
    while job.steps_done() < STEPS_BEFORE:
        if over.wait(POLL_S):
            return
    if over.wait(drawn.uniform(*PAUSE_S)) or job.steps_done() >= job.plan.steps - STEPS_BEFORE:
        return
    pids = pids_of(job)
    _send(signal.SIGSTOP, pids)
    try:
        over.wait(drawn.uniform(*SUSPENDED_S))
    finally:
        _send(signal.SIGCONT, reversed(pids))


def _rank_pids(job: Job) -> Sequence[int]:
    return sorted(job.pids().values())


def _all_pids(job: Job) -> Sequence[int]:
    """The watcher first: it must see no rank that stands still alone."""
    below = psutil.Process(job.process.pid).children(recursive=True)
    return [job.process.pid, *(process.pid for process in below)]


def _send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
