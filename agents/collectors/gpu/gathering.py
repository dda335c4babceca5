"""Points, happenings and problems of the GPUs, gathered while the collector looks from one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ....telemetry.records import Point
from ....telemetry.vocabulary import EventName
from ..base.collector import Collected, NodeEvent, Timestamps
from .driver import Gpu
from .values import Value


class GpuResponse(Enum):
    """How a look at a GPU ended."""

    #: It gave values.
    ANSWERED = "answered"
    #: It, or the driver, gave none at all, and did not say why.
    SILENT = "silent"
    LOST = "lost"
    #: The driver is gone.
    AWAY = "away"


def labels_of(gpu: Gpu) -> dict[str, str]:
    """The labels that every point of a GPU carries: its UUID, and its name by index."""
    return {"hw.id": gpu.uuid, "hw.name": f"GPU {gpu.index}"}


@dataclass(slots=True)
class GpuCollection:
    """What one collection, or one wait, brings together. What ``told`` holds is not told again.

    source: whose word device events are.
    """

    now: Timestamps
    source: str = "nvml"
    points: list[Point] = field(default_factory=list)
    happenings: list[NodeEvent] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    blind: bool = False
    _lacking: dict[str, list[str]] = field(default_factory=dict)

    def add(self, labels: Mapping[str, str], values: Sequence[Value]) -> None:
        """Adds each value to ``points``, with now as its time and the labels of its GPU beside its own."""
        for value in values:
            attributes = {**labels, **value.labels}
            self.points.append(
                Point(name=value.metric, value=float(value.value), attributes=attributes, time_ns=self.now.wall_ns)
            )

    def tell(self, name: EventName, attributes: Mapping[str, Any], pid: int = 0) -> None:
        """Adds a node event of now to ``happenings``. pid: of the process it is about, 0 for none."""
        self.happenings.append(
            NodeEvent(name=name, time_ns=self.now.wall_ns, mono_ns=self.now.mono_ns, attributes=attributes, pid=pid)
        )

    def tell_device(self, event: str, gpu: Gpu | None, more: Mapping[str, Any]) -> None:
        """Adds a DEVICE_EVENT of now to ``happenings``, with the GPU's UUID, index and PCI bus, and ``more``.

        gpu: None where the driver does not say which it was.
        """
        place = {"gpu_uuid": gpu.uuid, "gpu_index": gpu.index, "pci_bus": gpu.pci_bus} if gpu is not None else {}
        self.tell(EventName.DEVICE_EVENT, {"event": event, "source": self.source, **place, **more})

    def problem(self, line: str) -> None:
        """Adds a line on what cannot be seen to ``problems``; nothing if ``told`` has it already."""
        if line not in self.told:
            self.told.add(line)
            self.problems.append(line)

    def lack(self, what: str, why: str) -> None:
        """Notes that ``what`` cannot be had here; nothing if ``told`` has it. ``done`` makes one line of them all."""
        if what not in self.told:
            self.told.add(what)
            self._lacking.setdefault(why, []).append(what)

    def done(self) -> Collected:
        """Everything gathered; first adds one line to ``problems`` for all values that this driver or GPU lacks."""
        if self._lacking:
            kinds = "; ".join(f"{', '.join(whats)} ({why})" for why, whats in self._lacking.items())
            self.problems.append(f"GPU: this driver or GPU does not tell: {kinds}")
        return Collected(points=self.points, happenings=self.happenings, problems=self.problems, blind=self.blind)
