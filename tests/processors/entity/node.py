"""A node that tells things, its EntityOperator made anew for each record, and the court that hears its findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.processors.cluster.conftest import START_S, Court
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.kernel_events import KernelEvents
from whichrank.diagnosis.job_log.taxonomy import failure_classes
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.records import Event, Finding, Identity, Point, Record, Samples
from whichrank.telemetry.vocabulary import EventName

#: So long before START_S.
BOOTED_S = 100_000.0


class NodeCourt(Court):
    """State of one entity."""

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)

    @property
    def key(self) -> str:
        return self.entity

    entity = ""


class Node:
    """Times are seconds after START_S. Findings go to ``court`` as they come, if there is one."""

    def __init__(self, name: str = "n1", court: Court | None = None) -> None:
        self.name = name
        self.court = court
        self.context = NodeCourt()
        self.context.entity = f"node:{name}"
        self.findings: list[Finding] = []
        self._kernel_events = KernelEvents()

    def rank(
        self,
        rank: int,
        gpu: str = "",
        *,
        at: float = -100.0,
        job: str = "j",
        pid: int | None = None,
        attempt: str = "a1",
    ) -> None:
        """A rank with pid 100 + rank starts here, on this GPU, whose bus goes by its number."""
        who = Identity(cluster="local", job=job, attempt=attempt, node=self.name, rank=rank)
        pid = 100 + rank if pid is None else pid
        self.take(Event(name=EventName.RANK_STARTED, identity=who, time_ns=_ns(at), attributes={"pid": pid}))
        if gpu:
            found = {"pid": pid, "gpu_uuid": gpu, "pci_bus": f"00000000:{_bus(gpu, rank):02X}:00.0", "method": "nvml"}
            self.take(Event(name=EventName.RANK_DEVICE, identity=who, time_ns=_ns(at), attributes=found))

    def kernel(self, word: str, *, at: float, **found: Any) -> None:
        self.tell(EventName.KERNEL_EVENT, at=at, event=word, **found)

    def xid(self, code: int, rank: int, *, at: float, **found: Any) -> None:
        """As the kernel's line says it: by the PCI bus of the rank's GPU."""
        found = {"domain": "hardware", "severity": "fatal", "action": "restart_without_node", **found}
        device = f"0000:{10 + rank:02x}:00.0"
        self.kernel("xid", at=at, code=str(code), device=device, device_kind="gpu", text=f"Xid {code}", **found)

    def log(self, text: str, *, at: float) -> None:
        """A line of the kernel's log, as its reader understands it."""
        for event in self.read(text, at=at):
            self.take(event)

    def read(self, text: str, *, at: float) -> list[Event]:
        """What that line tells, for later."""
        moment = Timestamps(wall_ns=_ns(at), mono_ns=_ns(at + BOOTED_S) - _ns(0.0))
        seen = [*self._kernel_events(f"[{at + BOOTED_S:12.6f}] {text}", moment), *self._kernel_events.flush(moment)]
        who = Identity(cluster="local", node=self.name)
        return [Event(name=each.name, identity=who, time_ns=each.time_ns, attributes=each.attributes) for each in seen]

    def tell(self, name: EventName, *, at: float, **found: Any) -> None:
        identity = Identity(cluster="local", node=self.name)
        self.take(Event(name=name, identity=identity, time_ns=_ns(at), attributes=found))

    def job_log(self, word: str, *, at: float, rank: int | None = None, job: str = "j", **found: Any) -> None:
        """As the collector tells a statement of this class, by default of the rank with pid 100 + rank."""
        failure = failure_classes()[word]
        told = {name: getattr(failure, name).value for name in ("bucket", "scope", "action", "restart")}
        told |= {"class": word, "role": "initiating", "text": word, **found}
        who = Identity(cluster="local", node=self.name)
        if rank is not None:
            told = {"rank": rank, "pid": 100 + rank, **told}
            who = replace(who, job=job, attempt="a1", rank=rank)
        attributes = {name: value for name, value in told.items() if value not in (None, "")}
        self.take(Event(name=EventName.JOB_LOG, identity=who, time_ns=_ns(at), attributes=attributes))

    def measure(self, name: str, values: dict[str, float], *, at: float, attribute: str = "hw.id") -> None:
        self.measure_where(name, values, {}, at=at, attribute=attribute)

    def measure_where(
        self, name: str, values: dict[str, float], where: dict[str, str], *, at: float, attribute: str = "hw.id"
    ) -> None:
        points = tuple(
            Point(name=name, value=value, attributes={attribute: device, **where}, time_ns=_ns(at))
            for device, value in values.items()
        )
        self.take(Samples(identity=Identity(cluster="local", node=self.name), points=points))

    def pass_time(self, until: float) -> None:
        context = self.context
        while context.timers and min(context.timers.values()) <= _ns(until):
            self.fire_next()

    def fire_next(self) -> None:
        """The timer that is due first, at its time."""
        timers = self.context.timers
        name = min(timers, key=timers.__getitem__)
        self.context.now = timers.pop(name)
        EntityOperator().on_timer(Timer(name, self.context.now), self.context)
        self._hand_on()

    @property
    def open(self) -> dict[str, dict[str, Any]]:
        """Conditions that stand, by name/device."""
        last = {finding.key: finding for finding in self.findings}
        told = [finding for finding in last.values() if not finding.cleared and "condition" in finding.body]
        bodies = [dict(finding.body["condition"]) for finding in told]
        return {f"{body['name']}/{body['device']}": body for body in bodies}

    def take(self, payload: Event | Samples) -> None:
        stamp = payload.time_ns if isinstance(payload, Event) else payload.points[0].time_ns
        self.context.now = max(self.context.now, stamp)
        operator = EntityOperator()
        record = Record(topic="whichrank.blocks", key="", stamp_ns=self.context.now, payload=payload)
        assert operator.key_of(record) == self.context.entity
        operator.process([record], self.context)
        self._hand_on()

    def _hand_on(self) -> None:
        emitted, self.context.emitted = self.context.emitted, []
        for record in emitted:
            assert isinstance(record.payload, Finding)
            self.findings.append(record.payload)
            if self.court is not None:
                self.court.hear(record.payload)


def _bus(gpu: str, rank: int) -> int:
    number = gpu.rpartition("-")[2]
    return 10 + (int(number) if number.isdecimal() else rank)


def _ns(at: float) -> int:
    return round((START_S + at) * 1e9)
