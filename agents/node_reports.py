"""What a node's collectors saw, onto the bus: events for operators and people, values as metrics.

Called by the thread that owns the collectors (``turn``). What concerns a rank's process gets that rank's identity; what
the driver or the scheduler said of a process before its ring was found is said again then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from ..telemetry.node_metrics import node_metrics
from ..telemetry.otlp import encode_batches
from ..telemetry.otlp_metrics import encode_points
from ..telemetry.records import Event, Identity, Point
from ..telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS
from ..telemetry.vocabulary import EventName
from .base.priority import Priority
from .collectors.base.collector import NodeEvent
from .collectors.base.still_points import StillPoints
from .collectors.schedule import NodeTelemetry
from .privacy.privacy_options import STACKS
from .privacy.redaction_filter import PublishRanked, RedactionFilter
from .ranks.rank_events import without_stack

#: What concerns a job or a rank by its process, which may be known as one only later.
_OF_PROCESSES = frozenset({EventName.RANK_DEVICE, EventName.SCHEDULER})
#: Means nothing but with a rank.
_OF_RANKS = frozenset({EventName.RANK_DEVICE, EventName.RANK_PROCESS})
MAX_REMEMBERED = 512
#: Of one turn: more are a storm, and its first lines say what it is.
MAX_EVENTS = 2000


class EncodePoints(Protocol):
    def __call__(self, identity: Identity, points: Iterable[Point], *, limit_bytes: int) -> list[bytes]: ...


class NodeReports:
    """Not thread-safe."""

    def __init__(
        self,
        telemetry: NodeTelemetry,
        own: Identity,
        publish: PublishRanked,
        *,
        rank_processes: Callable[[], Mapping[int, Identity]],
        request_bytes: int,
        metrics: Collection[str] | None = None,
        withheld: Collection[str] = (),
        encode: EncodePoints = encode_points,
        gate: RedactionFilter | None = None,
        on_happening: Callable[[NodeEvent], None] | None = None,
    ) -> None:
        """own: cluster and node. metrics: send only these, for nobody reads others; None: all.

        withheld: names of ``privacy_options``; a traceback in a log is a stack, too. encode: as ``encode_points`` does.
        gate: the one that its messages go through; None: one of its own, which counts what it does not let through.
        on_happening: is told of each event as well.
        """
        self._tells_stacks = STACKS not in withheld
        self._telemetry = telemetry
        self._own = Identity(cluster=own.cluster, node=own.node)
        self._drops: Counter[str] = Counter()
        gate = gate or RedactionFilter(lambda reason: self._drops.update((reason,)))
        self._on_happening = on_happening
        self._publish = gate.publish_ranked(publish)
        self._encode = encode
        self._rank_processes = rank_processes
        self._request_bytes = request_bytes
        self._metrics = node_metrics().keys() if metrics is None else node_metrics().keys() & metrics
        #: What the driver and the scheduler said of processes, by pid and what it is.
        self._told: dict[tuple[int, str], NodeEvent] = {}
        self._known: Mapping[int, Identity] = {}
        self._still = StillPoints(own.node)
        self.events_dropped = 0

    def start(self) -> None:
        """Starts the collectors."""
        self._telemetry.start()

    def rename_node(self, node: str) -> None:
        """Gives the node another name in all that is reported from now on."""
        self._own = replace(self._own, node=node)

    def turn(self) -> None:
        """Sends what the collectors saw since the last turn; for ranks that are new, what was told of their processes
        again.
        """
        ranks = self._rank_processes()
        events: list[Event] = []
        points: list[Point] = []
        if ranks != self._known:
            new = {pid for pid, who in ranks.items() if self._known.get(pid) != who}
            self._known = dict(ranks)
            events += [self._event(told) for told in self._told.values() if told.pid in new]
        for seen in self._telemetry.take():
            for happening in seen.collected.happenings:
                if happening.name in _OF_PROCESSES and happening.pid:
                    self._remember(happening)
                if self._on_happening is not None:
                    self._on_happening(happening)
                if happening.name not in _OF_RANKS or happening.pid in ranks:
                    events.append(self._event(happening))
            known = [point for point in seen.collected.points if point.name in self._metrics]
            points += self._still(seen.collector, known)
        self.events_dropped += max(0, len(events) - MAX_EVENTS)
        self._send(events[:MAX_EVENTS], points)

    @property
    def counters(self) -> Mapping[str, int]:
        """Counters for AGENT_HEALTH: failures and drops of the collectors and of this module, by name."""
        return {**self._telemetry.counters, "collectors.events_dropped": self.events_dropped, **self._drops}

    def close(self) -> None:
        """Takes the last looks and sends what they saw."""
        self._telemetry.close()
        self.turn()

    def _remember(self, happening: NodeEvent) -> None:
        said = happening.attributes
        what = said.get("gpu_uuid") or f"{said.get('scheduler')} {said.get('what')}"
        self._told[happening.pid, str(what)] = happening
        while len(self._told) > MAX_REMEMBERED:
            del self._told[next(iter(self._told))]

    def _event(self, happening: NodeEvent) -> Event:
        who = self._known.get(happening.pid) if happening.pid else None
        attributes = dict(happening.attributes)
        if happening.name is EventName.JOB_LOG and not self._tells_stacks:
            attributes = without_stack(attributes)
        if happening.pid:
            attributes.setdefault("pid", happening.pid)
        return Event(
            name=happening.name,
            identity=self._own if who is None else replace(who, node=self._own.node, cluster=self._own.cluster),
            time_ns=happening.time_ns,
            mono_ns=happening.mono_ns,
            attributes=attributes,
        )

    def _send(self, events: list[Event], points: list[Point]) -> None:
        node = self._own.node
        for value in encode_batches(events, self._request_bytes):
            self._publish(TOPIC_BLOCKS, node, value, Priority.RANK_EVENTS)
        for value in encode_batches(events, self._request_bytes, is_copy=True):
            self._publish(TOPIC_LOGS, node, value, Priority.COPIES)
        for value in self._encode(self._own, points, limit_bytes=self._request_bytes):
            self._publish(TOPIC_METRICS, node, value, Priority.PROGRESS)
