"""The stages as Flink's functions: state, timers and side outputs; all that is judged is in ``shard`` and ``intake``.

Time is Flink's event time, made of the brokers' stamps: a watermark says that everything up to it has come from every
partition (``beats``). A function that is restored has no time until everything before has been read again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence

from pyflink.common import Row, Types
from pyflink.datastream import FlatMapFunction, KeyedProcessFunction, OutputTag, ProcessFunction, RuntimeContext
from pyflink.datastream.state import MapState, MapStateDescriptor

from ...telemetry.records import Record
from ...telemetry.vocabulary import Kind
from ...transport.bus import Message
from ...transport.kafka import make_client
from ...transport.kafka_settings import KafkaSettings
from ..cluster.operator import ClusterOperator
from ..runner_seeds import published_incidents
from .beats import BeatWriter
from .idleness import IdlenessDetector
from .intake import Intake
from .node_range import NodeRange
from .shard import Shard, shard_for
from .stage_elements import Element, KafkaOutput, Stage, StageOutput, unpacked, wake_of, whole_until
from .stage_operators import stage_operators

_log = logging.getLogger("whichrank.flink")
_BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
#: Of state: bytes as they are would be taken apart, one object per byte (PyFlink 2.3, thread mode).
_KEPT = Types.PICKLED_BYTE_ARRAY()
#: Shard and element, between stages.
ELEMENT_TYPE = Types.TUPLE([Types.STRING(), _BYTES])
#: Topic, headers, key and value, for Kafka.
OUTPUT_TYPE = Types.ROW_NAMED(
    ["topic", "headers", "k", "v"], [Types.STRING(), Types.MAP(Types.STRING(), _BYTES), _BYTES, _BYTES]
)
TAGS = {stage: OutputTag(f"to-{stage.value}", ELEMENT_TYPE) for stage in Stage}
#: A watermark beyond this is Flink's word for "nothing more will ever come".
_FOREVER_MS = 1 << 61

Keyed = Shard | NodeRange | IdlenessDetector


class MapRows:
    """``KeyedState`` over Flink's state of the key at hand."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def items(self) -> Iterable[tuple[str, bytes]]:
        """All that is kept of the key at hand."""
        return list(self._state.items())

    def put(self, name: str, value: bytes) -> None:
        """Sets one."""
        self._state.put(name, value)

    def remove(self, name: str) -> None:
        """Deletes one."""
        self._state.remove(name)


class IntakeFunction(ProcessFunction):  # type: ignore[misc]
    """Stage one. prefix: of topics. metrics: names that are wanted."""

    def __init__(self, prefix: str, metrics: Collection[str]) -> None:
        self._prefix, self._metrics = prefix, frozenset(metrics)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called where it runs, before anything comes."""
        self._intake = Intake(self._metrics, _log.warning)

    def process_element(self, value: Row, ctx: ProcessFunction.Context) -> Iterator[object]:
        """A row of ``kafka_tables.INPUT_QUERY``."""
        topic, partition, offset, stamp_ms, key, body, _ = value
        message = Message(
            topic=topic.removeprefix(self._prefix),
            key=bytes(key or b"").decode("utf-8", "replace"),
            value=bytes(body or b""),
            position=offset,
            stamp_ns=stamp_ms * 1_000_000,
            place=(partition, offset),
        )
        yield from _emitted(self._intake.take(message), self._prefix)


class StageFunction(KeyedProcessFunction):  # type: ignore[misc]
    """A stage of shards or ranges, or the detector that keeps time. disabled: kinds of incidents not to be opened."""

    def __init__(self, stage: Stage, settings: KafkaSettings, disabled: Collection[Kind] = ()) -> None:
        self._stage, self._settings, self._disabled = stage, settings, frozenset(disabled)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called where it runs, before anything comes."""
        self._rows = MapRows(runtime_context.get_map_state(MapStateDescriptor("rows", Types.STRING(), _KEPT)))
        self._shards: dict[str, Keyed] = {}
        self._published: list[Record] | None = None
        self._wakes_ms: dict[str, int] = {}

    def process_element(self, value: tuple[str, bytes], ctx: KeyedProcessFunction.Context) -> Iterator[object]:
        """An element for a shard: it is held until its time has come."""
        name, packed = value
        shard = self._shard(name)
        shard.take(unpacked(self._stage, name, bytes(packed)))
        self._wake(name, shard, ctx.timer_service())
        yield from ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[object]:
        """The time of a shard has come: everything up to the watermark is here."""
        name = ctx.get_current_key()
        shard = self._shard(name)
        self._wakes_ms.pop(name, None)
        service = ctx.timer_service()
        watermark_ms = service.current_watermark()
        wake_ms = shard.wake_ms()
        until_ms = whole_until(watermark_ms)
        if wake_ms is not None and wake_ms <= until_ms < _FOREVER_MS:
            yield from _emitted(shard.advance(until_ms), self._settings.topic_prefix)
        self._wake(name, shard, service)

    def _shard(self, name: str) -> Keyed:
        found = self._shards.get(name)
        if found is None:
            found = self._shards[name] = self._made(name)
        return found

    def _made(self, name: str) -> Keyed:
        if self._stage is Stage.IDLENESS:
            return IdlenessDetector(self._rows)
        if self._stage is Stage.RANGES:
            return NodeRange(name, self._rows, _log.warning)
        operators = stage_operators(self._stage, self._disabled)
        seed = (lambda: self._seeds(name)) if self._stage is Stage.CLUSTERS else None
        return Shard(self._stage, name, self._rows, operators, _log.warning, seed)

    def _seeds(self, name: str) -> list[Record]:
        """Of the incidents that were published those of this shard."""
        if self._published is None:
            self._published = published_incidents(make_client(self._settings))
        key_of = ClusterOperator().key_of
        return [
            record
            for record in self._published
            if (key := key_of(record)) is not None and shard_for(Stage.CLUSTERS, record, key) == name
        ]

    def _wake(self, name: str, shard: Keyed, service: object) -> None:
        wake_ms = shard.wake_ms()
        if wake_ms is None or wake_ms >= _FOREVER_MS:
            return
        wake_ms = wake_of(wake_ms)
        known_ms = self._wakes_ms.get(name)
        if known_ms is None or wake_ms < known_ms:
            self._wakes_ms[name] = wake_ms
            service.register_event_time_timer(wake_ms)  # type: ignore[attr-defined]


class BeatFunction(FlatMapFunction):  # type: ignore[misc]
    """Writes a beat for each row that comes, and hands on nothing."""

    def __init__(self, settings: KafkaSettings, topics: Sequence[str]) -> None:
        self._settings, self._topics = settings, tuple(topics)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called where it runs, before anything comes."""
        self._writer = BeatWriter(make_client(self._settings), self._topics, _log.warning)

    def flat_map(self, value: Row) -> Iterator[Row]:
        """A row of the source of beats."""
        self._writer.beat()
        yield from ()

    def close(self) -> None:
        """Called at the end."""
        self._writer.close()


def _emitted(out: Iterable[StageOutput], prefix: str) -> Iterator[object]:
    """For Flink: outputs as rows, elements to the side of their stage."""
    for each in out:
        if isinstance(each, Element):
            yield TAGS[each.stage], (each.shard, each.packed())
        elif isinstance(each, KafkaOutput):
            headers = {name: text.encode("utf-8", "replace") for name, text in each.headers.items()}
            yield Row(prefix + each.topic, headers, each.key.encode("utf-8", "replace"), each.value)
