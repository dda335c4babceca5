"""Storage as this node sees it: disks, mounts, NFS and Lustre clients, and whether each mount still answers.

Runs in a process of its own, which can be left behind: its probes' threads may sit in a dead mount for ever
(``mount_probes``). ``collect`` itself reads /proc and /sys only, and never a mount.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....telemetry.records import Point
from ....telemetry.vocabulary import EventName
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.kernel_files import read_text
from .mount_probes import MountProbe, OperationResult, ProbeResult
from .mount_table import MAX_MOUNTS, Mount, automount_roots, mount_of, parse_mounts
from .storage_counters import MAX_FILE_BYTES, StorageCounters

#: Threads that may sit in dead mounts, those of mounts that are gone included.
MAX_PROBES = 160
_NS = 1_000_000_000


@dataclass(slots=True)
class _Watched:
    """A mount since it was first seen. ``is_late``: the probe that is out has been told as late."""

    mount: Mount
    probe: MountProbe
    asked_ns: int = -(1 << 62)
    is_late: bool = False
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    first_seen_ns: int = 0


class StorageCollector:
    """write_folders: absolute, in which a small file is written, synced and removed with each probe. By their real
    paths: a symbolic link is not followed to the mount behind it (that could block), and is told as EXDEV.

    limit_s: a probe that takes longer is late. probe_period_s: each mount is asked this often.
    """

    name = "storage"

    def __init__(
        self,
        *,
        proc: str | Path = "/proc",
        sys: str | Path = "/sys",
        period_s: float = 5.0,
        probe_period_s: float = 10.0,
        limit_s: float = 3.0,
        write_folders: Sequence[str] = (),
        probes: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.period_s = period_s
        self._proc = Path(proc)
        self._probe_period_ns = int(probe_period_s * _NS)
        self._limit_ns = int(limit_s * _NS)
        self._write_folders = [os.path.normpath(folder) for folder in write_folders]
        self._probes = probes
        self._clock = clock
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._left_behind: list[MountProbe] = []
        self._gone: dict[str, Mount] = {}
        self._counters = StorageCounters(Path(proc), Path(sys))

    def collect(self, now: Timestamps) -> Collected:
        """Counters of disks and clients, and events of mounts that came, went, died or answer again."""
        points: list[Point] = []
        happenings: list[NodeEvent] = []
        problems: list[str] = []
        table = read_text(self._proc / "self/mountinfo", MAX_FILE_BYTES)
        if table is None:
            problems.append(f"{self._proc}/self/mountinfo cannot be read: mounts are not seen")
        else:
            self._follow(table, now, happenings, problems)
            points += self._mount_points(now)
            if self._probes:
                for watched in self._watched.values():
                    points += self._probe(watched, now, happenings)
        points += self._counters.points(now)
        return Collected(points=points, happenings=happenings, problems=problems, blind=table is None)

    def close(self) -> None:
        """Ends the mounts' threads as far as they can be ended: one inside a dead mount is left there."""
        for watched in self._watched.values():
            watched.probe.close()

    # --- mounts and their probes ------------------------------------------------------------------------------------

    def _follow(self, table: str, now: Timestamps, happenings: list[NodeEvent], problems: list[str]) -> None:
        """Mounts that came and went. A mount made again under its old path is another one."""
        mounts = parse_mounts(table)
        automounts = automount_roots(table)
        present = {(mount.device, mount.path): mount for mount in mounts}
        for key in self._watched.keys() - present.keys():
            watched = self._watched.pop(key)
            watched.probe.close()
            outstanding = watched.probe.outstanding
            if outstanding is not None:
                self._left_behind.append(watched.probe)
                if watched.is_late:
                    gone = OperationResult(outstanding.operation, outstanding.began_ns, 0, "unmounted")
                    age_ns = self._clock() - outstanding.began_ns
                    happenings.append(late_probe(watched.mount, outstanding.operation, age_ns, now, gone))
            # What the automounter brings it also takes away.
            if not watched.mount.path.startswith(automounts) and len(self._gone) < MAX_MOUNTS:
                self._gone[watched.mount.path] = watched.mount
        self._left_behind = [probe for probe in self._left_behind if probe.is_busy]
        folders: dict[str, str] = {}
        for folder in self._write_folders:
            mount = mount_of(folder, mounts)
            if mount is None:
                problems.append(f"{folder}: lies on no disk and on no mount; no probe can write there")
            else:
                folders.setdefault(mount.path, folder)
        for key, mount in present.items():
            self._gone.pop(mount.path, None)
            if key in self._watched:
                self._watched[key].mount = mount
            elif len(self._watched) + len(self._left_behind) < MAX_PROBES:
                probe = MountProbe(mount.path, folders.get(mount.path, ""), clock=self._clock)
                self._watched[key] = _Watched(mount, probe, first_seen_ns=now.wall_ns)
            else:
                problems.append(f"more than {MAX_PROBES} mounts, dead ones included: {mount.path} is not watched")

    def _mount_points(self, now: Timestamps) -> Iterator[Point]:
        for watched in self._watched.values():
            mount = watched.mount
            yield _point("whichrank.mount.present", 1, _with_server(mount), now)
            yield _point("whichrank.mount.read_only", int(mount.read_only), _of(mount), now)
        for mount in self._gone.values():
            yield _point("whichrank.mount.present", 0, _with_server(mount), now)

    def _probe(self, watched: _Watched, now: Timestamps, happenings: list[NodeEvent]) -> Iterator[Point]:
        result = watched.probe.take()
        if result is not None:
            yield from self._answered(watched, result, now, happenings)
        clock_ns = self._clock()
        age_ns = 0
        outstanding = watched.probe.outstanding
        if outstanding is not None and clock_ns - outstanding.began_ns >= self._limit_ns:
            age_ns = clock_ns - outstanding.began_ns
            watched.is_late = True
            happenings.append(late_probe(watched.mount, outstanding.operation, age_ns, now))
        yield probe_age(watched.mount, age_ns, now)
        if clock_ns - watched.asked_ns >= self._probe_period_ns and not watched.probe.is_busy:
            watched.asked_ns = clock_ns
            watched.probe.ask()

    def _answered(
        self, watched: _Watched, result: ProbeResult, now: Timestamps, happenings: list[NodeEvent]
    ) -> Iterator[Point]:
        mount = watched.mount
        watched.is_late = False
        for done in result.operations:
            about = {**_of(mount), "whichrank.storage.operation": done.operation}
            yield _point("whichrank.mount.probe.duration", done.took_ns / _NS, about, now)
            if done.error:
                watched.errors[done.operation, done.error] += 1
            if done.took_ns >= self._limit_ns:
                happenings.append(late_probe(mount, done.operation, done.took_ns, now, done))
        for (operation, error), count in watched.errors.items():
            about = {**_of(mount), "whichrank.storage.operation": operation, "error.type": error}
            yield _point("whichrank.mount.probe.errors", count, about, now, watched.first_seen_ns)
        if result.space is not None:
            space = result.space
            usage = {
                "used": space.total_bytes - space.free_bytes,
                "free": space.available_bytes,
                "reserved": space.free_bytes - space.available_bytes,
            }
            yield _point("system.filesystem.limit", space.total_bytes, _of(mount), now)
            for state, value in usage.items():
                yield _point("system.filesystem.usage", value, {**_of(mount), "system.filesystem.state": state}, now)
            if space.inodes:
                yield _point("whichrank.filesystem.inodes.limit", space.inodes, _of(mount), now)
                inodes = {"used": space.inodes - space.free_inodes, "free": space.free_inodes}
                for state, value in inodes.items():
                    about = {**_of(mount), "system.filesystem.state": state}
                    yield _point("whichrank.filesystem.inodes", value, about, now)


