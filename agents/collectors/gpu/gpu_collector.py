"""The GPUs of this node, by their driver: values every ten seconds, events as they come, and whose process is where.

Runs in a process of its own (``Isolation.PROCESS``), because a call into a driver in trouble may never return. Between
two collections ``wait`` tells what the driver says by itself (Xid errors, resets). Made there, too.

A GPU that was seen once stays expected: when it is gone, ``hw.status`` says so each time, and a happening once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....telemetry.vocabulary import EventName
from ..base.collector import Collected, NeedsNewProcess, Timestamps
from .driver import Driver, Gpu, UnreachableGpu
from .gathering import GpuCollection, GpuResponse, labels_of
from .maker import DriverClosed, DriverEvent, EventWatch, Maker, WatchedGpu
from .places import RankPlacer
from .values import Value

PERIOD_S = 10.0
#: A missing driver, and a lost GPU, are looked for anew so often.
RETRY_S = 60.0
#: A GPU that stays lost is looked for less and less often: to initialise beside it may take the driver seconds.
_MOST_RETRY_S = 600.0
#: Where new ranks are is asked so often: a GPU that is lost does not tell any more whose it was.
PLACE_S = 2.0
#: Limits, modes and the like are read so often.
SLOW_S = 60.0
_NS = 1_000_000_000


class DriverReplaced(NeedsNewProcess):
    """The driver is newer than the library that this process has loaded: only a new process can load the other one."""


class GpuCollector:
    """``Collector`` of one maker's GPUs (``which_maker`` chooses). proc, sys: this node's."""

    name = "gpu"
    period_s = PERIOD_S

    def __init__(self, maker: Maker, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._maker = maker
        self._sys = sys
        self._placer = RankPlacer(maker, proc)
        self._driver: Driver | None = None
        self._events: EventWatch | None = None
        #: By UUID; of a GPU that was lost before it could say one, by its place.
        self._watched: dict[str, WatchedGpu] = {}
        self._next_try_ns = 0
        self._retry_s = RETRY_S
        self._slow_due_ns = self._place_due_ns = 0
        self._told: set[str] = set()
        self._told_no_driver = False
        self._told_gone = False
        #: Without a driver: whether there is a GPU to see.
        self._is_blind = False
        self._versions: dict[str, str] = {}

    def collect(self, now: Timestamps) -> Collected:
        """Looks at all GPUs: their values, new driver events, and which rank is on which.

        Opens the driver if need be; blind where it cannot, or no GPU answers. Raises ``DriverReplaced``.
        """
        out = self._gather(now)
        if self._events is not None:
            self._report_events(self._events.wait(0.0), out)
        if self._driver is not None and self._any_lost() and now.mono_ns >= self._next_try_ns:
            # A GPU that was reset answers only those who initialise after that.
            self.close()
        if self._driver is None and not self._open(out):
            out.blind = self._is_blind
            return out.done()
        if not self._look_at_all(out):
            out.blind = True
            return out.done()
        self._place_ranks(out)
        self._listen(out)
        self._add_status(out)
        return out.done()

    def wait(self, timeout_s: float) -> Collected:
        """Waits between collections for driver events: returns at once when one comes, else after the time-out.

        Tells events alone, and which rank is on which GPU if that is due; never values.
        """
        until = time.monotonic() + timeout_s
        events = self._events.wait(timeout_s) if self._events is not None else []
        out = self._gather(Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns()))
        self._report_events(events, out)
        if self._events is not None and not self._events.is_open:
            # A wait says that some GPU is lost, not which.
            for watched in self._watched.values():
                if not watched.lost:
                    watched.find_out_if_lost(out)
            self._listen(out)
        if self._driver is not None and out.now.mono_ns >= self._place_due_ns:
            self._place_ranks(out)
            out.points.clear()  # values are told by collections
        if not out.happenings:
            time.sleep(max(0.0, until - time.monotonic()))
        out.blind = self._driver is None and self._is_blind
        return out.done()

    def _gather(self, now: Timestamps) -> GpuCollection:
        return GpuCollection(now, source=self._maker.source, told=self._told)

    def _place_ranks(self, out: GpuCollection) -> None:
        self._place_due_ns = out.now.mono_ns + int(PLACE_S * _NS)
        by_index = sorted(self._watched.values(), key=lambda watched: watched.gpu.index)
        reachable = [watched.gpu for watched in by_index if not watched.lost]
        self._placer.place([watched.gpu for watched in by_index], reachable, out)

    def close(self) -> None:
        """Ends the event watch and the driver's library; the next look would open them again."""
        if self._events is not None:
            self._events.close()
        self._events = None
        if self._driver is not None:
            self._maker.close()
        self._driver = None
        self._next_try_ns = 0

    def _open(self, out: GpuCollection) -> bool:
        if out.now.mono_ns < self._next_try_ns:
            return False
        self._next_try_ns = out.now.mono_ns + int(RETRY_S * _NS)
        try:
            self._driver = self._maker.open()
        except DriverClosed as error:
            self._maker.close()
            if error.is_replaced and self._watched:
                raise DriverReplaced(
                    f"GPU: the driver was replaced, a new process is needed to load its library ({error})"
                ) from error
            if not self._told_no_driver:
                out.problems.append(
                    f"GPU: no values, {self._maker.driver_name} cannot be opened ({error}); "
                    f"tried again every {RETRY_S:.0f} s"
                )
            self._told_no_driver = True
            self._is_blind = bool(self._watched or self._maker.on_bus(self._sys))
            return False
        self._told_no_driver = False
        self._slow_due_ns = 0
        before = self._any_lost()
        self._meet(self._driver, out)
        self._retry_s = min(2 * self._retry_s, _MOST_RETRY_S) if before and self._any_lost() else RETRY_S
        self._next_try_ns = out.now.mono_ns + int(self._retry_s * _NS)
        self._report_versions(self._driver, out)
        self._listen(out)
        return True

    def _meet(self, driver: Driver, out: GpuCollection) -> None:
        """Which of the GPUs that are expected are there, and which are new."""
        expected = self._watched
        self._watched = {gpu.uuid: self._maker.watch(gpu) for gpu in driver.gpus}
        for key, old in expected.items():
            found = next((gpu for gpu in driver.gpus if _is_same(gpu, old.gpu)), None)
            if found is None:
                self._watched[key] = old
                if not old.lost:
                    old.lose("not_listed", out)
            elif old.lost:
                out.tell_device("gpu_back", found, {"why": old.lost})
        for unreachable in driver.unreachable:
            self._expect(unreachable, out)

    def _expect(self, unreachable: UnreachableGpu, out: GpuCollection) -> None:
        """One that was lost before we could ask it who it is."""
        if any(watched.lost and watched.gpu.index == unreachable.index for watched in self._watched.values()):
            return
        name = unreachable.uuid or unreachable.pci_bus or f"GPU {unreachable.index}"
        gpu = Gpu(
            uuid=name, index=unreachable.index, pci_bus=unreachable.pci_bus, model="", serial="", vbios="", handle=None
        )
        self._watched[name] = self._maker.watch(gpu)
        self._watched[name].lose(self._maker.why_unreachable(unreachable.status), out)

    def _any_lost(self) -> bool:
        return any(watched.lost for watched in self._watched.values())

    def _look_at_all(self, out: GpuCollection) -> bool:
        """False: the driver has gone. What was lost with it is not told lost: nobody knows."""
        slow = out.now.mono_ns >= self._slow_due_ns
        looks = [(watched, watched.look(slow, out)) for watched in self._watched.values() if not watched.lost]
        ends = {look for _, look in looks}
        if GpuResponse.AWAY in ends or ends == {GpuResponse.SILENT}:
            if not self._told_gone:
                out.problems.append("GPU: the driver has gone, or was loaded anew; it is opened again")
            self._told_gone = self._is_blind = True
            self.close()
            return False
        self._told_gone = False
        for watched, look in looks:
            if look is GpuResponse.SILENT:
                watched.lose("no_answer", out)
        if slow:
            self._slow_due_ns = out.now.mono_ns + int(SLOW_S * _NS)
            self._add_description(out)
        return True

    def _listen(self, out: GpuCollection) -> None:
        if self._events is None or not self._events.is_open:
            self._events = self._maker.listen(watched.gpu for watched in self._watched.values() if not watched.lost)
        if self._events.problem:
            out.problem(f"GPU: {self._events.problem}")

    def _report_events(self, events: Sequence[DriverEvent], out: GpuCollection) -> None:
        for event in events:
            attributes: dict[str, Any] = {"code": event.code}
            if event.gpu_instance is not None:
                attributes["gpu_instance"] = event.gpu_instance
                attributes["mig"] = event.mig
            out.tell_device(event.kind, event.gpu, attributes)

    def _report_versions(self, driver: Driver, out: GpuCollection) -> None:
        now = dict(self._maker.versions(driver))
        for what, version in now.items():
            before = self._versions.get(what)
            if before and before != version:
                out.tell(EventName.CHANGE, {"what": what, "old": before, "new": version, "where": "node"})
        self._versions = now

    def _add_status(self, out: GpuCollection) -> None:
        for watched in self._watched.values():
            out.add(labels_of(watched.gpu), status_values(lost=bool(watched.lost)))

    def _add_description(self, out: GpuCollection) -> None:
        assert self._driver is not None
        for gpu in (watched.gpu for watched in self._watched.values()):
            labels = self._maker.description(self._driver, gpu)
            out.add(labels_of(gpu), (Value("whichrank.gpu.info", 1.0, labels),))


def status_values(*, lost: bool) -> tuple[Value, ...]:
    """The hw.status series of one GPU: one value per state, 1 where it holds."""
    return tuple(
        Value("hw.status", float(holds), {"hw.type": "gpu", "hw.state": state})
        for state, holds in (("ok", not lost), ("failed", lost))
    )


def _is_same(found: Gpu, expected: Gpu) -> bool:
    """One that was expected by its place alone has no handle; it is whoever sits there now."""
    if expected.handle is not None:
        return found.uuid == expected.uuid
    return found.uuid == expected.uuid or found.pci_bus == expected.pci_bus or found.index == expected.index
