"""The real operators over what a simulation sends, in this process and faster than real time.

The same operators, rules, runner and codec as ``whichrank process``; in place of Kafka stands a list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ...commands.embedded.embedded_operators import INPUT_TOPICS, make_operators, wanted_metrics
from ...diagnosis.goodput.interval import Interval, interval_of
from ...processors.commit_pace import CommitPace
from ...processors.runner import EmbeddedRunner
from ...simulator.clock import START_UNIX_NS, ns
from ...simulator.sent import SentMessage
from ...telemetry.otlp import encode_batches
from ...telemetry.packed_flush import Packing
from ...telemetry.records import Finding, Incident, Record
from ...transport.bus import Bus, Message, Output
from ...transport.embedded import EmbeddedBus

#: As ``AgentSettings.request_bytes``.
REQUEST_BYTES = 600_000


def encoded(sent: SentMessage) -> Iterable[bytes]:
    """What a simulated message is on the bus: one or several encoded messages."""
    if sent.value:
        return (sent.value,)
    return encode_batches(sent.payloads, REQUEST_BYTES, packing=sent.packing, lists=set(sent.lists))


class Judge:
    """``take`` windows of a simulation; ``revisions`` and ``intervals`` hold what was concluded of them.

    bus: where all of it is kept; default: nowhere. start_unix_ns: the simulation's. state: the file of the operators'
    state; None: in memory. input_topics: those of a run; a ``whichrank process`` reads more.
    """

    def __init__(
        self,
        bus: SimulatedBus | None = None,
        *,
        start_unix_ns: int = START_UNIX_NS,
        state: Path | None = None,
        input_topics: Collection[str] = INPUT_TOPICS,
    ) -> None:
        self._start_ns = start_unix_ns
        self._bus = bus or MemoryBus(ns=start_unix_ns)
        self.revisions: list[Incident] = []
        self.intervals: list[Interval] = []
        self.runner = EmbeddedRunner(
            self._bus,
            state,
            make_operators(listens=True),
            self._deliver,
            live=True,
            input_topics=input_topics,
            metrics=wanted_metrics(),
            pace=CommitPace(clock_s=lambda: self._bus.now_ns() / 1e9),
        )

    def take(self, until_s: float, sent: Sequence[SentMessage]) -> None:
        """Lets the operators judge what agents have sent in a window.

        until_s: its end, in seconds of the simulation.
        """
        for message in sent:
            self._bus.advance(self._start_ns + ns(message.at_s))
            # Packed or not, the same rows are read; to pack those of all nodes takes as long as to judge them.
            for value in encoded(replace(message, packing=Packing.NONE)):
                self._bus.append(message.topic, message.key, value)
        self._bus.advance(self._start_ns + ns(until_s))
        self.runner.drain()

    @property
    def incidents(self) -> dict[str, Incident]:
        """The last revision of each incident, by its id."""
        return {str(revision.document["id"]): revision for revision in self.revisions}

    def close(self) -> None:
        """Ends the operators; what is held back by timers is not concluded any more."""
        self.runner.close()
        self._bus.close()

    def _deliver(self, record: Record) -> None:
        if isinstance(record.payload, Incident):
            self.revisions.append(record.payload)
        elif isinstance(record.payload, Finding) and (interval := interval_of(record.payload)) is not None:
            self.intervals.append(interval)


class SimulatedBus(Bus, Protocol):
    """A bus whose time is told to it."""

    def advance(self, to_ns: int) -> None:
        """Sets the bus's time. to_ns: Unix nanoseconds of the simulation; earlier ones change nothing."""


class CaptureBus(EmbeddedBus):
    """The capture of a run, stamped with the simulation's time."""

    def __init__(self, directory: Path, *, start_unix_ns: int) -> None:
        """Raises OSError."""
        self._simulated_ns = 0
        self._start_unix_ns = start_unix_ns
        super().__init__(directory, start_wall_ns=start_unix_ns, monotonic_ns=lambda: self._simulated_ns)

    def advance(self, to_ns: int) -> None:
        """Sets the bus's time. to_ns: Unix nanoseconds of the simulation; earlier ones change nothing."""
        self._simulated_ns = max(self._simulated_ns, to_ns - self._start_unix_ns)


@dataclass(slots=True)
class MemoryBus:
    """``Bus`` whose time is that of what is put into it."""

    ns: int
    position: int = 0
    waiting: deque[Message] = field(default_factory=deque)
    reads_outputs: bool = False
    identity: str = "simulated"

    @property
    def last_position(self) -> int:
        """Position of the newest message; 0 before the first."""
        return self.position

    def advance(self, to_ns: int) -> None:
        """Sets the bus's time. to_ns: Unix nanoseconds of the simulation; earlier ones change nothing."""
        self.ns = max(self.ns, to_ns)

    def append(self, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> int:
        """Appends a message, stamped with the simulation's time, and returns its position; headers are not kept."""
        self.position += 1
        self.waiting.append(Message(topic=topic, key=key, value=value, position=self.position, stamp_ns=self.ns))
        return self.position

    def read(self, after: int, limit: int) -> Sequence[Message]:
        """The next messages, at most ``limit``; they are forgotten. ``after`` is not looked at."""
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    def publish(self, outputs: Sequence[Output], until: int) -> None:
        """Does nothing: nobody reads what is published."""

    def has_given(self, position: int) -> bool:
        """Whether everything has been read."""
        return not self.waiting

    def caught_up(self) -> bool:
        """Whether everything has been read."""
        return not self.waiting

    def now_ns(self) -> int:
        """The time of the simulation in Unix nanoseconds."""
        return self.ns

    def close(self) -> None:
        """Does nothing: the messages are forgotten with the object."""
