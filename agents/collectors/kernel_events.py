"""From a kernel line to what is told of it: ``diagnosis.kernel_log`` behind the collector that follows the log."""

from __future__ import annotations

from ...diagnosis.kernel_log import KernelEvent, KernelLogReader
from ...telemetry.vocabulary import EventName
from .collector import Happening, Moment


class KernelEvents:
    """``ParseLine`` of the kernel log's collector. One per log: the reader remembers."""

    def __init__(self, driver_version: str | None = None) -> None:
        self._reader = KernelLogReader(driver_version)

    def __call__(self, line: str, moment: Moment) -> list[Happening]:
        return [_happening(event, moment) for event in self._reader.read(line)]


def _happening(event: KernelEvent, moment: Moment) -> Happening:
    """A line without a wall clock of its own has that of its record."""
    time_ns = moment.wall_ns if event.time_s is None else round(event.time_s * 1e9)
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
    }
    if event.pid is not None:
        attributes["pid"] = event.pid
    return Happening(
        name=EventName.KERNEL_EVENT,
        time_ns=time_ns,
        mono_ns=moment.mono_ns - (moment.wall_ns - time_ns),
        attributes={name: value for name, value in attributes.items() if value != ""},
    )
