"""Ends a command with all its processes, a turn at a time: SIGTERM, patience, SIGKILL; what does not die is told.

Launchers pass a SIGTERM on and clean up, so the command's own process gets it first, and its ranks only once it has
ended, or a part of the grace has passed. A stopped process takes no signal before it goes on, so it is woken. Whatever
outlives its SIGKILL (state D: a device or a server does not answer) is named by pid and left behind, never waited for
without end. The thread that watches calls ``turn``; it never blocks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...telemetry.vocabulary import ProcessState
from .job_processes import CommandProcess

#: So much of the grace the launcher has for itself.
SHARE_OF_LAUNCHER = 0.5
#: After SIGKILL: from here on a process is told as one that does not die.
KILL_PATIENCE_S = 5.0
#: Between looks at all processes of the machine.
LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """took_s: since the first signal. killed: how many needed a SIGKILL. left: those that outlived it, (pid, state)."""

    took_s: float
    killed: int
    left: tuple[tuple[int, str], ...] = ()


class CommandEnder:
    """One ending. find: gives the job's processes that still run, the command itself first. grace_s: before SIGKILL."""

    def __init__(
        self, find: Callable[[], Sequence[CommandProcess]], root: int, *, grace_s: float, now_s: float
    ) -> None:
        self._find, self._root, self._grace_s = find, root, grace_s
        self._began_s, self._look_due_s = now_s, now_s
        self._asked: set[tuple[int, int]] = set()
        self._killed: set[tuple[int, int]] = set()
        self._killing_since_s: float | None = None

    def turn(self, now_s: float) -> Ended | None:
        """Looks, and signals who is due; None: they are still ending."""
        if now_s < self._look_due_s:
            return None
        self._look_due_s = now_s + LOOK_S
        living = list(self._find())
        if not living:
            return Ended(took_s=now_s - self._began_s, killed=len(self._killed))
        if now_s - self._began_s >= self._grace_s:
            return self._kill(living, now_s)
        has_launcher = living[0].pid == self._root
        for process in living:
            is_due = process.pid == self._root or not has_launcher or self._launcher_had_its_time(now_s)
            if is_due and self._key(process) not in self._asked:
                self._asked.add(self._key(process))
                process.send(signal.SIGTERM)
            if process.state is ProcessState.STOPPED:
                if self._key(process) not in self._asked:
                    self._asked.add(self._key(process))
                    process.send(signal.SIGTERM)  # first: it must not go on with its work
                process.send(signal.SIGCONT)
        return None

    def _launcher_had_its_time(self, now_s: float) -> bool:
        return now_s - self._began_s >= self._grace_s * SHARE_OF_LAUNCHER

    def _kill(self, living: Sequence[CommandProcess], now_s: float) -> Ended | None:
        self._killing_since_s = now_s if self._killing_since_s is None else self._killing_since_s
        for process in living:
            if process.send(signal.SIGKILL):
                self._killed.add(self._key(process))
        if now_s - self._killing_since_s < KILL_PATIENCE_S:
            return None
        left = tuple((process.pid, process.state.name.lower()) for process in living)
        return Ended(took_s=now_s - self._began_s, killed=len(self._killed), left=left)

    @staticmethod
    def _key(process: CommandProcess) -> tuple[int, int]:
        return process.pid, process.start_ticks
