"""The stages of the Flink job driven by hand, each with what it costs: the same functions, without Flink.

Elements travel as bytes, state is a dictionary of bytes per shard, and time passes as often as beats let it. What Flink
adds (its network, its state backend, the way between Java and Python) is measured by ``flink_throughput``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from whichrank.processors.entity.rules import load_rules
from whichrank.processors.flink.idleness import IdlenessDetector
from whichrank.processors.flink.intake import Intake
from whichrank.processors.flink.node_range import NodeRange
from whichrank.processors.flink.shard import Shard
from whichrank.processors.flink.stage_elements import Element, Stage, StageOutput, unpacked, wake_of, whole_until
from whichrank.processors.flink.stage_operators import stage_operators
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.transport.bus import Message

#: A beat so often (``job_graph.BEATS_PER_S``); a shard works at most each ``stage_elements.GRAIN_MS``.
BEAT_MS = 250
_IN_ORDER = (Stage.IDLENESS, Stage.RANGES, Stage.JOBS, Stage.ENTITIES, Stage.CLUSTERS)
INTAKE = "intake"


@dataclass(slots=True)
class StageCost:
    """cpu_s: in its functions. taken, taken_bytes: messages or elements that it got. written_bytes: of state."""

    cpu_s: float = 0.0
    taken: int = 0
    taken_bytes: int = 0
    written_bytes: int = 0
    #: By shard, of a stage that has shards: the part of cpu_s.
    shard_cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class CountingState(dict[str, bytes]):
    """``KeyedState`` of one key, and how many bytes were put."""

    def __init__(self) -> None:
        super().__init__()
        self.written_bytes = 0

    def put(self, name: str, value: bytes) -> None:
        self[name] = bytes(value)
        self.written_bytes += len(name) + len(value)

    def remove(self, name: str) -> None:
        self.pop(name, None)

    @property
    def kept_bytes(self) -> int:
        return sum(len(name) + len(value) for name, value in self.items())


class CostedStages:
    """``send`` messages in order, ``pass_to`` a time; ``costs`` by stage since ``begin_counting``."""

    def __init__(self) -> None:
        self._intake = Intake(load_rules().wanted, print)
        self.states: dict[tuple[Stage, str], CountingState] = defaultdict(CountingState)
        self._keyed: dict[tuple[Stage, str], Shard | NodeRange | IdlenessDetector] = {}
        self._sent: list[Element] = []
        self._offset = 0
        self.costs: dict[str, StageCost] = {}
        self.begin_counting()

    def begin_counting(self) -> None:
        """Forgets what was counted."""
        self.costs = {name: StageCost() for name in (INTAKE, *(stage.value for stage in _IN_ORDER))}
        for state in self.states.values():
            state.written_bytes = 0

    def send(self, topic: str, key: str, value: bytes, stamp_ms: int) -> None:
        """One message of the bus."""
        self._offset += 1
        place = (0, self._offset)
        message = Message(
            topic=topic, key=key, value=value, position=self._offset, stamp_ns=stamp_ms * 1_000_000, place=place
        )
        cost = self.costs[INTAKE]
        began_s = time.process_time()
        self._hold(self._intake.take(message))
        cost.cpu_s += time.process_time() - began_s
        cost.taken += 1
        cost.taken_bytes += len(value)

    def beat(self, stamp_ms: int) -> None:
        """An empty message, as the job writes them."""
        self.send(TOPIC_BLOCKS, "beat", b"", stamp_ms)

    def pass_to(self, until_ms: int) -> None:
        """All up to the end of this millisecond is here: every stage works, in order."""
        for stage in _IN_ORDER:
            cost = self.costs[stage.value]
            began_s = time.process_time()
            self._deliver(stage)
            for key in [key for key in self.states if key[0] is stage]:
                keyed, shard_began_s = self._of(key), time.process_time()
                wake_ms = keyed.wake_ms()
                if wake_ms is not None and wake_of(wake_ms) <= until_ms:
                    self._hold(keyed.advance(whole_until(until_ms)))
                cost.shard_cpu_s[key[1]] += time.process_time() - shard_began_s
            cost.cpu_s += time.process_time() - began_s

    def close_counting(self) -> None:
        """Adds what was written into state to the costs."""
        for (stage, _), state in self.states.items():
            self.costs[stage.value].written_bytes += state.written_bytes

    def kept_bytes(self, stage: Stage) -> int:
        """State of a stage."""
        return sum(state.kept_bytes for (of, _), state in self.states.items() if of is stage)

    def _hold(self, out: Iterable[StageOutput]) -> None:
        self._sent += [each for each in out if isinstance(each, Element)]

    def _deliver(self, stage: Stage) -> None:
        mine = [each for each in self._sent if each.stage is stage]
        self._sent = [each for each in self._sent if each.stage is not stage]
        cost = self.costs[stage.value]
        for element in mine:
            began_s = time.process_time()
            packed = element.packed()
            self._of((stage, element.shard)).take(unpacked(stage, element.shard, packed))
            cost.shard_cpu_s[element.shard] += time.process_time() - began_s
            cost.taken += 1
            cost.taken_bytes += len(packed)

    def _of(self, key: tuple[Stage, str]) -> Shard | NodeRange | IdlenessDetector:
        keyed = self._keyed.get(key)
        if keyed is None:
            state, (stage, shard) = self.states[key], key
            if stage is Stage.IDLENESS:
                keyed = IdlenessDetector(state)
            elif stage is Stage.RANGES:
                keyed = NodeRange(shard, state, print)
            else:
                keyed = Shard(stage, shard, state, stage_operators(stage), print, lambda: [])
            self._keyed[key] = keyed
        return keyed


Told = tuple[int, str, str, bytes]


def paced(messages: Iterable[Told]) -> Iterator[Sequence[Told]]:
    """Messages (ms, topic, key, value) in order, in groups between two beats."""
    group: list[Told] = []
    until_ms = 0
    for message in messages:
        until_ms = until_ms or message[0] + BEAT_MS
        while message[0] > until_ms:
            yield group
            group, until_ms = [], until_ms + BEAT_MS
        group.append(message)
    yield group
