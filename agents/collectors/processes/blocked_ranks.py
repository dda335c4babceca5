"""Threads of ranks that wait uninterruptibly (state D): since when, in which function of the kernel, and for what.

Such a wait is normal for milliseconds. One that is met at several looks in a row is told once per rank, again now and
then while it lasts, and when it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from ....telemetry.vocabulary import EventName
from ..base.collector import NodeEvent, Timestamps
from .job_process import JobProcess
from .process_files import blocked_threads, kernel_functions, read_process, read_switches, thread_name

#: Looks in a row.
CONFIRM_LOOKS = 3
#: Who hears nothing more of a wait for a minute takes it for over.
REPEAT_NS = 20_000_000_000


@dataclass(slots=True)
class _Wait:
    """of one thread. switches: how often it had slept when it was first met; it moves if that number grows."""

    since: Timestamps
    process_pid: int
    looks: int
    switches: int


@dataclass(slots=True)
class _Told:
    mono_ns: int
    happening: NodeEvent


class BlockedRanks:
    def __init__(self, proc: Path, confirm_looks: int = CONFIRM_LOOKS) -> None:
        self._proc = proc
        self._confirm_looks = confirm_looks
        self._waits: dict[int, dict[int, _Wait]] = {}  # pid of the rank -> thread -> its wait
        self._told: dict[int, _Told] = {}

    def see(self, rank: JobProcess, children: Sequence[int], now: Timestamps) -> list[NodeEvent]:
        """Takes one look at a rank's threads and its children's main threads, for waits in state D.

        Returns the events to tell of them, also that a told wait is over. children: pids.
        """
        before = self._waits.get(rank.pid, {})
        waits: dict[int, _Wait] = {}
        for process_pid, thread in self._blocked(rank.pid, children):
            wait = before.get(thread)
            if wait is None:
                switches = read_switches(self._proc, process_pid, thread).get("voluntary", 0)
                wait = _Wait(since=now, process_pid=process_pid, looks=0, switches=switches)
            wait.looks += 1
            waits[thread] = wait
        if waits:
            self._waits[rank.pid] = waits
        else:
            self._waits.pop(rank.pid, None)
        return self._report(rank, now)

    def forget(self, pids: set[int]) -> None:
        """Forgets the waits of ranks that are no more. pids: theirs."""
        for pid in pids:
            self._waits.pop(pid, None)
            self._told.pop(pid, None)

    def count(self, pid: int) -> int:
        """How many threads of a rank and its children wait uninterruptibly."""
        return len(self._waits.get(pid, ()))

    def age_s(self, pid: int, now: Timestamps) -> float:
        """Seconds of the longest uninterruptible wait of a rank, 0 if there is none."""
        waits = self._waits.get(pid, {}).values()
        return max(((now.mono_ns - wait.since.mono_ns) / 1e9 for wait in waits), default=0.0)

    def _blocked(self, rank_pid: int, children: Sequence[int]) -> list[tuple[int, int]]:
        """(process, thread)"""
        found = [(rank_pid, thread) for thread in blocked_threads(self._proc, rank_pid)]
        for child in children:
            numbers = read_process(self._proc, child)
            if numbers is not None and numbers.state == "D":
                found.append((child, child))
        return found

    def _report(self, rank: JobProcess, now: Timestamps) -> list[NodeEvent]:
        confirmed = {
            thread: wait for thread, wait in self._waits.get(rank.pid, {}).items() if wait.looks >= self._confirm_looks
        }
        told = self._told.get(rank.pid)
        if not confirmed:
            if told is None:
                return []
            del self._told[rank.pid]
            attributes = {**told.happening.attributes, "state": self._state(rank.pid), "over": True}
            return [NodeEvent(name=EventName.RANK_PROCESS, time_ns=now.wall_ns, mono_ns=now.mono_ns,
                              attributes=attributes, pid=rank.pid)]  # fmt: skip
        thread, wait = min(confirmed.items(), key=lambda each: (each[1].since.mono_ns, each[0]))
        if told is not None and now.mono_ns - told.mono_ns < REPEAT_NS:
            return []
        happening = self._happening(rank, thread, wait, len(confirmed), now)
        self._told[rank.pid] = _Told(now.mono_ns, happening)
        return [happening]

    def _happening(self, rank: JobProcess, thread: int, wait: _Wait, threads: int, now: Timestamps) -> NodeEvent:
        functions = kernel_functions(self._proc, wait.process_pid, thread)
        switches = read_switches(self._proc, wait.process_pid, thread).get("voluntary", wait.switches)
        name = thread_name(self._proc, wait.process_pid, thread)
        age_s = (now.mono_ns - wait.since.mono_ns) / 1e9
        return disk_wait(
            rank.pid,
            now,
            age_s=age_s,
            functions=functions,
            thread=name,
            threads=threads,
            process_pid=wait.process_pid,
            thread_id=thread,
            # It sleeps and wakes: slow, not stuck.
            moves=switches > wait.switches,
        )

    def _state(self, pid: int) -> str:
        numbers = read_process(self._proc, pid)
        return numbers.state if numbers is not None and numbers.state != "D" else "S"


def disk_wait(
    rank_pid: int,
    now: Timestamps,
    *,
    age_s: float,
    functions: Sequence[str],
    thread: str,
    threads: int,
    process_pid: int,
    thread_id: int,
    moves: bool,
) -> NodeEvent:
    """A RANK_PROCESS event: a thread of a rank, or of a child of it, has been held in the kernel for ``age_s``.

    functions: of the kernel, innermost first. threads: how many wait so. moves: it has slept and woken meanwhile.
    """
    where, what = functions[0] if functions else "", waits_for(functions)
    return NodeEvent(
        name=EventName.RANK_PROCESS,
        time_ns=now.wall_ns,
        mono_ns=now.mono_ns,
        pid=rank_pid,
        attributes={
            "state": "D",
            "over": False,
            "age_s": round(age_s, 3),
            "wchan": where,
            "waits_for": what,
            "text": f"{thread or 'a thread'} waits in the kernel for {age_s:.0f} s"
            + (f", in {where}" if where else "")
            + (f" ({what})" if what else ""),
            # Conditions of several ranks are told apart by it.
            "device_kind": "process",
            "device": str(rank_pid),
            "threads": threads,
            "process_pid": process_pid,
            "thread_id": thread_id,
            "thread": thread,
            "is_child": process_pid != rank_pid,
            "moves": moves,
            "kernel_functions": tuple(functions),
        },
    )


def waits_for(functions: Sequence[str]) -> str:
    """The word of ``wait_sites.tsv`` for what a thread in these kernel functions waits for; empty if none is known."""
    for word, prefixes in wait_sites():
        if any(function.startswith(prefixes) for function in functions):
            return word
    return ""


@cache
def wait_sites() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Rows of wait_sites.tsv: what is waited for, and prefixes of the kernel's functions that wait for it."""
    text = resources.files(__package__).joinpath("wait_sites.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return tuple((word, tuple(prefixes.split())) for word, prefixes in rows)
