"""Memory, /dev/shm, the clock, limits, and processes that nobody can end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...agents.collectors.base.kernel_files import list_names, read_text
from ...agents.collectors.host.host_collector import HostCollector
from ...diagnosis.health_checks.outcome import CheckStatus
from ...telemetry.records import Point
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family
from .points import moment, tell_points

_MOST_PROCESSES = 20_000
_GIB = 2**30


def check(setup: Setup, tell: Tell) -> None:
    """Tells of memory, /dev/shm, clock and limits, and processes that nobody can end.

    Also of the governor, where one is expected.
    """
    tell.begins("files of /proc and /sys were read")
    shared = setup.root / "dev/shm"
    collected = HostCollector(proc=setup.proc, sys=setup.sys, shared_memory=shared).collect(moment())
    points = list(collected.points)
    unsynchronised = any(point.name == "whichrank.clock.synchronized" and not point.value for point in points)
    if unsynchronised:
        # Of a clock that nobody keeps the kernel's estimate means nothing.
        points = [point for point in points if not point.name.startswith("whichrank.clock.error")]
    tell_points(setup, points, (Family.MEMORY, Family.HOST), tell)
    if Family.MEMORY in setup.families:
        tell.found(*_sizes(setup, points))
    if Family.HOST in setup.families:
        tell.found(*_governor(setup))
        tell.begins("the states of all processes were read")
        tell.found(*_stuck(setup))


def _sizes(setup: Setup, points: Sequence[Point]) -> Iterator[CheckFinding]:
    wanted = setup.expected.memory
    for check, metric, least_gib in (
        ("size", "system.memory.limit", wanted.total_gib),
        ("shared_memory_size", "whichrank.shared_memory.limit", wanted.shared_memory_gib),
    ):
        size = next((point.value for point in points if point.name == metric), None)
        if least_gib is None:
            continue
        status = (
            CheckStatus.UNKNOWN
            if size is None
            else CheckStatus.OK
            if size >= least_gib * _GIB * 0.98
            else CheckStatus.CRITICAL
        )
        reason = "it cannot be read" if size is None else f"{size / _GIB:.1f} GiB, expected {least_gib:g}"
        remedy = "look for modules that the firmware took out (dmidecode -t memory), or the limit of the mount"
        yield CheckFinding(
            family=Family.MEMORY,
            check=check,
            status=status,
            reason=reason,
            remedy="" if status is CheckStatus.OK else remedy,
            value=None if size is None else size / _GIB,
        )


def _governor(setup: Setup) -> Iterator[CheckFinding]:
    wanted = setup.expected.host.governor
    folder = setup.sys / "devices/system/cpu/cpufreq"
    found = {
        governor
        for name in list_names(folder)[:4096]
        if (governor := read_text(folder / name / "scaling_governor")) is not None
    }
    if wanted and found != {wanted}:
        told = ", ".join(sorted(found)) or "none that can be read"
        yield CheckFinding(
            family=Family.HOST,
            check="governor",
            status=CheckStatus.WARN if found else CheckStatus.UNKNOWN,
            reason=f"frequency governors: {told}, expected {wanted}",
            remedy=f"cpupower frequency-set -g {wanted}",
        )


def _stuck(setup: Setup) -> Iterator[CheckFinding]:
    """Processes that are being killed and still wait in the kernel: what they wait for does not come back."""
    names = [name for name in list_names(setup.proc) if name.isdecimal()][:_MOST_PROCESSES]
    stuck = []
    for pid in names:
        status = read_text(setup.proc / pid / "stat") or ""
        _, _, after = status.rpartition(")")
        if after.split()[:1] == ["D"] and _is_killed(setup, pid):
            program = status.partition("(")[2].rpartition(")")[0]
            waits_in = read_text(setup.proc / pid / "wchan") or "unknown"
            stuck.append(f"{program} ({pid}) in {waits_in}")
    if stuck:
        yield CheckFinding(
            family=Family.HOST,
            check="stuck_processes",
            status=CheckStatus.CRITICAL,
            reason=f"{len(stuck)} processes were killed and cannot end: {', '.join(stuck[:5])}",
            remedy="find what they wait for (mount, GPU driver) in the kernel log; reboot if it does not come back",
            value=float(len(stuck)),
        )
    else:
        reason = f"none of {len(names)} processes was killed and cannot end"
        yield CheckFinding(family=Family.HOST, check="stuck_processes", status=CheckStatus.OK, reason=reason, value=0.0)


def _is_killed(setup: Setup, pid: str) -> bool:
    """SIGKILL is pending, for the process or its thread."""
    for line in (read_text(setup.proc / pid / "status") or "").splitlines():
        key, _, value = line.partition(":")
        if key in ("SigPnd", "ShdPnd"):
            try:
                if int(value.strip(), 16) >> (9 - 1) & 1:
                    return True
            except ValueError:
                continue
    return False
