"""Counters of disks, NFS clients and Lustre clients as points. Reads /proc and /sys, and never a mount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from ....telemetry.records import Point
from ..base.collector import Timestamps
from ..base.counter_series import CounterSeries
from ..base.kernel_files import read_text
from .disks import parse_diskstats
from .lustre_client import LustreTarget, lustre_clients, lustre_targets
from .nfs_mountstats import NfsMount, parse_mountstats

#: Tables of hundreds of mounts; a longer file is cut here.
MAX_FILE_BYTES = 8 << 20
_MAX_UNWELL_TARGETS = 64
#: Series that are kept; more than any node has at a time, so those of mounts long gone are let go with all others.
_MAX_SERIES = 20_000
_NS = 1_000_000_000


class StorageCounters:
    """Not for several threads."""

    def __init__(self, proc: Path, sys: Path) -> None:
        self._proc = proc
        self._sys = sys
        self._series: dict[tuple[str, ...], CounterSeries] = {}
        self._nfs_ages_s: dict[str, int] = {}
        self._unwell: set[str] = set()

    def points(self, now: Timestamps) -> Iterator[Point]:
        """Counters as they are now, each with the begin of its series; one that went back begins anew."""
        if len(self._series) > _MAX_SERIES:
            self._series.clear()
        yield from self._disk_points(now)
        yield from self._nfs_points(now)
        yield from self._lustre_points(now)

    def _counter(
        self,
        name: str,
        raw: int,
        about: Mapping[str, str],
        now: Timestamps,
        *,
        factor: float = 1,
        start_ns: int = 0,
        began_anew: bool = False,
    ) -> Iterator[Point]:
        key = (name, *about.values())
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = CounterSeries(start_ns)
        for told in series.take(raw, now.wall_ns, began_anew=began_anew):
            yield Point(
                name=name,
                value=float(told.value * factor),
                attributes=about,
                time_ns=told.time_ns,
                start_ns=told.start_ns,
            )

    def _disk_points(self, now: Timestamps) -> Iterator[Point]:
        for disk in parse_diskstats(read_text(self._proc / "diskstats", MAX_FILE_BYTES) or ""):
            about = {"system.device": disk.name}
            for direction, count, size, time_ms in (
                ("read", disk.reads, disk.read_bytes, disk.read_ms),
                ("write", disk.writes, disk.written_bytes, disk.write_ms),
            ):
                one_way = {**about, "disk.io.direction": direction}
                yield from self._counter("system.disk.operations", count, one_way, now)
                yield from self._counter("system.disk.io", size, one_way, now)
                yield from self._counter("system.disk.operation_time", time_ms, one_way, now, factor=0.001)
            yield from self._counter("system.disk.io_time", disk.busy_ms, about, now, factor=0.001)
            yield _gauge("whichrank.disk.pending", disk.pending, about, now)

    def _nfs_points(self, now: Timestamps) -> Iterator[Point]:
        ages_s = {}
        for mount in parse_mountstats(read_text(self._proc / "self/mountstats", MAX_FILE_BYTES) or ""):
            if mount.path in ages_s:
                continue  # one mounted over another hides it
            ages_s[mount.path] = mount.age_s
            # A client that was mounted again is younger than it was.
            began_anew = mount.age_s < self._nfs_ages_s.get(mount.path, 0)
            start_ns = now.wall_ns - mount.age_s * _NS
            about = {"system.filesystem.mountpoint": mount.path}
            for name, raw, factor, attributes in _nfs_counters(mount, about):
                yield from self._counter(
                    name, raw, attributes, now, factor=factor, start_ns=start_ns, began_anew=began_anew
                )
        self._nfs_ages_s = ages_s

    def _lustre_points(self, now: Timestamps) -> Iterator[Point]:
        for client in lustre_clients(self._proc, self._sys):
            about = {"whichrank.storage.filesystem": client.filesystem}
            for direction, count in (("read", client.read_bytes), ("write", client.written_bytes)):
                yield from self._counter("whichrank.lustre.io", count, {**about, "disk.io.direction": direction}, now)
            for operation, count in client.operations.items():
                one = {**about, "whichrank.storage.operation": operation}
                yield from self._counter("whichrank.lustre.operations", count, one, now)
            for operation, time_us in client.times_us.items():
                one = {**about, "whichrank.storage.operation": operation}
                yield from self._counter("whichrank.lustre.operation_time", time_us, one, now, factor=1e-6)
        yield from self._target_points(list(lustre_targets(self._proc, self._sys)), now)

    def _target_points(self, targets: list[LustreTarget], now: Timestamps) -> Iterator[Point]:
        for (kind, state), count in Counter((target.kind, target.state) for target in targets).items():
            about = {"whichrank.storage.kind": kind, "whichrank.storage.state": state}
            yield _gauge("whichrank.lustre.targets", count, about, now)
        unwell = {target.name for target in targets if not target.is_well}
        told = 0
        for target in targets:
            if target.timeouts:
                about = {"whichrank.storage.target": target.name}
                yield from self._counter("whichrank.lustre.target.timeouts", target.timeouts, about, now)
            if target.name in unwell or target.name in self._unwell:
                told += 1
                if told > _MAX_UNWELL_TARGETS:
                    break  # a whole file system is away; the counts by state say so
                about = {
                    "whichrank.storage.target": target.name,
                    "whichrank.storage.server": target.server,
                    "whichrank.storage.state": target.state,
                }
                yield _gauge("whichrank.lustre.target.up", int(target.is_well), about, now)
        self._unwell = unwell


def _nfs_counters(mount: NfsMount, about: dict[str, str]) -> Iterator[tuple[str, int, float, dict[str, str]]]:
    """(metric, number, factor to the metric's unit, attributes)."""
    yield "whichrank.nfs.io", mount.read_bytes, 1, {**about, "disk.io.direction": "read"}
    yield "whichrank.nfs.io", mount.written_bytes, 1, {**about, "disk.io.direction": "write"}
    yield "whichrank.nfs.connects", mount.connects, 1, about
    yield "whichrank.nfs.backlog", mount.backlog, 1, about
    for kind, sums in mount.classes.items():
        one = {**about, "whichrank.storage.operation": kind}
        yield "whichrank.nfs.operations", sums.operations, 1, one
        yield "whichrank.nfs.retransmissions", sums.retransmissions, 1, one
        yield "whichrank.nfs.timeouts", sums.timeouts, 1, one
        yield "whichrank.nfs.errors", sums.errors, 1, one
        yield "whichrank.nfs.queue_time", sums.queue_ms, 0.001, one
        yield "whichrank.nfs.round_trip_time", sums.rtt_ms, 0.001, one
        yield "whichrank.nfs.execution_time", sums.execution_ms, 0.001, one


def _gauge(name: str, value: float, about: Mapping[str, str], now: Timestamps) -> Point:
    return Point(name=name, value=float(value), attributes=about, time_ns=now.wall_ns)
