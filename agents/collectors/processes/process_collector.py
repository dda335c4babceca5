"""Collector of the job's processes: what ranks and their children use, and which of them wait uninterruptibly.

A few points per rank, never one per child, and only what has changed. Files of /proc only (Isolation.THREAD).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....telemetry.node_metrics import NodeMetricInstrument, node_metrics
from ....telemetry.records import Point
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.small_files import decimal_number, read_text, whole_number
from .blocked_ranks import BlockedRanks
from .job_process import JobProcess
from .process_files import (
    TICKS_PER_S,
    ProcessNumbers,
    count_files,
    read_io,
    read_process,
    read_run_delay_s,
    read_switches,
)

#: All processes are looked through for children so often, and when the ranks change.
_SCAN_NS = 30_000_000_000
_POINTS_NS = 10_000_000_000
#: What has not changed is told so often.
_REPEAT_NS = 60_000_000_000
#: A gauge has changed if it differs by so much of itself.
_CHANGED_SHARE = 0.02
_MOST_CHILDREN = 256


@dataclass(slots=True)
class _Sums:
    """Counters of a rank's children together, which go on when a child ends. By pid: what was last seen of it."""

    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    seen: dict[int, tuple[int, dict[str, float]]] = field(default_factory=dict)

    def add(self, pid: int, start_ticks: int, values: Mapping[str, float]) -> None:
        before_start, before = self.seen.get(pid, (start_ticks, {}))
        for name, value in values.items():
            grown = value - before.get(name, 0.0) if before_start == start_ticks else value
            self.totals[name] += max(grown, 0.0)
        self.seen[pid] = (start_ticks, dict(values))

    def keep(self, pids: Iterable[int]) -> None:
        self.seen = {pid: self.seen[pid] for pid in pids if pid in self.seen}


@dataclass(slots=True)
class _Watched:
    process: JobProcess
    start_ticks: int
    children: list[int] = field(default_factory=list)
    sums: _Sums = field(default_factory=_Sums)
    #: By name and attributes: value and time of what was last told.
    told: dict[tuple[str, tuple[tuple[str, str | int], ...]], tuple[float, int]] = field(default_factory=dict)


