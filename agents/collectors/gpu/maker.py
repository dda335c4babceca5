"""What the GPU collector asks of a maker's driver, whichever it is; and what a driver that cannot be opened raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .driver import Driver, Gpu
from .gathering import GpuCollection, GpuResponse
from .ranks import Placement, RankProcess


class DriverClosed(Exception):
    """The driver cannot be opened; the text says why, in one line.

    is_replaced: it is newer than the library that this process has loaded.
    """

    def __init__(self, why: str, *, is_replaced: bool = False) -> None:
        super().__init__(why)
        self.is_replaced = is_replaced


class ProcessesUnknown(Exception):
    """The driver does not say which processes are on a GPU; the text says why. Empty: it is lost, told elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU. memory_bytes None: not told. mig: UUID of the instance, "" the whole GPU."""

    pid: int
    memory_bytes: int | None
    mig: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEvent:
    """gpu None: the driver did not say which. code: of an Xid; else what the driver sends with this kind.

    mig: UUID of the instance that it is about; None: it is about the whole GPU.
    """

    kind: str
    code: int
    gpu: Gpu | None
    gpu_instance: int | None = None
    mig: str | None = None


class WatchedGpu(Protocol):
    """One GPU that is watched. ``lost``: why it cannot be asked, empty: it can."""

    gpu: Gpu
    lost: str

    def look(self, slow: bool, out: GpuCollection) -> GpuResponse:
        """Reads the GPU's values into ``out``; how that ended is the result. slow: also values that seldom change."""

    def find_out_if_lost(self, out: GpuCollection) -> None:
        """Asks the GPU itself by one call; if it is lost, that is told in ``out`` by ``lose``."""

    def lose(self, why: str, out: GpuCollection) -> None:
        """Notes in ``lost`` why the GPU no longer answers, and adds a device event ``gpu_lost`` with it to ``out``."""


class EventWatch(Protocol):
    """What the driver tells by itself. ``problem``: why nothing is heard, or not of all GPUs; else empty."""

    problem: str

    @property
    def is_open(self) -> bool:
        """Whether the driver took the registration; False also after ``close``."""

    def wait(self, timeout_s: float) -> list[DriverEvent]:
        """Waits for events, returns as soon as something came; empty after the time-out. Never raises."""

    def close(self) -> None:
        """Ends the registration; may be called again."""


class Maker(Protocol):
    """One maker's GPUs, by its driver's own library. Calls may block for as long as the driver does."""

    #: Of the driver, in the sentence that says that it cannot be opened ("NVIDIA's driver").
    driver_name: str
    #: ``source`` of device events, and the word of placements by the driver ("nvml").
    source: str

    def open(self) -> Driver:
        """Opens the driver anew and asks for every GPU. Raises ``DriverClosed``."""

    def close(self) -> None:
        """Ends the driver's library; that it was not open, or is broken, is no error."""

    def watch(self, gpu: Gpu, lost: str = "") -> WatchedGpu:
        """A look at that GPU, to be kept between collections."""

    def listen(self, gpus: Iterable[Gpu]) -> EventWatch:
        """A registration for events of these GPUs."""

    def processes(self, gpu: Gpu) -> Sequence[GpuProcess]:
        """Who computes there now. Raises ``ProcessesUnknown``."""

    def place(self, process: RankProcess, gpus: Sequence[Gpu]) -> Placement | None:
        """The GPU that a rank uses by its environment alone; None: it sees none. gpus: of this node, by index."""

    def why_unreachable(self, status: int) -> str:
        """A word for the status of a GPU that was lost before it could be asked."""

    def on_bus(self, sys: Path) -> Sequence[str]:
        """PCI addresses of the maker's GPUs that are this system's."""

    def versions(self, driver: Driver) -> Mapping[str, str]:
        """Versions whose change is told, by what they are of."""

    def description(self, driver: Driver, gpu: Gpu) -> Mapping[str, str]:
        """Labels of ``whichrank.gpu.info``."""
