"""Limits that control groups put on processes, and how near they are: version 2, version 1, and both side by side.

A limit may stand at any level above a process, so all levels are looked at. What a container cannot see above itself
stays unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.small_files import keyed_numbers, read_number, read_text, whole_number
from .pressure import parse_pressure

_MOST_LEVELS = 16
#: Characters of a group's path that are told: its end says whose it is.
_MOST_PATH = 256
#: Version 1 says "no limit" by the largest number of pages.
_NO_LIMIT_BYTES = 1 << 62
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class _Mount:
    folder: Path
    root: str  # the group that is mounted there


@dataclass(frozen=True, slots=True)
class _Level:
    path: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """Of the level with the lowest limit. working_set: usage without file pages that the kernel can drop at once.

    oom_kills: in that level and below. pressure: share of the last 10 s in which some task waited for memory.
    """

    path: str
    usage_bytes: int
    working_set_bytes: int | None
    limit_bytes: int | None
    oom_kills: int | None
    pressure: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimit:
    path: str
    cores: float
    throttled_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PidsLimit:
    path: str
    usage: int
    limit: int


class CgroupReader:
    """proc, sys: where these file systems are; mount points below ``/sys`` are looked up under ``sys``.

    pid None: this process.
    """

    def __init__(self, proc: Path, sys: Path) -> None:
        self._proc = proc
        self._mounts: dict[str, _Mount] = {}
        for line in (read_text(proc / "self/mountinfo") or "").splitlines():
            left, found, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if not found or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
                continue
            root, point = (_OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in fields[3:5])
            folder = sys / point.removeprefix("/sys/") if point.startswith("/sys/") else Path(point)
            for controller in [""] if kind[0] == "cgroup2" else kind[2].split(","):
                self._mounts.setdefault(controller, _Mount(folder, root))

    def memory(self, pid: int | None) -> MemoryLimit | None:
        """Memory use and limit of the process's control group. None: no memory controller that we could see."""
        version, levels = self._levels(pid, "memory")
        if version == 2:
            return _memory_2(levels)
        return _memory_1(levels) if version == 1 else None

    def cpu(self, pid: int | None) -> CpuLimit | None:
        """CPU quota (in cores) and throttled time of the innermost control group that has a quota; None without one."""
        version, levels = self._levels(pid, "cpu")
        for level in levels:
            if version == 2:
                quota, period = _two_numbers(read_text(level.folder / "cpu.max") or "")
            else:
                quota = read_number(level.folder / "cpu.cfs_quota_us")
                period = read_number(level.folder / "cpu.cfs_period_us")
            if quota is None or period is None or quota <= 0 or period <= 0:
                continue
            numbers = keyed_numbers(read_text(level.folder / "cpu.stat") or "")
            throttled_s = numbers["throttled_usec"] / 1e6 if "throttled_usec" in numbers else None
            if throttled_s is None:
                throttled_s = numbers.get("throttled_time", 0) / 1e9
            return CpuLimit(path=level.path, cores=quota / period, throttled_s=throttled_s)
        return None

    def pids(self, pid: int | None) -> PidsLimit | None:
        """Number of tasks and its limit, of the level of the process's control groups with the least room; None: no
        limit.
        """
        _, levels = self._levels(pid, "pids")
        found: list[PidsLimit] = []
        for level in levels:
            usage, limit = read_number(level.folder / "pids.current"), read_number(level.folder / "pids.max")
            if usage is not None and limit is not None:
                found.append(PidsLimit(path=level.path, usage=usage, limit=limit))
        return min(found, key=lambda each: each.limit - each.usage, default=None)

    def _levels(self, pid: int | None, controller: str) -> tuple[int, list[_Level]]:
        """(version, the process's own group first and the outermost last); (0, []) if it has none that we can see."""
        paths: dict[str, str] = {}
        for line in (read_text(self._proc / ("self" if pid is None else str(pid)) / "cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            controllers, found, group = rest.partition(":")
            if found:
                paths.update(dict.fromkeys(controllers.split(","), group))
        version = 1 if controller in paths else 2
        key = controller if version == 1 else ""
        path, mount = paths.get(key), self._mounts.get(key)
        if path is None or mount is None or "/.." in path:
            return 0, []
        if mount.root != "/":
            if path != mount.root and not path.startswith(mount.root + "/"):
                return 0, []
            path = path[len(mount.root) :]
        parts = [part for part in path.split("/") if part]
        levels = []
        for depth in range(len(parts), -1, -1)[:_MOST_LEVELS]:
            name = "/".join(parts[:depth])
            levels.append(_Level(f"/{name}"[-_MOST_PATH:], mount.folder / name))
        return (version, levels) if os.path.isdir(levels[0].folder) else (0, [])


def _memory_2(levels: Sequence[_Level]) -> MemoryLimit | None:
    found: list[tuple[int, _Level, int]] = []
    for level in levels:
        usage = read_number(level.folder / "memory.current")
        if usage is not None:
            limits = (read_number(level.folder / "memory.max"), read_number(level.folder / "memory.high"))
            found.append((min((limit for limit in limits if limit is not None), default=_NO_LIMIT_BYTES), level, usage))
    if not found:
        return None
    limit, level, usage = min(found, key=lambda each: each[0])
    stat = keyed_numbers(read_text(level.folder / "memory.stat") or "")
    pressure = parse_pressure(read_text(level.folder / "memory.pressure") or "").get("some")
    return MemoryLimit(
        path=level.path,
        usage_bytes=usage,
        working_set_bytes=max(usage - stat["inactive_file"], 0) if "inactive_file" in stat else None,
        limit_bytes=limit if limit < _NO_LIMIT_BYTES else None,
        oom_kills=keyed_numbers(read_text(level.folder / "memory.events") or "").get("oom_kill"),
        pressure=pressure.share if pressure is not None else None,
    )


def _memory_1(levels: Sequence[_Level]) -> MemoryLimit | None:
    found: list[tuple[int, _Level, int]] = []
    kills: list[int] = []
    for level in levels:
        usage = read_number(level.folder / "memory.usage_in_bytes")
        limit = read_number(level.folder / "memory.limit_in_bytes")
        # Here a kill is counted in the victim's own group only.
        killed = keyed_numbers(read_text(level.folder / "memory.oom_control") or "").get("oom_kill")
        kills += [] if killed is None else [killed]
        if usage is not None and limit is not None:
            found.append((limit, level, usage))
    if not found:
        return None
    limit, level, usage = min(found, key=lambda each: each[0])
    stat = keyed_numbers(read_text(level.folder / "memory.stat") or "")
    return MemoryLimit(
        path=level.path,
        usage_bytes=usage,
        working_set_bytes=max(usage - stat["total_inactive_file"], 0) if "total_inactive_file" in stat else None,
        limit_bytes=limit if limit < _NO_LIMIT_BYTES else None,
        oom_kills=sum(kills) if kills else None,
        pressure=None,
    )


def _two_numbers(text: str) -> tuple[int | None, int | None]:
    """``200000 100000`` of cpu.max; ``max`` is None."""
    words = text.split()
    return (whole_number(words[0]), whole_number(words[1])) if len(words) == 2 else (None, None)