class ProcessCollector:
    """ranks: those of this node now. Their pids may be reused: a rank is known by its process's start as well."""

    name = "processes"

    def __init__(
        self,
        ranks: Callable[[], Sequence[JobProcess]],
        *,
        proc: Path = Path("/proc"),
        period_s: float = 5.0,
    ) -> None:
        self.period_s = period_s
        self._ranks = ranks
        self._proc = proc
        self._blocked = BlockedRanks(proc)
        self._watched: dict[int, _Watched] = {}
        self._next_scan_ns = self._next_points_ns = 0

    def collect(self, now: Timestamps) -> Collected:
        """Points of what each rank and its children use, and events of those that wait uninterruptibly.

        Waits at each look; points and new children at longer intervals.
        """
        numbers = self._find_ranks()
        if now.mono_ns >= self._next_scan_ns:
            self._next_scan_ns = now.mono_ns + _SCAN_NS
            self._find_children()
        happenings: list[NodeEvent] = []
        for watched in self._watched.values():
            happenings += self._blocked.see(watched.process, watched.children, now)
        points: list[Point] = []
        problems: list[str] = []
        if now.mono_ns >= self._next_points_ns:
            self._next_points_ns = now.mono_ns + _POINTS_NS
            boot_ns = self._boot_ns(now)
            for pid, watched in self._watched.items():
                values = list(self._values(watched, numbers[pid], now, problems))
                points += _changed(watched, values, boot_ns, now)
        return Collected(points=points, happenings=happenings, problems=sorted(set(problems)))

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        pass

    def _find_ranks(self) -> dict[int, ProcessNumbers]:
        """Brings ``_watched`` up to date; what the kernel says of each."""
        found: dict[int, ProcessNumbers] = {}
        gone = set(self._watched)
        ranks = self._ranks()
        for process in ranks:
            numbers = read_process(self._proc, process.pid)
            if numbers is None or numbers.state in "ZX":
                continue
            found[process.pid] = numbers
            watched = self._watched.get(process.pid)
            if watched is not None and watched.start_ticks == numbers.start_ticks and watched.process == process:
                gone.discard(process.pid)
        for pid in gone:
            del self._watched[pid]
        self._blocked.forget(gone)
        for process in ranks:
            if process.pid in found and process.pid not in self._watched:
                self._watched[process.pid] = _Watched(process, found[process.pid].start_ticks)
                self._next_scan_ns = 0
        return {pid: numbers for pid, numbers in found.items() if pid in self._watched}

    def _find_children(self) -> None:
        """Descendants of each rank, down to those that are ranks themselves."""
        if not self._watched:
            return
        children: dict[int, list[int]] = defaultdict(list)
        for pid in self._all_pids():
            numbers = read_process(self._proc, pid)
            if numbers is not None and numbers.state not in "ZX":
                children[numbers.parent_pid].append(pid)
        for pid, watched in self._watched.items():
            found: list[int] = []
            waiting = list(children[pid])
            while waiting and len(found) < _MOST_CHILDREN:
                child = waiting.pop()
                if child not in self._watched and child not in found:
                    found.append(child)
                    waiting += children[child]
            watched.children = sorted(found)
            watched.sums.keep(watched.children)

    def _all_pids(self) -> Iterator[int]:
        try:
            names = [entry.name for entry in self._proc.iterdir()]
        except OSError:
            return
        for name in names:
            pid = whole_number(name)
            if pid is not None:
                yield pid

    def _values(
        self, watched: _Watched, numbers: ProcessNumbers, now: Timestamps, problems: list[str]
    ) -> Iterator[tuple[str, float, dict[str, str]]]:
        """(metric, value, attributes besides the rank's)"""
        pid = watched.process.pid
        own = {"whichrank.process.role": "rank"}
        yield "process.memory.usage", numbers.resident_bytes, own
        yield "process.thread.count", numbers.threads, own
        yield "process.paging.faults", numbers.major_faults, {}
        yield "whichrank.process.blocked", self._blocked.count(pid), {}
        yield "whichrank.process.blocked.age", self._blocked.age_s(pid, now), {}
        yield "whichrank.process.children", len(watched.children), {}
        for kind, count in read_switches(self._proc, pid).items():
            yield "process.context_switches", count, {"process.context_switch.type": kind}
        delay_s = read_run_delay_s(self._proc, pid)
        if delay_s is not None:
            yield "whichrank.process.run_delay", delay_s, {}
        files, io = count_files(self._proc, pid), read_io(self._proc, pid)
        if files is None or io is None:
            problems.append("open files and I/O of ranks may not be read: run the agent as root or as the jobs' user")
        if files is not None:
            yield "process.unix.file_descriptor.count", files, {}
        if io is not None:
            yield "process.disk.io", io.read_bytes, {**own, "disk.io.direction": "read"}
            yield "process.disk.io", io.written_bytes, {**own, "disk.io.direction": "write"}
            yield "whichrank.process.read", io.got_bytes, own
        if watched.children or watched.sums.totals:
            yield from self._values_of_children(watched)

    def _values_of_children(self, watched: _Watched) -> Iterator[tuple[str, float, dict[str, str]]]:
        resident_bytes = threads = 0
        for child in watched.children:
            numbers = read_process(self._proc, child)
            if numbers is None:
                continue
            resident_bytes += numbers.resident_bytes
            threads += numbers.threads
            values = {"cpu": numbers.cpu_s}
            io = read_io(self._proc, child)
            if io is not None:
                values |= {"read": io.read_bytes, "write": io.written_bytes, "got": io.got_bytes}
            watched.sums.add(child, numbers.start_ticks, values)
        theirs = {"whichrank.process.role": "children"}
        totals = watched.sums.totals
        yield "process.memory.usage", resident_bytes, theirs
        yield "process.thread.count", threads, theirs
        yield "whichrank.process.children.cpu_time", totals["cpu"], {}
        for direction in ("read", "write"):
            if direction in totals:
                yield "process.disk.io", totals[direction], {**theirs, "disk.io.direction": direction}
        if "got" in totals:
            yield "whichrank.process.read", totals["got"], theirs

    def _boot_ns(self, now: Timestamps) -> int:
        uptime_s = decimal_number((read_text(self._proc / "uptime", 256) or "").partition(" ")[0])
        return now.wall_ns - int(uptime_s * 1e9) if uptime_s is not None else 0


def _changed(
    watched: _Watched, values: Iterable[tuple[str, float, dict[str, str]]], boot_ns: int, now: Timestamps
) -> list[Point]:
    """Points of what differs from what was told, and of the rest now and then."""
    rank: dict[str, str | int] = {"whichrank.job.id": watched.process.job, "whichrank.rank": watched.process.rank}
    start_ns = boot_ns + watched.start_ticks * 1_000_000_000 // TICKS_PER_S if boot_ns else 0
    points: list[Point] = []
    for name, value, more in values:
        attributes = {**rank, **more}
        is_counter = node_metrics()[name].instrument is NodeMetricInstrument.COUNTER
        key = (name, tuple(sorted(attributes.items(), key=lambda item: item[0])))
        before, told_ns = watched.told.get(key, (None, 0))
        allowed = 0.0 if is_counter or before is None else _CHANGED_SHARE * abs(before)
        if before is not None and abs(value - before) <= allowed and now.mono_ns - told_ns < _REPEAT_NS:
            continue
        watched.told[key] = (value, now.mono_ns)
        points.append(
            Point(
                name=name,
                value=float(value),
                attributes=attributes,
                time_ns=now.wall_ns,
                start_ns=start_ns if is_counter else 0,
            )
        )
    return points
