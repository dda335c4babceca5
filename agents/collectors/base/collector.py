"""What a collector is: it looks at one source of the node and says what it saw. It never decides what that means.

A collector is made in the process or thread in which it runs and is called from that one only. It may block (a dead
mount, a driver that hangs): ``schedule`` runs it where that hurts nobody and tells that it does. It may raise: that is
counted, told once, and tried again after a while. What it cannot see it says in ``problems``, in one line each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from ....telemetry.records import Point
from ....telemetry.vocabulary import EventName


class NeedsNewProcess(RuntimeError):
    """What is loaded does not fit any more (a driver was replaced): only a new process of the collector can go on."""


class Isolation(Enum):
    """Where a collector runs."""

    #: A thread of its own in the agent: for what reads files of /proc and /sys.
    THREAD = "thread"
    #: A process of its own, which can be left behind: for drivers and mounts that may never answer.
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamps:
    """Now, on the node's two clocks (nanoseconds)."""

    wall_ns: int
    mono_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """A single thing that happened. ``attributes`` holds only str, int, float, bool and tuples of those.

    pid: of the rank it concerns where it concerns one (then the job that this rank is of hears it as well), else 0.
    """

    name: EventName
    time_ns: int
    mono_ns: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """points: of metrics in ``telemetry.node_metrics``. problems: what cannot be seen, and why; told once each.

    blind: there is something to see, and nothing of it is seen; that no fault was told means nothing then.
    """

    points: Sequence[Point] = ()
    happenings: Sequence[NodeEvent] = ()
    problems: Sequence[str] = ()
    blind: bool = False


class Collector(Protocol):
    @property
    def name(self) -> str:
        """The collector's name in messages, counters and options; one per node."""

    @property
    def period_s(self) -> float:
        """Seconds from the begin of one look to the begin of the next."""

    def collect(self, now: Timestamps) -> Collected:
        """Look once. May block: it runs in a thread or process of its own, and what it raises is counted there."""

    def close(self) -> None:
        """Let go of files, handles and threads; called once, after the last look."""


@runtime_checkable
class FinalCollector(Protocol):
    """A collector that is asked once more when the agent ends: a job's last words come just before that."""

    def last_look(self, now: Timestamps) -> Collected:
        """Looks a last time: what is new, and what was held back because more might have come."""


@runtime_checkable
class Listener(Protocol):
    """A collector whose source also speaks by itself: asked between two looks, it returns as soon as there is news."""

    def wait(self, timeout_s: float) -> Collected:
        """Block until the source speaks, for ``timeout_s`` at most; what it said, or nothing."""
