"""From a kernel line to what is told of it: ``diagnosis.kernel_log`` behind the collector that follows the log."""

from __future__ import annotations

import time

from ....diagnosis.kernel_log import KernelEvent, KernelLogReader
from ....diagnosis.kernel_log.stamps import Calendar
from ....telemetry.vocabulary import EventName
from ..base.collector import NodeEvent, Timestamps

#: Dates are told by the second; the seconds since boot beside them, where they agree, are exact.
_AGREE_S = 2.0


class KernelEvents:
    """``ParseLine`` of the kernel log's collector. One per log: the reader remembers."""

    def __init__(self, driver_version: str | None = None) -> None:
        self._calendar = Calendar(utc_offset_s=time.localtime().tm_gmtoff)
        self._reader = KernelLogReader(driver_version, calendar=self._calendar)

    def __call__(self, line: str, moment: Timestamps) -> list[NodeEvent]:
        self._calendar.reference_s = moment.wall_ns / 1e9  # of dates without a year
        return [_happening(event, moment) for event in self._reader.read(line)]

    def flush(self, moment: Timestamps) -> list[NodeEvent]:
        """All events that are still held back for further lines of the log; none is held afterwards.

        To be called at the log's end, or after a second of silence. moment: now, to work out their times.
        """
        return [_happening(event, moment) for event in self._reader.flush()]


def _time_ns(event: KernelEvent, moment: Timestamps) -> int:
    """Unix time of the line; that of its record where it tells none."""
    if event.monotonic_s is not None:
        since_boot_ns = moment.wall_ns - moment.mono_ns + round(event.monotonic_s * 1e9)
        if event.time_s is None or abs(since_boot_ns / 1e9 - event.time_s) < _AGREE_S:
            return since_boot_ns
    return moment.wall_ns if event.time_s is None else round(event.time_s * 1e9)


def _happening(event: KernelEvent, moment: Timestamps) -> NodeEvent:
    time_ns = _time_ns(event, moment)
    attributes: dict[str, str | int] = {
        "event": event.event,
        "code": event.code,
        "device": event.device,
        "device_kind": event.device_kind.value,
        "severity": event.severity.value,
        "domain": event.domain.value,
        "component": event.component,
        "action": event.action.value,
        "role": event.role.value,
        "process": event.process,
        "text": event.text,
        **_repeated(event),
    }
    if event.pid is not None:
        attributes["pid"] = event.pid
    return NodeEvent(
        name=EventName.KERNEL_EVENT,
        time_ns=time_ns,
        mono_ns=moment.mono_ns - (moment.wall_ns - time_ns),
        attributes={name: value for name, value in attributes.items() if value != ""},
    )


def _repeated(event: KernelEvent) -> dict[str, str | int]:
    """What tells whether a line is a repeat of another: finer places than the device, and registers."""
    facts = event.facts
    gpc, tpc = facts.get("gpc"), facts.get("tpc")
    return {
        "processor": f"{gpc}/{tpc}" if gpc and tpc else "",
        "link": facts.get("link", ""),
        "registers": facts.get("registers", ""),
    }
