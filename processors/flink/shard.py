"""A shard: some keys of one stage, driven as the embedded engine drives all. Pure; knows no Flink.

What comes is held until everything before it has come (``advance``), then given to the operators in the order of the
bus, timers that are due first. What follows is handed back: outputs for Kafka, and elements for later stages. State is
written before ``advance`` returns, so that a checkpoint finds it whole.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace

from ...telemetry.otlp import decode_logs
from ...telemetry.otlp_encode import encode_payloads
from ...telemetry.records import Broken, Event, Flush, Payload, Record, Samples
from ...transport.bus import TOPIC_DLQ, Message
from ..job.state.micro_batch import HOLD_NS
from ..job_owners import JobOwners
from ..operator import Operator, Timer
from ..runner_dispatch import Dispatcher
from ..runner_letters import dead_letter
from .flush_order import in_order
from .handing_on import HandingOn
from .joined_flushes import CameFlush
from .keyed_rows import KeyedState, ShardRows, named
from .known_groups import KnownGroups
from .samples_codec import read_samples, write_samples
from .stage_elements import (
    CLUSTER_SHARDS,
    ENTITY_SHARDS,
    JOB_SHARDS,
    PHASE_MESSAGE,
    PHASE_TIMER,
    Element,
    ElementSort,
    KafkaOutput,
    Stage,
    StageOutput,
    StreamPlace,
    shard_of,
    unpacked,
)

#: Bounds of a stage's keys hold over so many shards together.
SHARDS_OF = {Stage.JOBS: JOB_SHARDS, Stage.ENTITIES: ENTITY_SHARDS, Stage.CLUSTERS: CLUSTER_SHARDS}
#: Which stage an operator is the first of, by its name.
STAGE_OF = {"job": Stage.JOBS, "entity": Stage.ENTITIES, "cluster": Stage.CLUSTERS}
_MILLISECOND_NS = 1_000_000
Seed = Callable[[], Sequence[Record]]


class Shard:
    """One shard of a stage, over its keyed state. For one thread.

    operators: this stage's own first, then those of later stages, for their keys alone. seed: gives what an earlier
    life has published, asked for once where nothing is kept. report: takes one line for a person.
    """

    def __init__(
        self,
        stage: Stage,
        name: str,
        state: KeyedState,
        operators: Sequence[Operator],
        report: Callable[[str], None],
        seed: Seed | None = None,
    ) -> None:
        self._stage, self._name, self._report = stage, name, report
        self._rows = ShardRows(state)
        self._owners = JobOwners(self._rows.open_table(("runner", "", "owners")), report)
        self._groups = KnownGroups(self._rows.open_table(("runner", "", "groups")))
        own, *later = operators
        self._dispatcher = Dispatcher(
            self._rows,
            self,
            self._owners,
            [own, *(HandingOn(each, self._hand_on_to(STAGE_OF[each.name])) for each in later)],
            report,
            shards=SHARDS_OF[stage],
        )
        self._seed = seed if self._rows.is_new else None
        self._waiting: list[tuple[StreamPlace, str]] = sorted(
            (unpacked(stage, name, packed).place, row) for row, packed in self._rows.waiting.items()
        )
        self._told: dict[tuple[Stage, str, str], str] = {}  # claims that later stages have, by shard and id
        self._at = StreamPlace(stamp_ns=0, phase=0)
        self._out: list[StageOutput] = []
        #: Records that could not be read, and records given to the operators, in this process.
        self.broken = self.records = 0

    # --- what the engine calls ---
    def take(self, element: Element) -> None:
        """Holds an element until ``advance`` reaches it."""
        row = named("waits", *astuple(element.place))
        if row not in self._rows.waiting:
            bisect.insort(self._waiting, (element.place, row))
        self._rows.hold(row, element.packed())

    def advance(self, until_ms: int) -> list[StageOutput]:
        """Processes all up to the end of this millisecond, of which nothing more will come, and writes the state."""
        until_ns = until_ms * _MILLISECOND_NS + _MILLISECOND_NS - 1
        if self._seed is not None:
            self._sow(self._seed())
            self._seed = None
        count = bisect.bisect_left(self._waiting, until_ns + 1, key=lambda each: each[0].stamp_ns)
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        elements = [unpacked(self._stage, self._name, self._rows.waiting[row]) for _, row in ready]
        if any(element.sort is ElementSort.JOINED for element in elements):
            self._process_joined(elements)
        else:
            for element in elements:
                self._process(element)
        for _, row in ready:
            self._rows.let_go(row)
        self._fire_until(until_ns)
        self._rows.flush()
        out, self._out = self._out, []
        return out

    def wake_ms(self) -> int | None:
        """When there is something to do next, in the bus's milliseconds; None: only when something comes."""
        times = [place.stamp_ns for place, _ in self._waiting[:1]]
        if not self._rows.position.silent and (due_ns := self._rows.timers.next_due_ns()) is not None:
            times.append(due_ns)
        return min(times) // _MILLISECOND_NS if times else None

    @property
    def lag_of_state(self) -> tuple[int, int]:
        """How many rows the operators have, and how many elements wait."""
        return self._rows.row_count(), len(self._waiting)

    @property
    def contained(self) -> int:
        """How often an operator has raised in this process."""
        return self._dispatcher.containment.failures

    # --- in ---
    def _process(self, element: Element) -> None:
        position, stamp_ns = self._rows.position, element.place.stamp_ns
        if element.sort is ElementSort.RESUME:
            if position.silent:
                position.silent = False
                self._rows.timers.restart(stamp_ns)
                position.now_ns = max(position.now_ns, stamp_ns)
            return
        self._fire_until(stamp_ns)
        if element.sort is ElementSort.PAUSE:
            position.silent = True
            return
        position.now_ns = max(position.now_ns, stamp_ns)
        position.after += 1
        self._at = element.place
        message = self._message_of(element)
        self._dispatcher.message = message
        self._owners.learn(element.claims)
        records = [(-1, record) for record in self._records_of(element, message)]
        self.records += len(records)
        self._dispatcher.dispatch(0, records)

    def _process_joined(self, elements: Sequence[Element]) -> None:
        """As ``_process``, where some hold flushes of many nodes: those between others, and timers, in one call."""
        run: list[CameFlush] = []
        ends_ns = 0
        for came in in_order(elements, self._groups, self._set_aside_element):
            if run and (isinstance(came, Element) or came.stamp_ns >= ends_ns):
                self._process_run(run)
                run = []
            if isinstance(came, Element):
                self._process(came)
                continue
            if not run:
                self._fire_until(came.stamp_ns)
                due_ns = self._rows.timers.next_due_ns()
                ends_ns = came.stamp_ns + HOLD_NS  # for which the first one sets a timer
                ends_ns = ends_ns if due_ns is None else min(ends_ns, due_ns)
            run.append(came)
        if run:
            self._process_run(run)

    def _process_run(self, run: Sequence[CameFlush]) -> None:
        position, last = self._rows.position, run[-1]
        position.now_ns = max(position.now_ns, last.stamp_ns)
        position.after += len(run)
        self._at = StreamPlace(last.stamp_ns, PHASE_MESSAGE, last.topic, last.partition, last.offset)
        # On which of them an operator fails is not known: its letter says where the last one lies.
        place = last.partition, last.offset
        message = Message(
            topic=last.topic, key="", value=b"", position=position.after, stamp_ns=last.stamp_ns, place=place
        )
        self._dispatcher.message = message
        records = []
        for came in run:
            keyed = self._keyed(came.flush, message)
            if keyed is not None:
                records.append((-1, Record(topic=came.topic, key="", stamp_ns=came.stamp_ns, payload=keyed)))
        self.records += len(records)
        self._dispatcher.dispatch(0, records)

    def _records_of(self, element: Element, message: Message) -> Iterator[Record]:
        for payload in self._payloads_of(element):
            if isinstance(payload, Broken):
                self._set_aside(message, payload)
                continue
            if isinstance(payload, Event) and payload.identity.cluster:
                self._rows.position.cluster = payload.identity.cluster
            keyed = payload if element.sort is ElementSort.CARRIED else self._keyed(payload, message)
            if keyed is not None and element.sort is not ElementSort.CLAIM:
                yield Record(topic=element.topic, key=element.key, stamp_ns=self._rows.position.now_ns, payload=keyed)

    def _keyed(self, payload: Payload, message: Message) -> Payload | None:
        """Under its job's key; None where it is a dead letter."""
        try:
            return self._owners.keyed(payload)
        except Exception as error:  # a record whose owner makes no sense is one dead letter
            reason = f"its owner cannot be told: {type(error).__name__}: {error}"
            self._set_aside(message, Broken(topic=message.topic, reason=reason, value=message.value))
            return None

    def _payloads_of(self, element: Element) -> Sequence[Payload]:
        try:
            if element.sort is ElementSort.SAMPLES:
                return [read_samples(element.value)]
            return decode_logs(element.topic, element.value, with_copies=False, with_flushes=True)
        except Exception as error:  # what an earlier release has written, or memory: it ends one message
            reason = f"decoding failed: {type(error).__name__}: {error}"[:300]
            return [Broken(topic=element.topic, reason=reason, value=element.value)]

    def _sow(self, seeds: Sequence[Record]) -> None:
        self._dispatcher.message = None
        keyed = [replace(record, payload=self._owners.keyed(record.payload)) for record in seeds]
        self._dispatcher.dispatch(0, [(-1, record) for record in keyed])

    def _fire_until(self, until_ns: int) -> None:
        """Timers that are due by then; none while time stands still."""
        position, timers = self._rows.position, self._rows.timers
        while not position.silent and (due_ns := timers.next_due_ns()) is not None and due_ns <= until_ns:
            due_ns, key, name, operator = timers.pop()
            position.now_ns = max(position.now_ns, due_ns)
            self._at = StreamPlace(stamp_ns=position.now_ns, phase=PHASE_TIMER, topic=f"{key}\t{name}")
            self._dispatcher.fire(operator, key, Timer(name, due_ns))

    # --- out ---
    def add(self, record: Record, value: bytes, headers: str = "") -> None:
        """Takes an output of the dispatcher. headers: a JSON object of texts, "" none."""
        texts = json.loads(headers) if headers else {}
        self._out.append(KafkaOutput(topic=record.topic, key=record.key, value=value, headers=texts))

    def _hand_on_to(self, stage: Stage) -> Callable[[Record, str], None]:
        def send(record: Record, key: str) -> None:
            payload = record.payload
            if isinstance(payload, Broken):
                return
            assert not isinstance(payload, Flush), "messages are decoded into blocks here"
            position = self._rows.position
            position.outbox_id += 1
            shard = shard_for(stage, record, key)
            is_samples = isinstance(payload, Samples)
            self._out.append(
                Element(
                    stage=stage,
                    shard=shard,
                    sort=ElementSort.SAMPLES if is_samples else ElementSort.CARRIED,
                    place=replace(
                        self._at,
                        stamp_ns=record.stamp_ns,
                        source=f"{self._stage.value}/{self._name}",
                        index=position.outbox_id,
                    ),
                    topic=record.topic,
                    key=record.key,
                    value=write_samples(payload) if isinstance(payload, Samples) else encode_payloads([payload]),
                    claims={} if isinstance(payload, Samples) else self._new_claims(stage, shard, payload),
                )
            )

        return send

    def _new_claims(self, stage: Stage, shard: str, payload: Payload) -> dict[str, str]:
        """What the later stage has not been told of whose the payload's job is."""
        identity = getattr(payload, "identity", None)
        if identity is None or not (identity.job or identity.run):
            return {}
        claims = self._owners.claims_of(identity)
        news = {name: row for name, row in claims.items() if self._told.get((stage, shard, name)) != row}
        if len(self._told) > 4 * JOB_SHARDS * JOB_SHARDS:
            self._told.clear()  # told twice is no harm
        self._told.update({(stage, shard, name): row for name, row in news.items()})
        return news

    def _message_of(self, element: Element) -> Message:
        return Message(
            topic=element.topic,
            key=element.key,
            value=element.value,
            position=self._rows.position.after,
            stamp_ns=element.place.stamp_ns,
            place=(element.place.partition, element.place.offset),
        )

    def _set_aside_element(self, element: Element, reason: str) -> None:
        self._set_aside(self._message_of(element), Broken(topic=element.topic, reason=reason, value=element.value))

    def _set_aside(self, message: Message, broken: Broken) -> None:
        self.broken += 1
        kept, headers = dead_letter(message, broken)
        self.add(
            Record(topic=TOPIC_DLQ, key=message.key, stamp_ns=self._rows.position.now_ns, payload=kept),
            kept.value,
            headers,
        )


def shard_for(stage: Stage, record: Record, key: str) -> str:
    """The shard of a stage that a record belongs to. key: as the stage's operator files it.

    Samples and events of one node go to the same shard, whatever their key says of the sort of entity.
    """
    if stage is Stage.ENTITIES:
        return shard_of(key.partition(":")[2], ENTITY_SHARDS)
    return shard_of(key, SHARDS_OF[stage])
