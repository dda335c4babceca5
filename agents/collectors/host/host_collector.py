"""Collector of what a node's own kernel says of it: waiting, memory, processors, limits, its clock, its boot.

Values as they are, nothing judged. Files of /proc and /sys only, so nothing here blocks (Isolation.THREAD).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ....telemetry.node_metrics import NodeMetricInstrument, node_metrics
from ....telemetry.records import Point
from ....telemetry.vocabulary import EventName
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.small_files import decimal_number, keyed_numbers, listed, read_number, read_text, whole_number
from .cgroups import CgroupReader
from .clock_state import ClockState, read_clock
from .cpu_speed import CpuSpeed
from .memory_files import Value, memory_values, paging_values
from .pressure import parse_pressure

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") or 100
#: Columns of "cpu" in /proc/stat.
_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")
#: More groups than a node has jobs and ranks.
_MOST_GROUPS = 64
_MOST_ZONES = 64
#: Smaller steps of the wall clock are what keeps it in time.
_CLOCK_STEP_NS = 500_000_000


class HostCollector:
    """pids: of ranks, whose limits are told besides the agent's own. clock: may raise OSError (it may not be asked)."""

    name = "host"

    def __init__(
        self,
        pids: Callable[[], Iterable[int]] = tuple,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        shared_memory: Path = Path("/dev/shm"),
        clock: Callable[[], ClockState] = read_clock,
        period_s: float = 10.0,
    ) -> None:
        self.period_s = period_s
        self._pids = pids
        self._proc = proc
        self._sys = sys
        self._shared_memory = shared_memory
        self._clock = clock
        self._cgroups = CgroupReader(proc, sys)
        self._cpu_speed = CpuSpeed(sys)
        self._boot_id = ""
        self._wall_minus_mono_ns: int | None = None
        self._clock_steps = 0
        self._points: list[Point] = []
        self._problems: list[str] = []
        self._now = Timestamps(wall_ns=0, mono_ns=0)
        self._boot_ns = 0

    def collect(self, now: Timestamps) -> Collected:
        """One look at everything that the kernel tells of the node; what cannot be read becomes a problem."""
        self._points, self._problems, self._now = [], [], now
        happenings = [*self._see_boot(), *self._see_clock_step()]
        for see in (
            self._see_pressure,
            self._see_memory,
            self._see_processors,
            self._see_tables,
            self._see_shared_memory,
            self._see_groups,
            self._see_clock,
            self._see_heat,
            self._see_memory_errors,
        ):
            see()
        return Collected(points=self._points, happenings=happenings, problems=self._problems)

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        pass

    # --- one source each ----------------------------------------------------------------------------------------------

    def _see_boot(self) -> list[NodeEvent]:
        uptime = decimal_number((read_text(self._proc / "uptime") or "").partition(" ")[0])
        if uptime is None:
            self._cannot("uptime")
        else:
            self._boot_ns = self._now.wall_ns - int(uptime * 1e9)
            self._add("system.uptime", uptime)
        boot_id = (read_text(self._proc / "sys/kernel/random/boot_id") or "").strip()[:64]
        if not boot_id or boot_id == self._boot_id:
            return []
        before, self._boot_id = self._boot_id, boot_id
        return [self._change("boot", before, boot_id, self._boot_ns if uptime is not None else self._now.wall_ns)]

    def _see_clock_step(self) -> list[NodeEvent]:
        """Somebody set the wall clock: times before and after it do not compare."""
        before_ns, self._wall_minus_mono_ns = self._wall_minus_mono_ns, self._now.wall_ns - self._now.mono_ns
        step = clock_step(before_ns, self._now) if before_ns is not None else None
        if step is None:
            return []
        self._clock_steps += 1
        return [step]

    def _see_pressure(self) -> None:
        seen = False
        for resource in ("cpu", "memory", "io"):
            for kind, pressure in parse_pressure(read_text(self._proc / "pressure" / resource) or "").items():
                seen = True
                self._add("whichrank.pressure.share", pressure.share, resource=resource, kind=kind)
                self._add("whichrank.pressure.time", pressure.total_s, resource=resource, kind=kind)
        if not seen:
            self._cannot("pressure", "the kernel was built or started without it (psi=1)")

    def _see_memory(self) -> None:
        numbers = keyed_numbers(read_text(self._proc / "meminfo") or "")
        if "MemTotal" not in numbers:
            self._cannot("meminfo")
        else:
            self._add_all(memory_values(numbers))
        self._add_all(paging_values(keyed_numbers(read_text(self._proc / "vmstat") or "")))

    def _see_processors(self) -> None:
        words = (read_text(self._proc / "loadavg") or "").split()
        loads = [load for load in map(decimal_number, words[:3]) if load is not None]
        if len(loads) < 3:
            self._cannot("loadavg")
        for span, load in zip(("1m", "5m", "15m"), loads, strict=False):
            self._add(f"system.cpu.load_average.{span}", load)
        stat = read_text(self._proc / "stat") or ""
        if not stat.startswith("cpu "):
            self._cannot("stat")
            return
        for mode, word in zip(_CPU_MODES, stat.partition("\n")[0].split()[1:], strict=False):
            ticks = whole_number(word)
            if ticks is not None:
                self._add("system.cpu.time", ticks / _TICKS_PER_S, **{"cpu.mode": mode})
        numbers = keyed_numbers(stat[stat.rfind("\nctxt") + 1 :])
        for key, state in (("procs_running", "running"), ("procs_blocked", "blocked")):
            if key in numbers:
                self._add("system.process.count", numbers[key], **{"process.state": state})
        if "processes" in numbers:
            self._add("system.process.created", numbers["processes"])
        cores = sum(line[3:4].isdigit() for line in stat.split("\n") if line[:3] == "cpu")
        self._add("system.cpu.logical.count", cores)
        if loads:
            self._add_share("whichrank.cpu.load_per_core", loads[0], cores)
        speed = self._cpu_speed.read()
        if speed.hertz is not None:
            self._add("whichrank.cpu.frequency", speed.hertz)
        if speed.limit_hertz is not None:
            self._add("whichrank.cpu.frequency.limit", speed.limit_hertz)
        for package, count in speed.throttles.items():
            self._add("whichrank.cpu.throttles", count, package=package)

    def _see_tables(self) -> None:
        """Tables of the kernel that may be full: open files, threads."""
        used, limit = (_words(read_text(self._proc / "sys/fs/file-nr")) + [None] * 3)[0:3:2]
        if used is None or limit is None:
            self._cannot("sys/fs/file-nr")
        else:
            self._add("whichrank.file_descriptors.usage", used)
            self._add("whichrank.file_descriptors.limit", limit)
            self._add_share("whichrank.file_descriptors.utilization", used, limit)
        _, slash, threads = (read_text(self._proc / "loadavg") or "").partition("/")
        used = whole_number(threads.partition(" ")[0]) if slash else None
        limits = [read_number(self._proc / "sys/kernel" / name) for name in ("pid_max", "threads-max")]
        known = [number for number in limits if number is not None]
        if used is not None and known:
            self._add("whichrank.threads.usage", used)
            self._add("whichrank.threads.limit", min(known))
            self._add_share("whichrank.threads.utilization", used, min(known))

    def _see_shared_memory(self) -> None:
        try:
            state = os.statvfs(self._shared_memory)
        except OSError as error:
            self._problems.append(f"{self._shared_memory}: {error.strerror}: how full it is stays unknown")
            return
        used = state.f_blocks - state.f_bfree
        self._add("whichrank.shared_memory.limit", state.f_blocks * state.f_frsize)
        self._add("whichrank.shared_memory.usage", used * state.f_frsize)
        self._add_share("whichrank.shared_memory.utilization", used, state.f_blocks)

    def _see_groups(self) -> None:
        """Limits of the agent's own groups and of the ranks', each group once."""
        told: set[tuple[str, str]] = set()
        for pid in (None, *self._pids()):
            if len(told) > _MOST_GROUPS:
                break
            memory, cpu, pids = self._cgroups.memory(pid), self._cgroups.cpu(pid), self._cgroups.pids(pid)
            if memory is not None and ("memory", memory.path) not in told:
                told.add(("memory", memory.path))
                group = {"whichrank.cgroup.path": memory.path}
                for name, value in (
                    ("whichrank.cgroup.memory.usage", memory.usage_bytes),
                    ("whichrank.cgroup.memory.working_set", memory.working_set_bytes),
                    ("whichrank.cgroup.memory.limit", memory.limit_bytes),
                    ("whichrank.cgroup.memory.oom_kills", memory.oom_kills),
                    ("whichrank.cgroup.memory.pressure", memory.pressure),
                ):
                    if value is not None:
                        self._add(name, value, **group)
                # File pages that can be dropped at once kill nobody.
                used = memory.usage_bytes if memory.working_set_bytes is None else memory.working_set_bytes
                self._add_share("whichrank.cgroup.memory.utilization", used, memory.limit_bytes or 0, **group)
            if cpu is not None and ("cpu", cpu.path) not in told:
                told.add(("cpu", cpu.path))
                group = {"whichrank.cgroup.path": cpu.path}
                self._add("whichrank.cgroup.cpu.limit", cpu.cores, **group)
                self._add("whichrank.cgroup.cpu.throttled", cpu.throttled_s, **group)
            if pids is not None and ("pids", pids.path) not in told:
                told.add(("pids", pids.path))
                group = {"whichrank.cgroup.path": pids.path}
                self._add("whichrank.cgroup.pids.usage", pids.usage, **group)
                self._add("whichrank.cgroup.pids.limit", pids.limit, **group)
                self._add_share("whichrank.cgroup.pids.utilization", pids.usage, pids.limit, **group)

    def _see_clock(self) -> None:
        self._add("whichrank.clock.steps", self._clock_steps)
        try:
            state = self._clock()
        except OSError as error:
            self._problems.append(f"adjtimex: {error.strerror}: the clock's offset stays unknown")
            return
        self._add("whichrank.clock.synchronized", int(state.synchronized))
        if not state.synchronized:
            self._problems.append(
                "no time service keeps this node's clock (chrony, ntpd, PTP): its offset stays unknown"
            )
            return
        self._add("whichrank.clock.offset", state.offset_s)
        self._add("whichrank.clock.error.estimated", state.estimated_error_s)
        self._add("whichrank.clock.error.max", state.max_error_s)

    def _see_heat(self) -> None:
        for zone in listed(self._sys / "class/thermal", "thermal_zone", _MOST_ZONES):
            folder = self._sys / "class/thermal" / zone
            millidegrees = read_number(folder / "temp")
            kind = (read_text(folder / "type") or "").strip()[:64]
            # A sensor that is not there says 0 or less than frost.
            if millidegrees is not None and -40_000 < millidegrees < 200_000 and millidegrees:
                self._add("whichrank.thermal_zone.temperature", millidegrees / 1000, zone=zone, type=kind)

    def _see_memory_errors(self) -> None:
        """Counted by EDAC drivers, per memory controller; absent in virtual machines."""
        for controller in listed(self._sys / "devices/system/edac/mc", "mc", 64):
            for file, kind in (("ce_count", "corrected"), ("ue_count", "uncorrected")):
                count = read_number(self._sys / "devices/system/edac/mc" / controller / file)
                if count is not None:
                    self._add("whichrank.memory.errors", count, controller=controller, kind=kind)

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _add(self, name: str, value: float, **attributes: str) -> None:
        full = {key if "." in key else f"whichrank.{key}": text for key, text in attributes.items()}
        # What the kernel counts, it counts from its boot on.
        self._points.append(
            Point(
                name=name,
                value=float(value),
                attributes=full,
                time_ns=self._now.wall_ns,
                start_ns=self._boot_ns if node_metrics()[name].instrument is NodeMetricInstrument.COUNTER else 0,
            )
        )

    def _add_all(self, values: Iterable[Value]) -> None:
        for name, value, attributes in values:
            self._add(name, value, **attributes)

    def _add_share(self, name: str, part: float, whole: float, **attributes: str) -> None:
        """Nothing where there is no whole, such as a limit."""
        if whole > 0:
            self._add(name, part / whole, **attributes)

    def _cannot(self, file: str, why: str = "it is absent or may not be read") -> None:
        self._problems.append(f"{self._proc / file}: {why}")

    def _change(self, what: str, old: str, new: str, time_ns: int) -> NodeEvent:
        return _changed(what, old, new, time_ns, self._now)


def clock_step(before_ns: int, now: Timestamps) -> NodeEvent | None:
    """An event that the wall clock was set; None where it moved too little.

    before_ns: the wall clock less the monotonic one at the last look.
    """
    moved_ns = now.wall_ns - now.mono_ns - before_ns
    if abs(moved_ns) < _CLOCK_STEP_NS:
        return None
    return _changed("clock", "", f"stepped by {moved_ns / 1e9:+.3f} s", now.wall_ns, now)


def _changed(what: str, old: str, new: str, time_ns: int, now: Timestamps) -> NodeEvent:
    attributes = {"what": what, "old": old, "new": new, "where": "host"}
    return NodeEvent(name=EventName.CHANGE, time_ns=time_ns, mono_ns=now.mono_ns, attributes=attributes)


def _words(text: str | None) -> list[int | None]:
    return [whole_number(word) for word in (text or "").split()]
