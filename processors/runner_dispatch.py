"""Gives records and timers to the operators, takes what they emit, and contains what they raise.

What an operator raises for one key is that key's trouble: its state is set aside, the message goes to the dead-letter
topic with the traceback, one telemetry incident tells of it, and everything else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from ..telemetry.otlp import encode_payloads
from ..telemetry.records import Block, Broken, Finding, Identity, Record
from ..transport.bus import TOPIC_DLQ, TOPIC_FINDINGS, Message
from .doubts import SET_ASIDE, doubt_findings
from .fair_share import FairShare
from .job_owners import JobOwners
from .operator import Operator, Timer
from .runner_containment import Containment, OperatorFailure, failure_of
from .runner_context import RunnerContext
from .runner_letters import dead_letter
from .runner_notices import GivenUp, PendingNotices
from .runner_rows import RunnerRows

MAX_CONTEXTS = 4096
#: Of keys spread over shards some get more than others: a shard keeps so many at least, and so much more than its part.
FEWEST_KEYS, UNEVEN = 64, 4
NOT_ATTEMPTED = "call"
#: Records of a message with the index of who has emitted them; -1: the bus.
Emitted = tuple[int, Record]


class Outputs(Protocol):
    """Where conclusions go."""

    def add(self, record: Record, value: bytes, headers: str = "") -> None:
        """Takes an output, to be handed out once what explains it is durable. headers: a JSON object of texts."""


class Dispatcher:
    """Calls the operators for one runner, in its thread. report: takes one line for what a person should know."""

    def __init__(
        self,
        state: RunnerRows,
        delivery: Outputs,
        owners: JobOwners,
        operators: Sequence[Operator],
        report: Callable[[str], None],
        *,
        shards: int = 1,
    ) -> None:
        """shards: over so many dispatchers the keys are spread by chance, so that each keeps its part of them."""
        self._shards = shards
        self._state, self._delivery, self._owners, self._report = state, delivery, owners, report
        self._operators = tuple(operators)
        self._key_of = tuple(operator.key_of for operator in self._operators)
        self._index_of = {operator.name: index for index, operator in enumerate(self._operators)}
        self._contexts: dict[tuple[int, str], RunnerContext] = {}
        self._keys = [
            FairShare((key, self._owner(each, key)) for key in state.keys_of(each.name)) for each in operators
        ]
        #: Keys that were forgotten as there were too many, in this process.
        self.forgotten = 0
        self._notices = PendingNotices(state)
        self._lettered = 0  # position of the last message that became a dead letter here
        self._is_telling = False
        #: What is known of keys that have failed.
        self.containment = Containment(state, self._notices)
        #: From which the records at hand come; None: from no message.
        self.message: Message | None = None
        state.contain = self._contain_row

    def dispatch(self, first: int, records: Sequence[Emitted]) -> None:
        """Gives records to the operators from index ``first`` on, and what they emit to those after them."""
        if len(records) == 1 and self._dispatch_to_one(first, *records[0]):
            return
        pending: list[dict[str, list[Record]]] = [{} for _ in self._operators]
        known: Identity | None = None
        batches: list[list[Record]] = []
        for emitter, record in records:
            payload = record.payload
            if isinstance(payload, Block) and payload.identity is known:  # a message's blocks go the same way
                for batch in batches:
                    batch.append(record)
                continue
            batches = self._place(emitter, record, first, pending)
            known = payload.identity if isinstance(payload, Block) else None
        for index in range(first, len(self._operators)):
            for key, batch in pending[index].items():
                for record in self._process(index, key, batch):
                    self._place(index, record, index + 1, pending)
        if self._notices.is_any:
            self._report_contained()

    def _dispatch_to_one(self, first: int, emitter: int, record: Record) -> bool:
        """The same where one operator wants the record, as that of most messages; False, and nothing done, else."""
        if emitter >= 0 and not isinstance(record.payload, Finding):
            return False
        keys = [(index, self._key_of[index](record)) for index in range(first, len(self._key_of))]
        wanted = [(index, key) for index, key in keys if key is not None]
        if len(wanted) != 1:
            return False
        ((index, key),) = wanted
        emitted = self._process(index, key, [record])
        if emitted or self._notices.is_any:
            self.dispatch(index + 1, [(index, each) for each in emitted])
        return True

    def fire(self, operator: str, key: str, timer: Timer) -> None:
        """Calls the operator of a timer that is due; nothing for one of another release."""
        index = self._index_of.get(operator)
        if index is None:
            return
        self.message = None
        context = self._context(index, key)
        if self.containment.is_muted(operator, key, "", context.now_ns):
            return
        try:
            self._operators[index].on_timer(timer, context)
        except Exception as error:  # as in _process
            self._contain(index, key, failure_of(operator, key, "", error))
        self.dispatch(index + 1, [(index, record) for record in self._take_emitted(index, context)])

    # --- calls ---
    def _process(self, index: int, key: str, batch: list[Record]) -> list[Record]:
        """What the operator emits."""
        operator, context = self._operators[index], self._context(index, key)
        if self.containment.is_muted(operator.name, key, "", context.now_ns):
            self.containment.dropped += len(batch)
            return []
        if not self._make_room(index, key):
            self.containment.dropped += len(batch)
            return []
        try:
            operator.process(batch, context)
        except Exception as error:  # whatever a record makes it do, MemoryError included, concerns this key alone
            self._contain(index, key, failure_of(operator.name, key, "", error))
        return self._take_emitted(index, context)

    def _place(
        self, emitter: int, record: Record, first: int, pending: list[dict[str, list[Record]]]
    ) -> list[list[Record]]:
        """Put a record into the batch of each operator that wants it, and give these."""
        batches: list[list[Record]] = []
        if emitter >= 0 and not isinstance(record.payload, Finding):
            return batches
        for index in range(first, len(self._key_of)):
            key = self._key_of[index](record)
            if key is not None:
                batch = pending[index].setdefault(key, [])
                batch.append(record)
                batches.append(batch)
        return batches

    def _context(self, index: int, key: str) -> RunnerContext:
        context = self._contexts.get((index, key))
        if context is None:
            if len(self._contexts) >= MAX_CONTEXTS:  # jobs come and go; nothing is kept in here between two calls
                self._contexts.clear()
            name = self._operators[index].name
            context = self._contexts[(index, key)] = RunnerContext(
                self._state, self._owners, self.containment, name, key
            )
        context.now_ns = self._state.position.now_ns
        return context

    def _take_emitted(self, index: int, context: RunnerContext) -> list[Record]:
        """What was emitted, now in the outbox; what was attempted in vain is contained."""
        if context.failures:
            failures, context.failures = context.failures, []
            self._operators[index].let_go(context.key)
            for failure in failures:
                self._note(failure)
        emitted, context.emitted = context.emitted, []
        for emission in emitted:
            self._delivery.add(emission.shown, emission.value)
        return [emission.record for emission in emitted]

    def _make_room(self, index: int, key: str) -> bool:
        """Whether the key is kept: what does not fit makes room for it, or it is one too many."""
        keys, operator = self._keys[index], self._operators[index]
        if key not in keys and len(keys) >= self._most_keys(operator) and operator.contains_itself:
            spared = next((each for each in keys.names_of("") if operator.spare(self._context(index, each))), None)
            if spared is None:
                return False
            self._delete(index, spared)
        owner = self._owner(operator, key)
        if keys.is_newest(key, owner):
            return True
        keys.touch(key, owner)
        if len(keys) > self._most_keys(operator):  # it counts, too: who has most may be who brings it
            self._forget(index, keys.first_to_go())
        return True

    def _most_keys(self, operator: Operator) -> int:
        if self._shards == 1:
            return operator.most_keys
        return min(operator.most_keys, max(FEWEST_KEYS, UNEVEN * operator.most_keys // self._shards))

    def _owner(self, operator: Operator, key: str) -> str:
        return self._owners.owner_of(key) if operator.keys_are_jobs else ""

    def _delete(self, index: int, key: str) -> None:
        """What the operator has spared."""
        operator, names = self._operators[index], self._context(index, key).state.names
        self._count_forgotten(operator)
        self._state.delete_key(operator.name, key)
        self._keys[index].remove(key)
        self._contexts.pop((index, key), None)
        self._state.drop_tables(operator.name, key, names)

    def _count_forgotten(self, operator: Operator) -> None:
        self.forgotten += 1
        if self.forgotten == 1:
            most = self._most_keys(operator)
            self._report(f"more than {most} keys of operator {operator.name}: the idlest are forgotten")

    def _forget(self, index: int, key: str) -> None:
        operator, context = self._operators[index], self._context(index, key)
        self._count_forgotten(operator)
        try:
            operator.forget(context)
        except Exception as error:  # as in _process
            self._contain(index, key, failure_of(operator.name, key, "", error))
        emitted = self._take_emitted(index, context)
        self._keys[index].remove(key)
        self._contexts.pop((index, key), None)
        self._state.drop_tables(operator.name, key, context.state.names)
        self.dispatch(index + 1, [(index, record) for record in emitted])

    # --- trouble ---
    def _contain(self, index: int, key: str, failure: OperatorFailure) -> None:
        operator = self._operators[index]
        if operator.contains_itself:  # what it did not attempt has changed nothing, and the key must never be muted
            failure = replace(failure, part=NOT_ATTEMPTED)
        operator.let_go(key)
        self._context(index, key).emitted.clear()
        if not operator.contains_itself:
            owner = self._owner(operator, key)
            self._state.put_aside(operator.name, key, self._state.position.now_ns, failure.reason, owner)
            self._notices.add_key(GivenUp(operator=operator.name, key=key, reason=failure.reason))
        self._note(failure)

    def _contain_row(self, operator: str, key: str, error: Exception) -> None:
        """A row that was put to be made later could not be made, at a commit."""
        self.message = None
        index = self._index_of.get(operator)
        if index is not None:
            self._contain(index, key, failure_of(operator, key, "", error))

    def _note(self, failure: OperatorFailure) -> None:
        operator = self._operators[self._index_of[failure.operator]]
        where = f"operator {failure.operator}, {failure.part or failure.key!r}"
        job = failure.part.partition("\t")[0] if operator.contains_itself else failure.key
        owner = self._owners.owner_of(job) if operator.contains_itself or operator.keys_are_jobs else ""
        if self.containment.note(failure, self._state.position.now_ns, owner):
            kept = f"the message is kept on {TOPIC_DLQ}" if self.message is not None else "at a timer"
            self._report(f"{where}: {failure.reason}; contained, all else goes on ({kept})\n{failure.traceback}")
        message = self.message
        if message is None or message.position == self._lettered:
            return
        self._lettered = message.position
        broken = Broken(topic=message.topic, reason=f"{where}: {failure.reason}", value=message.value)
        kept_letter, headers = dead_letter(message, broken, failure.traceback)
        stamp_ns = self._state.position.now_ns
        record = Record(topic=TOPIC_DLQ, key=message.key, stamp_ns=stamp_ns, payload=kept_letter)
        self._delivery.add(record, kept_letter.value, headers)

    def _report_contained(self) -> None:
        """A telemetry incident of what was contained; where that fails as well it is not told again."""
        given_up, doubts = self._notices.take()
        position = self._state.position
        if self._is_telling or not position.cluster:
            return
        records: list[Emitted] = [
            (index, record)
            for each in given_up
            if (index := self._index_of.get(each.operator)) is not None
            for record in self._ends_of(index, each.key, each.reason)
        ]
        for finding in doubt_findings(doubts, position.cluster, position.now_ns):
            record = Record(topic=TOPIC_FINDINGS, key=position.cluster, stamp_ns=position.now_ns, payload=finding)
            self._delivery.add(record, encode_payloads([finding]))
            records.append((0, record))
        self._is_telling = True
        try:
            self.dispatch(0, records)
        finally:
            self._is_telling = False

    def _ends_of(self, index: int, key: str, reason: str) -> Iterator[Record]:
        """For whoever keeps what the operator has told of the key: nobody will ever say that it is over."""
        operator, position = self._operators[index], self._state.position
        job, node = (key, "") if operator.keys_are_jobs else ("", key.partition(":")[2])
        books = [keys for each, keys in zip(self._operators, self._keys, strict=True) if each.contains_itself]
        for cluster in dict.fromkeys(cluster for keys in books for cluster in keys):
            finding = Finding(
                identity=Identity(cluster=cluster, job=job, node=node),
                key=f"{SET_ASIDE}/{operator.name}/{key}",
                cleared=True,
                time_ns=position.now_ns,
                body={SET_ASIDE: {"because": reason}},
            )
            yield Record(topic=TOPIC_FINDINGS, key=cluster, stamp_ns=position.now_ns, payload=finding)
