"""What one node of a large job sends: its real agent over two windows of the reference load, and a standstill.

Of a large job everything of a step is told only each k-th time: a window with such a step and one without stand for k
steps. Used by ``cost_sheet``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from whichrank.evaluation.bench.producer_batches import ProducedBatches, Size, Wire
from whichrank.telemetry.attributes import BLOCK_GROUPS
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.packed_flush import PACKED, Packing
from whichrank.telemetry.records import Block, Broken, Flush, Samples
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_CLOCK, TOPIC_LOGS, TOPIC_SPANS
from whichrank.telemetry.whole_steps import whole_steps_every
from whichrank.transport.clock_cuts import HEADER_CUT
from whichrank.transport.cuts import pack_ends
from whichrank.transport.kafka_log import CUT_PERIOD_S
from whichrank.transport.kafka_topics import DEFAULT_PARTITIONS
from whichrank.transport.kafka_writer import HEADER_BY

from .reference_load import STEP_S
from .stepped_node import SteppedNode, step_before_whole

#: Steps before the windows, and of a window: whole reports of metrics and spans.
WARM_UP, WINDOW = 5, 10
HANG_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node's agent over the windows; times are those of its clock (Unix seconds). k: whole steps come so seldom."""

    node: int
    world_size: int
    k: int
    begin_s: float
    whole_s: float
    plain_s: float
    end_s: float
    wire: Wire
    drops: int

    def mean(self, whole: float, plain: float) -> float:
        """Per second, from the sums of the two windows: one with a whole step, of as many as make k steps."""
        return (whole + plain * (self.k - WINDOW) / WINDOW) / (self.k * STEP_S)

    @property
    def windows(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return (self.whole_s, self.plain_s), (self.plain_s, self.end_s)

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """By topic: plain, stored and wire bytes per second."""
        whole, plain = (self.wire.sizes(*window) for window in self.windows)
        return {
            topic: (
                self.mean(a.plain, b.plain),
                self.mean(a.stored, b.stored),
                self.mean(a.wire, b.wire),
            )
            for topic in sorted({*whole, *plain})
            for a, b in [(whole.get(topic, Size()), plain.get(topic, Size()))]
        }

    def member_lists(self) -> float:
        """Stored bytes per second that blocks would not need if they named their groups' members nowhere."""
        found = []
        for window in self.windows:
            whole, less = Wire(), Wire()
            for each in self.wire.between(*window):
                if each.topic == TOPIC_BLOCKS:
                    whole.published.append(written_again(each))
                    less.published.append(written_again(each, members=False))
            found.append(whole.sizes(*window)[TOPIC_BLOCKS].stored - less.sizes(*window)[TOPIC_BLOCKS].stored)
        return self.mean(*found)

    def spans_s(self) -> float:
        whole, plain = (spans_in(self.wire.between(*window)) for window in self.windows)
        return self.mean(whole, plain)


def observe(world_size: int, node: int, guilty: tuple[int, ...] = ()) -> Node:
    """Both windows, and after them a standstill of all."""
    k = whole_steps_every(world_size)
    if k < 2 * WINDOW:
        raise ValueError(
            f"of a job of {world_size} ranks every {k}th step is whole: two windows are {2 * WINDOW} steps"
        )
    first = step_before_whole(world_size, WARM_UP)
    stepped = SteppedNode(
        world_size=world_size,
        node=node,
        first_step=first,
        hang_at=first + WARM_UP + 2 * WINDOW,
        guilty=guilty,
    )
    try:
        times_s = [stepped.clock.wall_s()]
        for steps in (WARM_UP, WINDOW, WINDOW):
            stepped.run(steps)
            times_s.append(stepped.clock.wall_s())
        stepped.run(1)
        stepped.stand(HANG_S)
    finally:
        stepped.close()
    health = stepped.agent.health
    return Node(
        node=node,
        world_size=world_size,
        k=k,
        begin_s=times_s[0],
        whole_s=times_s[1],
        plain_s=times_s[2],
        end_s=times_s[3],
        wire=stepped.wire,
        drops=health.events_lost + health.events_torn + sum(health.drops.values()),
    )


def first_step(world_size: int, node: int) -> Size:
    """Over all topics: what there is, and a first step, which is a whole one."""
    stepped = SteppedNode(world_size=world_size, node=node)
    try:
        stepped.run(1)
    finally:
        stepped.close()
    return sum(stepped.wire.sizes(0.0).values(), Size())


def written_again(each: ProducedBatches, *, members: bool = True) -> ProducedBatches:
    """A message with its groups' definitions, where it has them, with their members or without. What names groups by
    reference stays as it came.
    """
    if packing_of(each) is not Packing.WHOLE:
        return each
    payloads = [
        replace(payload, groups=tuple(replace(group, ranks="") for group in payload.groups))
        if isinstance(payload, Block) and not members
        else payload
        for payload in decode_logs(each.topic, each.value)
        if not isinstance(payload, Broken | Samples | Flush)
    ]
    return replace(each, value=encode_payloads(payloads, packing=Packing.WHOLE))


def packing_of(each: ProducedBatches) -> Packing:
    """How its blocks are written."""
    if PACKED.encode() not in each.value:
        return Packing.NONE
    return Packing.WHOLE if BLOCK_GROUPS.encode() in each.value else Packing.UIDS


def spans_in(published: Iterable[ProducedBatches]) -> int:
    return sum(
        len(scope.spans)
        for each in published
        if each.topic == TOPIC_SPANS
        for part in ExportTraceServiceRequest.FromString(each.value).resource_spans
        for scope in part.scope_spans
    )


def cuts_per_s() -> Size:
    """What ``whichrank.clock`` takes each second at most: it does not grow with the job."""
    ends = {(topic, n): 10**10 + n for topic in (TOPIC_BLOCKS, TOPIC_LOGS) for n in range(DEFAULT_PARTITIONS)}
    cut = Wire(lambda: 0.0)
    headers = f"{HEADER_CUT}{HEADER_BY}process-1".encode()
    cut.publish(TOPIC_CLOCK, "", pack_ends(ends) + headers)
    size = cut.sizes(0.0)[TOPIC_CLOCK]
    times = round(1.0 / CUT_PERIOD_S)
    return Size(messages=times, plain=times * size.plain, stored=times * size.stored, wire=times * size.wire)
