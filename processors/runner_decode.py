"""A message of the bus as payloads: logs and blocks as they are, metrics as far as a rule asks for them.

Metrics of other people's exporters are told in our words (``diagnosis.crosswalk``), one ``Samples`` per entity. Which
node an exporter's host name means is learned from the names that agents have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..diagnosis.crosswalk.rules import rule_for
from ..diagnosis.crosswalk.translate import crosswalk
from ..telemetry.otlp import decode_logs
from ..telemetry.otlp_metrics import decode_metrics
from ..telemetry.records import Block, Broken, Event, Identity, Payload, Point, Samples
from ..telemetry.topics import TOPIC_METRICS

MAX_NODES = 65_536


class MessageDecoder:
    """``metrics``: names of ours that are wanted. Never raises."""

    def __init__(self, metrics: Collection[str]) -> None:
        self._metrics = frozenset(metrics)
        #: Host names and GPU UUIDs in lower case -> the node.
        self._aliases: dict[str, str] = {}

    def decode(self, topic: str, value: bytes) -> Sequence[Payload]:
        """Copies for people are left out: the operators have what they were copied from."""
        if topic != TOPIC_METRICS:
            payloads = decode_logs(topic, value, with_copies=False)
            for payload in payloads:
                if isinstance(payload, Event | Block):
                    self._learn(payload)
            return payloads
        if not self._metrics:
            return []
        found: list[Payload] = []
        for samples in decode_metrics(topic, value, self._is_wanted):
            found += [samples] if isinstance(samples, Broken) else self._in_our_words(samples)
        return found

    def _learn(self, payload: Event | Block) -> None:
        node = payload.identity.node
        if node and node.lower() not in self._aliases and len(self._aliases) < MAX_NODES:
            self._aliases[node.lower()] = node
        gpu = payload.attributes.get("gpu_uuid") if isinstance(payload, Event) else None
        if node and isinstance(gpu, str) and len(self._aliases) < MAX_NODES:
            self._aliases[gpu.lower()] = node

    def _is_wanted(self, name: str) -> bool:
        if name in self._metrics:
            return True
        rule = rule_for(name)
        return rule is not None and rule.metric in self._metrics

    def _in_our_words(self, samples: Samples) -> list[Samples]:
        """What agents of ours sent goes through as it is."""
        own = tuple(point for point in samples.points if point.name in self._metrics)
        by_entity: dict[tuple[str, str], list[Point]] = {}
        for point in samples.points:
            crossed = None
            if point.name not in self._metrics:
                crossed = crosswalk(
                    point.name,
                    point.attributes,
                    samples.resource,
                    point.value,
                    time_ns=point.time_ns,
                    start_ns=point.start_ns,
                    aliases=self._aliases,
                )
            if crossed is not None:
                by_entity.setdefault((crossed.entity_kind.value, crossed.entity_id), []).append(crossed.point)
        found = [Samples(identity=samples.identity, points=own, resource=samples.resource)] if own else []
        cluster = samples.identity.cluster
        found += [
            Samples(identity=Identity(cluster=cluster, node=entity), entity=kind, points=tuple(points))
            for (kind, entity), points in by_entity.items()
        ]
        return found
