"""A message of the bus as payloads: logs and blocks as they are, metrics as far as a rule asks for them.

Metrics of other people's exporters are told in our words (``diagnosis.crosswalk``), one ``Samples`` per entity. Which
node an exporter's host name means is learned from the names that agents have, and of which cluster that is, too: where
agents of one cluster alone are heard, all is of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from weakref import WeakSet

from ..diagnosis.crosswalk.hosts import scraped_host_labels, with_scraped_host
from ..diagnosis.crosswalk.rules import rule_for
from ..diagnosis.crosswalk.translate import crosswalk
from ..diagnosis.crosswalk.translated_page import PageTranslator
from ..telemetry.carried import is_carried, why_not
from ..telemetry.otlp import decode_logs
from ..telemetry.otlp_metrics import MetricReader
from ..telemetry.point_columns import PointColumns
from ..telemetry.records import Block, Broken, Event, Flush, Identity, Payload, Point, Samples
from ..telemetry.speaker_series import SeriesShape, SpeakerSeries
from ..telemetry.topics import TOPIC_METRICS

MAX_NODES = 65_536
#: More than one: then it matters only that there are several.
_MANY_CLUSTERS = 2


class MessageDecoder:
    """Decodes messages of the bus. metrics: names of ours that are wanted. report: takes one line for people."""

    def __init__(
        self, metrics: Collection[str], report: Callable[[str], None] | None = None, *, with_flushes: bool = False
    ) -> None:
        """with_flushes: what came packed stays so (``records.Flush``); else it is blocks."""
        self._metrics = frozenset(metrics)
        self._reader = MetricReader(self._is_wanted, self._metrics.__contains__)
        self._translator = PageTranslator()
        self._report, self._with_flushes = report, with_flushes
        #: Points of other people's exporters that were left out, because nothing says of whom they are.
        self.nameless = 0
        #: Host names and GPU UUIDs in lower case -> the node.
        self._aliases: dict[str, str] = {}
        self._aliases_version = 0
        self._clusters: set[str] = set()
        #: Of series that are all told in our words.
        self._ours: WeakSet[SeriesShape] = WeakSet()
        #: And of those of which none is.
        self._foreign: WeakSet[SeriesShape] = WeakSet()

    def decode(self, topic: str, value: bytes) -> Sequence[Payload]:
        """The payloads of a message: what its topic carries (``telemetry.carried``), of metrics those that are wanted,
        in our words.

        Copies for people are left out: the operators have what they were copied from. Learns the names of nodes.
        """
        if topic != TOPIC_METRICS:
            payloads = decode_logs(topic, value, with_copies=False, with_flushes=self._with_flushes)
            return self._carried_on(topic, value, payloads)
        if not self._metrics:
            return []
        found: list[Payload] = []
        for samples in self._reader.read(topic, value):
            found += [samples] if isinstance(samples, Broken) else self._in_our_words(samples)
        return found

    def _carried_on(self, topic: str, value: bytes, payloads: list[Payload]) -> list[Payload]:
        """Payloads that this topic carries; all others are one broken record."""
        known: Identity | None = None
        kept: list[Payload] = []
        foreign: list[Payload] = []
        for payload in payloads:
            kept.append(payload)
            if isinstance(payload, Block) and payload.identity is known:  # those of a message are of one node
                continue
            if not isinstance(payload, Broken) and not is_carried(topic, payload):
                foreign.append(kept.pop())
            elif isinstance(payload, Block):
                known = payload.identity
                self._learn(payload)
            elif isinstance(payload, Flush | Event):
                self._learn(payload)
        if not foreign:
            return payloads
        more = f", and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        return [*kept, Broken(topic=topic, reason=f"{why_not(topic, foreign[0])}{more}", value=value)]

    def _learn(self, payload: Event | Block | Flush) -> None:
        node = payload.identity.node
        if payload.identity.cluster and len(self._clusters) < _MANY_CLUSTERS:
            self._clusters.add(payload.identity.cluster)
        if node and node.lower() not in self._aliases:
            self._name(node.lower(), node)
        gpu = payload.attributes.get("gpu_uuid") if isinstance(payload, Event) else None
        if node and isinstance(gpu, str):
            self._name(gpu.lower(), node)

    def _name(self, alias: str, node: str) -> None:
        if self._aliases.get(alias) != node and len(self._aliases) < MAX_NODES:
            self._aliases[alias] = node
            self._aliases_version += 1

    def _is_wanted(self, name: str) -> bool:
        if name in self._metrics or name in scraped_host_labels():
            return True
        rule = rule_for(name)
        return rule is not None and rule.metric in self._metrics

    def _leave_out(self, name: str, count: int, samples: Samples) -> None:
        if not self.nameless and self._report is not None:
            where = samples.resource.get("service.instance.id") or samples.resource.get("service.name") or "an exporter"
            self._report(
                f"{name} of {where}: nothing says of which host it is, so it is left out and counted, as are all "
                f"such points; give the target a label (node, instance), or the Collector's resource a host.name"
            )
        self.nameless += count

    def _in_our_words(self, samples: Samples) -> list[Samples]:
        """What agents of ours sent goes through as it is."""
        order, points = samples.order, samples.points
        shape = order.shape if isinstance(order, SpeakerSeries) else None
        if shape is not None and (shape in self._ours or all(name in self._metrics for name in shape.names)):
            self._ours.add(shape)
            return [samples]
        is_foreign = shape is not None and (shape in self._foreign or self._metrics.isdisjoint(shape.names))
        if is_foreign and shape is not None and isinstance(order, SpeakerSeries) and isinstance(points, PointColumns):
            self._foreign.add(shape)
            return self._translated(samples, order, points)
        own = tuple(point for point in points if point.name in self._metrics)
        return [samples] if len(own) == len(points) else self._crossed(samples, own)

    def _translated(self, samples: Samples, order: SpeakerSeries, points: PointColumns) -> list[Samples]:
        """Of a page whose series came before."""
        page = self._translator.page(order, points, samples.resource, self._aliases, self._aliases_version)
        found = []
        for told in page.of(points):
            if not told.entity:
                self._leave_out(points[0].name, len(told.points), samples)
                continue
            who = Identity(cluster=self._cluster_of(samples), node=told.entity)
            found.append(Samples(identity=who, entity=told.kind.value, points=told.points, order=told.order))
        return found

    def _crossed(self, samples: Samples, own: tuple[Point, ...]) -> list[Samples]:
        """Point by point. own: those that are told in our words already."""
        by_entity: dict[tuple[str, str], list[Point]] = {}
        resource = with_scraped_host(samples.resource, samples.points)
        for point in samples.points:
            if point.name in self._metrics:
                continue
            crossed = crosswalk(
                point.name,
                point.attributes,
                resource,
                point.value,
                time_ns=point.time_ns,
                start_ns=point.start_ns,
                aliases=self._aliases,
            )
            if crossed is not None and not crossed.entity_id:
                self._leave_out(point.name, 1, samples)
            elif crossed is not None:
                by_entity.setdefault((crossed.entity_kind.value, crossed.entity_id), []).append(crossed.point)
        found = [Samples(identity=samples.identity, points=own, resource=samples.resource)] if own else []
        cluster = self._cluster_of(samples)
        found += [
            Samples(identity=Identity(cluster=cluster, node=entity), entity=kind, points=tuple(points))
            for (kind, entity), points in by_entity.items()
        ]
        return found

    def _cluster_of(self, samples: Samples) -> str:
        return samples.identity.cluster or (next(iter(self._clusters)) if len(self._clusters) == 1 else "")