def _of(mount: Mount) -> dict[str, str]:
    return {"system.filesystem.mountpoint": mount.path, "system.filesystem.type": mount.fstype}


def _with_server(mount: Mount) -> dict[str, str]:
    return {**_of(mount), "whichrank.storage.server": mount.server}


def _point(name: str, value: float, about: Mapping[str, str], now: Timestamps, start_ns: int = 0) -> Point:
    return Point(name=name, value=float(value), attributes=about, time_ns=now.wall_ns, start_ns=start_ns)


def probe_age(mount: Mount, age_ns: int, now: Timestamps) -> Point:
    """The point ``whichrank.mount.probe.age`` (seconds) of a mount. age_ns: of the probe that is out, 0: not late."""
    return _point("whichrank.mount.probe.age", age_ns / _NS, _of(mount), now)


def late_probe(
    mount: Mount, operation: str, age_ns: int, now: Timestamps, done: OperationResult | None = None
) -> NodeEvent:
    """A PROBE_LATE event: an operation on the mount takes, or took, ``age_ns``.

    done: its result, once it has come back, with an error or well; None: it is still out.
    """
    return NodeEvent(
        name=EventName.PROBE_LATE,
        time_ns=now.wall_ns,
        mono_ns=now.mono_ns,
        attributes={
            "mount": mount.path,
            "operation": operation,
            "age_s": round(age_ns / _NS, 3),
            "fstype": mount.fstype,
            "server": mount.server,
            "source": mount.source,
            "answered": done is not None,
            "error": done.error if done is not None else "",
        },
    )
