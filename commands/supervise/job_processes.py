"""Which processes belong to a watched command: its descendants, and whatever it has started and let go. Reads /proc.

A launcher puts its ranks into sessions of their own, and a rank's helper may outlive it, so neither a process group nor
the tree names them all. What began with this run's folder of rings in its environment is of this run: nobody else's
processes have that. What has neither (a service that was asked to start something) is not found, and not ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...agents.processes.processes import ProcessStat, open_pidfd, read_stat
from ...telemetry.vocabulary import ProcessState

_GONE = frozenset({ProcessState.ZOMBIE, ProcessState.DEAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProcess:
    """One process, told from a later one of its pid by ``start_ticks``."""

    pid: int
    start_ticks: int
    state: ProcessState

    def send(self, number: int) -> bool:
        """Sends a signal, unless it is gone; whether it was sent. The pid cannot be somebody else's by then."""
        descriptor = open_pidfd(self.pid)
        try:
            stat = read_stat(self.pid)
            if stat is None or stat.start_ticks != self.start_ticks:
                return False
            if descriptor >= 0:
                signal.pidfd_send_signal(descriptor, number)
            else:  # a kernel before 5.3
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return True


def find_job_processes(root: int, marks: Collection[bytes]) -> list[CommandProcess]:
    """Processes of the job that still run, ``root`` first where it does. Zombies are none.

    root: the command's pid. marks: lines of the environment (``NAME=value``) that only this run's processes have.
    """
    stats = _all_stats()
    mine = {os.getpid()}
    found = {root} & stats.keys()
    found |= {pid for pid in stats if pid not in mine and _has_mark(pid, marks)}
    grew = True
    while grew:
        children = {pid for pid, stat in stats.items() if stat.parent_pid in found}
        grew = not children <= found
        found |= children
    living = [pid for pid in sorted(found - mine) if stats[pid].state not in _GONE]
    living.sort(key=lambda pid: pid != root)
    return [CommandProcess(pid=pid, start_ticks=stats[pid].start_ticks, state=stats[pid].state) for pid in living]


def _all_stats() -> Mapping[int, ProcessStat]:
    stats = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        stat = read_stat(pid)
        if stat is not None:
            stats[pid] = stat
    return stats


def _has_mark(pid: int, marks: Collection[bytes]) -> bool:
    if not marks:
        return False
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return not set(marks).isdisjoint(file.read().split(b"\0"))
    return False
