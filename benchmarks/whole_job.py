"""A whole large job for the service that judges: what one node's agent sent (``stepped_node``), as every node's.

Each node has ranks, names, launch and groups of its own; operators, runner, state on disk and what is told to people
are those of ``whichrank process``. In place of Kafka stands a list: what its client costs is in ``kafka_throughput``.
Counted is CPU time of this process from messages to what is published. Used by ``cost_sheet``.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from whichrank.agents.reduction.group_identity import group_uid
from whichrank.commands.services.process import INPUTS
from whichrank.commands.support.gc_tuning import search_seldom
from whichrank.evaluation.bench.producer_batches import ProducedBatches, Wire
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.commit_pace import LEAST_S, CommitPace
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.observability_export.processor_export import PipelineCounts, ProcessorExporter
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.packed_flush import Packing, is_reference, list_referred, uid_of_list
from whichrank.telemetry.records import Block, Event, Group, Identity, Incident, Record
from whichrank.telemetry.topics import TOPIC_LOGS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import Message, Output

from .node_cost import packing_of
from .stepped_node import JOB, RANKS_PER_NODE, node_name

#: Nodes send at their own moments of so long a time.
_SPREAD_S = 0.5
_SECOND_NS = 1_000_000_000
#: The load is made ready, outside of what is counted, and handed over for so long a time at once.
_AT_ONCE_S = LEAST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a node sent on the topics that the judge reads, decoded: when, topic, payloads. node: which one it was."""

    node: int
    #: Metrics stay as they came: the judge leaves out what no rule asks for.
    messages: tuple[tuple[float, str, tuple[Block | Event, ...] | bytes, Packing], ...]

    @classmethod
    def of(cls, node: int, published: Sequence[ProducedBatches]) -> Sent:
        known: dict[str, Group] = {}
        lists: dict[str, tuple[Group, ...]] = {}
        return cls(
            node=node,
            messages=tuple(
                (
                    each.at_s,
                    each.topic,
                    each.value if each.topic == TOPIC_METRICS else tuple(_decoded(each, known, lists)),
                    packing_of(each),
                )
                for each in published
                if each.topic in INPUTS
            ),
        )


def _decoded(
    each: ProducedBatches, known: dict[str, Group], lists: dict[str, tuple[Group, ...]]
) -> Iterator[Block | Event]:
    """known, lists: groups, and lists of them, by their uids, of which some messages tell nothing else."""
    for payload in decode_logs(each.topic, each.value):
        if not isinstance(payload, Block | Event):
            raise ValueError(f"an agent sent what cannot be read: {payload}")
        if isinstance(payload, Block):
            known |= {group.uid: group for group in payload.groups if not is_reference(group)}
            groups = lists.get(list_referred(payload.groups)) or tuple(known[group.uid] for group in payload.groups)
            lists[uid_of_list(groups)] = groups
            payload = replace(payload, groups=groups)
        yield payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a time of the load: CPU seconds, seconds of load, messages and their bytes before compression."""

    cpu_s: float = 0.0
    load_s: float = 0.0
    messages: int = 0
    plain: int = 0


class WholeJob:
    """``feed`` what comes up to a time. What the service publishes is in ``wire``."""

    def __init__(self, folder: Path, sound: Sent, nodes: int, odd: Sequence[Sent] = ()) -> None:
        """odd: nodes that sent something else than what all others did as ``sound``."""
        self._state = folder / "state.sqlite"
        self._feed = _Feed()
        self.wire = self._feed.wire
        self.incidents: list[Mapping[str, Any]] = []
        own = {sent.node: sent for sent in odd}
        plan = [
            (at_s + _SPREAD_S * node / nodes, node, sent.node, topic, payloads, packing)
            for node in range(nodes)
            for sent in [own.get(node, sound)]
            for at_s, topic, payloads, packing in sent.messages
        ]
        self._plan = deque(sorted(plan, key=lambda item: item[0]))
        self._feed.ns = int(self._plan[0][0] * _SECOND_NS)
        self._people = ProcessorExporter(
            cluster="cluster-1", instance="process-1", node="service-1", started_ns=self._feed.ns
        )
        search_seldom()  # as the service does
        self._runner = EmbeddedRunner(
            self._feed,
            self._state,
            [JobOperator(listens=True), EntityOperator(), ClusterOperator()],
            self._deliver,
            live=True,
            input_topics=INPUTS,
            metrics=load_rules().wanted,
            on_input=lambda record: self._people.see(record.payload, record.stamp_ns),
            pace=CommitPace(clock_s=self._feed.wire_s),  # the load passes faster than in life
        )

    def feed(self, until_s: float) -> Cost:
        """All that nodes send before ``until_s``."""
        begin_s = now_s = self._feed.wire_s()
        cpu_s, messages, plain = 0.0, 0, 0
        while now_s < until_s:
            now_s = min(now_s + _AT_ONCE_S, until_s)
            ready = []
            while self._plan and self._plan[0][0] < now_s:
                at_s, node, like, topic, payloads, packing = self._plan.popleft()
                if isinstance(payloads, bytes):
                    ready.append((at_s, topic, payloads))
                    continue
                told = [as_node(payload, like, node) for payload in payloads]
                ready.append((at_s, topic, encode_payloads(told, is_copy=topic == TOPIC_LOGS, packing=packing)))
            for at_s, topic, value in ready:
                self._feed.put(int(at_s * _SECOND_NS), topic, value)
                messages, plain = messages + 1, plain + len(value)
            self._feed.ns = max(self._feed.ns, int(now_s * _SECOND_NS))
            cpu_s += self._turn()
        return Cost(cpu_s=cpu_s, load_s=self._feed.wire_s() - begin_s, messages=messages, plain=plain)

    def close(self) -> None:
        self._runner.close()

    @property
    def state_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._state.parent.glob(f"{self._state.name}*"))

    @property
    def state_rows(self) -> int:
        return self._runner.state_rows

    @staticmethod
    def memory_bytes() -> int:
        """The most that this process has held."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _turn(self) -> float:
        began_s = time.process_time()
        self._runner.drain()
        for told in self._people.take(self._feed.ns, lambda: PipelineCounts(records_in=self._runner.records)):
            self.wire.publish(told.topic, told.key, told.value)
        return time.process_time() - began_s

    def _deliver(self, record: Record) -> None:
        if isinstance(record.payload, Incident):
            self.incidents.append(record.payload.document)
            self._people.incident(read_incident(record.payload.document), record.stamp_ns, self._feed.ns)


