"""Faults that the kernel has logged since this boot: those of devices, and what their repeats say."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...agents.collectors.base.collector import Timestamps
from ...agents.collectors.base.kernel_files import read_text
from ...agents.collectors.logs.kernel_log_collector import default_sources
from ...agents.collectors.logs.kernel_log_sources import KernelLogSource
from ...diagnosis.health_checks.outcome import CheckStatus
from ...diagnosis.kernel_log import KernelEvent, KernelLogReader
from ...diagnosis.kernel_log.event import Domain, EventSeverity, Repair
from ...diagnosis.kernel_log.recurrence import Sighting, conclusions, sighting_of
from ...diagnosis.kernel_log.stamps import Calendar
from ...telemetry.redaction import redact
from ...telemetry.vocabulary import CausalRole
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family
from .points import moment

_MOST_LINES = 1_000_000
_BATCH = 5_000
#: journalctl gives what it has after a while.
_WAIT_S = 0.3
_MOST_KEPT = 1_000
_HOUR_S = 3600.0
_FAR_S = 10 * 365 * 86_400.0


@dataclass(slots=True)
class _Group:
    event: KernelEvent
    count: int
    last_s: float


def check(setup: Setup, tell: Tell) -> None:
    """Tells faults of GPU, NIC, disk and memory that the kernel has logged since the boot; older ones as warnings."""
    tell.begins("the kernel log was opened")
    source, refusals = _open(setup.kernel_log)
    if source is None:
        reason = f"the kernel log cannot be read: {'; '.join(refusals)}"
        remedy = "run as root, or name a file with --kernel-log"
        tell.found(_finding("readable", CheckStatus.UNKNOWN, reason, remedy=remedy))
        return
    tell.begins(f"{source.name} was read")
    now = moment()
    events = list(_events(source, now, setup))
    boot_s = _boot_s(setup, now)
    recent_s = now.wall_ns / 1e9 - setup.expected.kernel_log.hours * _HOUR_S
    told = [event for event in events if _matters(event) and _time_s(event, now) >= boot_s]
    tell.found(*_groups(told, recent_s, now), *_repeats(told, now))
    if not told:
        reason = f"no fault of a device since this boot ({source.name})"
        tell.found(_finding("faults", CheckStatus.OK, reason, value=0.0))


def _open(path: str) -> tuple[KernelLogSource | None, list[str]]:
    refusals: list[str] = []
    for name, make in default_sources(path, _FAR_S).items():
        try:
            return make(), refusals
        except (OSError, ValueError) as error:
            refusals.append(f"{name}: {getattr(error, 'strerror', None) or error}")
    return None, refusals


def _events(source: KernelLogSource, now: Timestamps, setup: Setup) -> Iterator[KernelEvent]:
    calendar = Calendar(reference_s=now.wall_ns / 1e9, utc_offset_s=time.localtime().tm_gmtoff)
    reader = KernelLogReader(calendar=calendar)
    until_s = time.monotonic() + setup.limit_s - 1.0
    read, is_last = 0, False
    while read < _MOST_LINES and time.monotonic() < until_s:
        lines = source.read(now, _BATCH)
        for line in lines:
            yield from reader.read(line.text, now_s=line.moment.wall_ns / 1e9)
        read += len(lines)
        if not lines and is_last:
            break
        is_last = not lines
        if is_last:
            time.sleep(_WAIT_S)
    yield from reader.flush()


def _matters(event: KernelEvent) -> bool:
    """Of the node, not of a program; a cause, not what follows from one."""
    if event.severity in (EventSeverity.INFO, EventSeverity.WARNING) or event.domain is Domain.APPLICATION:
        return False
    return event.role is CausalRole.INITIATING


def _groups(events: Iterable[KernelEvent], recent_s: float, now: Timestamps) -> Iterator[CheckFinding]:
    groups: dict[tuple[str, str, str], _Group] = {}
    for event in events:
        key, at_s = (event.event, event.code, event.device), _time_s(event, now)
        group = groups.get(key)
        if group is not None:
            group.count, group.last_s = group.count + 1, max(group.last_s, at_s)
        elif len(groups) < _MOST_KEPT:
            groups[key] = _Group(event, 1, at_s)
    for group in sorted(groups.values(), key=lambda each: -each.last_s):
        yield _of_group(group, recent_s, now)


def _of_group(group: _Group, recent_s: float, now: Timestamps) -> CheckFinding:
    event = group.event
    is_fatal = event.severity is EventSeverity.FATAL and group.last_s >= recent_s
    age_h = max(now.wall_ns / 1e9 - group.last_s, 0.0) / _HOUR_S
    times = f"{group.count} times, last " if group.count > 1 else ""
    code = f" {event.code}" if event.code else ""
    reason = f"{event.event}{code} ({times}{age_h:.1f} h ago): {redact(event.text)[:200]}"
    repair = event.repair.value.replace("_", " ") if event.repair is not Repair.NONE else ""
    return _finding(
        "faults",
        CheckStatus.CRITICAL if is_fatal else CheckStatus.WARN,
        reason,
        device=event.device,
        remedy=repair or event.action.value.replace("_", " "),
        value=float(group.count),
    )


def _repeats(events: Iterable[KernelEvent], now: Timestamps) -> Iterator[CheckFinding]:
    sightings = [sighting for event in events if (sighting := sighting_of(event, "")) is not None][-_MOST_KEPT:]
    seen: set[tuple[str, str]] = set()
    for end in range(len(sightings), 0, -1):
        newest: Sighting = sightings[end - 1]
        if now.wall_ns / 1e9 - newest.time_s > 86_400 or len(sightings) - end > 50:
            return
        for found in conclusions(sightings[:end]):
            if found.domain is Domain.HARDWARE and found.count > 1 and (found.rule, found.device) not in seen:
                seen.add((found.rule, found.device))
                yield _finding(
                    "recurrence",
                    CheckStatus.CRITICAL,
                    f"{found.rule.replace('_', ' ')}: {found.count} times",
                    device=found.device,
                    remedy=found.repair.value.replace("_", " "),
                    value=float(found.count),
                )


def _time_s(event: KernelEvent, now: Timestamps) -> float:
    return event.time_s if event.time_s is not None else now.wall_ns / 1e9


def _boot_s(setup: Setup, now: Timestamps) -> float:
    """A file may hold what was before the boot. 0 where nobody says when that was."""
    words = (read_text(setup.proc / "uptime") or "").split()
    try:
        return now.wall_ns / 1e9 - float(words[0]) - 1.0
    except (IndexError, ValueError):
        return 0.0


def _finding(
    check: str, status: CheckStatus, reason: str, *, device: str = "", remedy: str = "", value: float | None = None
) -> CheckFinding:
    return CheckFinding(
        family=Family.KERNEL_LOG, check=check, status=status, reason=reason, device=device, remedy=remedy, value=value
    )
