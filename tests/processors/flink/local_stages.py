"""The stages of the Flink job in one process, with dictionaries in place of keyed state: what Flink does, by hand.

Elements are delivered in any order before the time has passed them, as from many partitions; time then passes all
stages in their order, as a watermark does. ``restart`` loses everything but the dictionaries, as a restore does.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from whichrank.processors.entity.rules import load_rules
from whichrank.processors.flink.idleness import IdlenessDetector
from whichrank.processors.flink.intake import Intake
from whichrank.processors.flink.node_range import NodeRange
from whichrank.processors.flink.shard import Shard
from whichrank.processors.flink.stage_elements import (
    Element,
    KafkaOutput,
    Stage,
    StageOutput,
    unpacked,
    wake_of,
    whole_until,
)
from whichrank.processors.flink.stage_operators import stage_operators
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Incident
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_INCIDENTS
from whichrank.transport.bus import Message

IN_ORDER = (Stage.IDLENESS, Stage.RANGES, Stage.JOBS, Stage.ENTITIES, Stage.CLUSTERS)


class DictState(dict[str, bytes]):
    """``KeyedState`` of one key."""

    def put(self, name: str, value: bytes) -> None:
        self[name] = bytes(value)

    def remove(self, name: str) -> None:
        self.pop(name, None)


class LocalStages:
    """``send`` messages, ``beat``, then ``pass_to`` a time; ``outputs`` is what Kafka would have."""

    def __init__(self, *, intakes: int = 3, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._intakes = [Intake(load_rules().wanted, print) for _ in range(intakes)]
        self.states: dict[tuple[Stage, str], DictState] = defaultdict(DictState)
        self._keyed: dict[tuple[Stage, str], Shard | NodeRange | IdlenessDetector] = {}
        self.outputs: list[KafkaOutput] = []
        self._sent: list[Element] = []
        self._offset = 0

    def send(self, topic: str, key: str, value: bytes, stamp_ns: int) -> None:
        self._offset += 1
        message = Message(
            topic=topic, key=key, value=value, position=self._offset, stamp_ns=stamp_ns, place=(0, self._offset)
        )
        self._take_out(self._random.choice(self._intakes).take(message))

    def beat(self, stamp_ns: int) -> None:
        self.send(TOPIC_BLOCKS, "beat", b"", stamp_ns)

    def pass_to(self, until_ms: int) -> None:
        """No message of this millisecond or before will come."""
        self._deliver()
        for stage in IN_ORDER:
            awake = [key for key in self.states if key[0] is stage]
            for key in awake:
                keyed = self._of(key)
                wake_ms = keyed.wake_ms()
                if wake_ms is not None and wake_of(wake_ms) <= until_ms:
                    self._take_out(keyed.advance(whole_until(until_ms)))
            self._deliver()

    def restart(self) -> None:
        self._deliver()
        self._keyed.clear()

    def incidents(self) -> list[Incident]:
        found = []
        for output in self.outputs:
            if output.topic == TOPIC_INCIDENTS:
                found += [p for p in decode_logs(output.topic, output.value) if isinstance(p, Incident)]
        return found

    def _deliver(self) -> None:
        """In any order: what comes from several partitions comes so."""
        sent, self._sent = self._sent, []
        self._random.shuffle(sent)
        for element in sent:
            # As bytes, as between two processes.
            copy = unpacked(element.stage, element.shard, element.packed())
            self._of((element.stage, element.shard)).take(copy)

    def _of(self, key: tuple[Stage, str]) -> Shard | NodeRange | IdlenessDetector:
        keyed = self._keyed.get(key)
        if keyed is None:
            state = self.states[key]
            stage, shard = key
            if stage is Stage.IDLENESS:
                keyed = IdlenessDetector(state)
            elif stage is Stage.RANGES:
                keyed = NodeRange(shard, state, print)
            else:
                keyed = Shard(stage, shard, state, stage_operators(stage), print, lambda: [])
            self._keyed[key] = keyed
        return keyed

    def _take_out(self, out: Iterable[StageOutput]) -> None:
        for each in out:
            if isinstance(each, KafkaOutput):
                self.outputs.append(each)
            else:
                self._sent.append(each)


def documents(incidents: Sequence[Incident]) -> list[dict[str, object]]:
    return [dict(incident.document) for incident in incidents]