@dataclass(slots=True)
class _Feed:
    """``Bus`` in memory, by the time of what is put into it."""

    ns: int = 0
    position: int = 0
    waiting: deque[Message] = field(default_factory=deque)
    wire: Wire = field(init=False)
    reads_outputs: bool = False
    identity: str = "whole-job"

    def __post_init__(self) -> None:
        self.wire = Wire(self.wire_s)

    def wire_s(self) -> float:
        return self.ns / _SECOND_NS

    @property
    def last_position(self) -> int:
        return self.position

    def put(self, stamp_ns: int, topic: str, value: bytes) -> None:
        self.ns = max(self.ns, stamp_ns)
        self._add(topic, JOB, value)

    def append(self, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> int:
        self.wire.publish(topic, key, value)
        return self._add(topic, key, value)

    def read(self, after: int, limit: int) -> Sequence[Message]:
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    def publish(self, outputs: Sequence[Output], until: int) -> None:
        for output in outputs:
            self.wire.publish(output.topic, output.key, output.value)

    def has_given(self, position: int) -> bool:
        return not self.waiting

    def caught_up(self) -> bool:
        return not self.waiting

    def now_ns(self) -> int:
        return self.ns

    def close(self) -> None: ...

    def _add(self, topic: str, key: str, value: bytes) -> int:
        self.position += 1
        self.waiting.append(Message(topic=topic, key=key, value=value, position=self.position, stamp_ns=self.ns))
        return self.position


# --- one node as another ----------------------------------------------------------------------------------------------
def as_node(payload: Block | Event, like: int, node: int) -> Block | Event:
    """What the agent of node ``like`` sent, as that of ``node`` would have."""
    if like == node:
        return payload
    shift = (node - like) * RANKS_PER_NODE
    identity = _identity(payload.identity, node, shift)
    if isinstance(payload, Event):
        attributes = dict(payload.attributes)
        if payload.name is EventName.GROUP_DEFINED:
            group = _group(Group(**attributes), like, node)
            attributes |= {"uid": group.uid, "ranks": group.ranks}
        if "attempt_words" in attributes:
            words = (text.split(" ", 1)[1] for text in attributes["attempt_words"])
            attributes["attempt_words"] = tuple(f"{identity.attempt} {word}" for word in words)
        return replace(payload, identity=identity, attributes=attributes)
    rows: np.ndarray = payload.rows.copy()
    rows["rank"] = (rows["rank"].astype(np.int64) + shift).astype(np.uint32)
    groups = tuple(_group(group, like, node) for group in payload.groups)
    return replace(payload, identity=identity, rows=rows, groups=groups)


def _identity(identity: Identity, node: int, shift: int) -> Identity:
    rank = identity.rank if identity.rank < 0 else identity.rank + shift
    attempt = f"{identity.attempt[:-5]}{node:05d}"
    return replace(identity, node=node_name(node), attempt=attempt, rank=rank)


def _group(group: Group, like: int, node: int) -> Group:
    """The node's own group is another one on each; the others are the same on all."""
    first = like * RANKS_PER_NODE
    if group.ranks != f"{first}-{first + RANKS_PER_NODE - 1}":
        return group
    first = node * RANKS_PER_NODE
    ranks = f"{first}-{first + RANKS_PER_NODE - 1}"
    return replace(group, uid=group_uid(group.name, ranks, 0), ranks=ranks)
