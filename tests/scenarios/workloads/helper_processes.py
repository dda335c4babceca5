"""Processes that a rank starts and that inherit its RANK: each dies in its own way, and none is the rank."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

#: A tool that imports torch and calls nothing; one that is killed after it; one that fails; a logger without torch.
SCRIPTS = (
    "import torch",
    "import os, signal, torch; os.kill(os.getpid(), signal.SIGKILL)",
    "import torch; raise SystemExit(3)",
    "import torch; raise RuntimeError('a helper fails')",
    "import sys; sys.exit(1)",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Helpers:
    """Started one after the other; those that have ended are reaped. The rank never waits for them."""

    def __init__(self) -> None:
        self._started = 0
        self._running: list[subprocess.Popen[bytes] | multiprocessing.process.BaseProcess] = []

    def start_next(self) -> None:
        number, self._started = self._started % (len(SCRIPTS) + 2), self._started + 1
        if number < len(SCRIPTS):
            command = [sys.executable, "-c", SCRIPTS[number]]
            self._running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            return
        spawn, fork = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
        child = spawn.Process(target=die) if number == len(SCRIPTS) else fork.Process(target=die)
        child.start()
        self._running.append(child)

    def reap(self) -> None:
        for helper in list(self._running):
            ended = helper.poll() is not None if isinstance(helper, subprocess.Popen) else not helper.is_alive()
            if ended:
                self._running.remove(helper)
