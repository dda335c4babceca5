"""A range of a large job's nodes: joins what they tell within a grain of time into one record. Pure; knows no Flink.

Messages are held until everything before them has come, and decoded once, here: the job's shard gets columns of many
nodes, whose flushes it takes in the order of the bus, each at its own time. What a range hands on ends with a grain
(``stage_elements.whole_until``), as the shard's own time does, so that a record never goes beyond it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from functools import partial

from ...telemetry.otlp import decode_logs
from ...telemetry.records import Broken, Flush
from ...transport.bus import Message
from .intake import letter, where_of
from .joined_flushes import CameFlush, write_joined
from .keyed_rows import KeyedState, named
from .known_groups import ToldGroups
from .stage_elements import (
    PHASE_MESSAGE,
    Element,
    ElementSort,
    KafkaOutput,
    Stage,
    StageOutput,
    StreamPlace,
    unpacked,
    wake_of,
)

_MILLISECOND_NS = 1_000_000
#: Shard of jobs, and the end of a grain.
_Where = tuple[str, int]


class NodeRange:
    """``take`` messages of flushes, ``advance``: what the shards of their jobs get. For one thread.

    name: of its shard. report: takes one line for a person. What is held is a row each of its keyed state.
    """

    def __init__(self, name: str, state: KeyedState, report: Callable[[str], None]) -> None:
        self._name, self._state, self._report = name, state, report
        self._held = {row: unpacked(Stage.RANGES, name, bytes(packed)) for row, packed in state.items()}
        self._waiting = sorted((element.place, row) for row, element in self._held.items())
        self._told = ToldGroups()
        #: Messages that could not be read, in this process.
        self.broken = 0

    def take(self, element: Element) -> None:
        """Holds a message until ``advance`` reaches it."""
        row = named("waits", *astuple(element.place))
        if row not in self._held:
            bisect.insort(self._waiting, (element.place, row))
        self._held[row] = element
        self._state.put(row, element.packed())

    def advance(self, until_ms: int) -> list[StageOutput]:
        """What has come up to the end of this millisecond, joined."""
        until_ns = (until_ms + 1) * _MILLISECOND_NS
        count = bisect.bisect_left(self._waiting, until_ns, key=lambda each: each[0].stamp_ns)
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        out: list[StageOutput] = []
        came: dict[_Where, list[CameFlush]] = {}
        keys: dict[_Where, str] = {}
        for place, row in ready:
            element = self._held.pop(row)
            self._state.remove(row)
            for flush in self._flushes_of(element):
                if isinstance(flush, KafkaOutput):
                    out.append(flush)
                    continue
                where = where_of(flush)[1], wake_of(place.stamp_ns // _MILLISECOND_NS)
                keys.setdefault(where, element.key)
                came.setdefault(where, []).append(
                    CameFlush(
                        stamp_ns=place.stamp_ns,
                        topic=place.topic,
                        partition=place.partition,
                        offset=place.offset,
                        flush=flush,
                    )
                )
        return out + [self._joined(shard, keys[(shard, grain)], those) for (shard, grain), those in came.items()]

    def wake_ms(self) -> int | None:
        """When there is something to do next, in the bus's milliseconds; None: only when something comes."""
        return self._waiting[0][0].stamp_ns // _MILLISECOND_NS if self._waiting else None

    def _flushes_of(self, element: Element) -> Iterator[Flush | KafkaOutput]:
        """Or letters: of what an earlier release has written, or where memory ends."""
        message = Message(
            topic=element.topic,
            key=element.key,
            value=element.value,
            position=element.place.offset,
            stamp_ns=element.place.stamp_ns,
            place=(element.place.partition, element.place.offset),
        )
        try:
            payloads = decode_logs(element.topic, element.value, with_copies=False, with_flushes=True)
        except Exception as error:  # it ends one message
            reason = f"decoding failed: {type(error).__name__}: {error}"[:300]
            payloads = [Broken(topic=element.topic, reason=reason, value=element.value)]
        for payload in payloads:
            if isinstance(payload, Flush):
                yield payload
            elif isinstance(payload, Broken):
                self.broken += 1
                self._report(f"range {self._name}: {payload.reason}")
                yield letter(message, payload)

    def _joined(self, shard: str, key: str, came: Sequence[CameFlush]) -> Element:
        first = came[0]
        place = StreamPlace(
            first.stamp_ns, PHASE_MESSAGE, first.topic, first.partition, first.offset, f"ranges/{self._name}"
        )
        return Element(
            stage=Stage.JOBS,
            shard=shard,
            sort=ElementSort.JOINED,
            place=place,
            topic=first.topic,
            key=key,
            value=write_joined(came, partial(self._told.is_known, shard)),
        )
