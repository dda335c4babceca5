"""The runner: reads the bus, calls the operators, keeps their state, delivers what they emit.

Runs in the thread of whoever calls ``drain``. Each message becomes at most one ``process`` call per operator and key,
so what an operator sees does not depend on when the bus was polled: a replay calls it with exactly the same batches
and timers as the live run did. Time is the bus's: stamps of messages and of the ticks that a caught-up live runner
appends. State, timers, position and outbox are committed together; what was emitted is delivered after that commit.
A standby does the same and delivers nothing: it drops from its outbox what marks on the bus say is published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from ..telemetry.otlp import decode_logs, encode_payloads
from ..telemetry.records import Block, Broken, Event, Finding, Identity, Payload, Record, Samples
from ..telemetry.topics import KEY_OF_PEOPLE
from ..telemetry.vocabulary import EventName
from ..transport.bus import (
    HEADER_PUBLISHED,
    TOPIC_BLOCKS,
    TOPIC_CLOCK,
    TOPIC_DLQ,
    TOPIC_FINDINGS,
    Bus,
    Message,
)
from .commit_pace import CommitPace
from .job_owners import JobOwners
from .operator import Operator, Timer
from .runner_clockwork import BEAT_NS, SILENT_BEATS, Clockwork
from .runner_context import RunnerContext, destination_of
from .runner_decode import MessageDecoder
from .runner_delivery import OUTPUT_TOPICS, READ_LIMIT, Delivery
from .runner_letters import dead_letter
from .runner_state import RunnerState

_log = logging.getLogger(__name__)

MAX_CONTEXTS = 4096
INPUT_TOPICS = frozenset({TOPIC_BLOCKS})
#: A longer step between two stamps means that nobody kept time: neither input nor a caught-up runner.
GAP_NS = (SILENT_BEATS + 1) * BEAT_NS


class Mode(Enum):
    REPLAY = "replay"  # reads, and hands out what follows; the bus stays as it is
    LIVE = "live"  # keeps time and publishes
    STANDBY = "standby"  # follows a live one, hands nothing out
    SHADOW = "shadow"  # hands out, keeps time where nobody else does, publishes nothing


class EmbeddedRunner:
    """Drives operators over a bus in one process."""

    def __init__(
        self,
        bus: Bus,
        state_path: Path | None,
        operators: Sequence[Operator],
        on_output: Callable[[Record], None],
        live: bool,
        start_after: int = 0,
        *,
        input_topics: Collection[str] = INPUT_TOPICS,
        on_input: Callable[[Record], None] | None = None,
        pace: CommitPace | None = None,
        report: Callable[[str], None] | None = None,
        metrics: Collection[str] = (),
    ) -> None:
        """Begin after the position kept in ``state_path``, or after ``start_after`` without a state.

        state_path: None keeps the state in memory only.
        on_output: gets each finding, incident, request and unreadable record after the commit that explains it; after a
            crash possibly again (see ``runner_outputs.OncePerRevision``). What it raises comes out of ``drain``.
        on_input: sees each record before the operators do, after a crash possibly again. It must not raise.
        pace: of commits, where not as usual.
        live: append ticks, outputs and marks to the bus; False for a replay, which only reads. See also ``lead`` and
            ``follow``.
        report: takes one line for what a person should know; default is a warning in the log.
        metrics: names of those that operators ask for; all others in the messages of a topic of metrics are left out.
        Raises OSError if another process uses the state file.
        """
        self._bus = bus
        self._operators = tuple(operators)
        self._key_of = tuple(operator.key_of for operator in self._operators)
        self._index_of = {operator.name: index for index, operator in enumerate(self._operators)}
        self._on_input = on_input
        self._mode = Mode.LIVE if live else Mode.REPLAY
        self._keeps_time = live
        self._input_topics = frozenset(input_topics)
        self._pace = pace if pace is not None else CommitPace()
        self._report = report if report is not None else _log.warning
        self._decoder = MessageDecoder(metrics, self._report)
        self._state = RunnerState(state_path, bus=bus.identity, start_after=start_after, report=self._report)
        self._owners = JobOwners(self._state.open_table(("runner", "", "owners")))
        if live and bus.reads_outputs and self._state.position.after > bus.last_position:
            # The disk refused the end of the capture, but not the state: those messages were processed, and their
            # positions are given out again.
            self._state.position.after = bus.last_position
        self._contexts: dict[tuple[int, str], RunnerContext] = {}
        self._delivery = Delivery(bus, self._state, on_output)
        if live:
            self._delivery.begin()
        self._uncommitted = False
        self._clockwork = Clockwork(bus, self._state, self._delivery, self._report)
        #: Records that could not be read.
        self.broken = 0
        #: Messages and records processed in this process.
        self.messages = self.records = 0

    @property
    def position(self) -> int:
        """The bus position of the last message processed."""
        return self._state.position.after

    @property
    def now_ns(self) -> int:
        """Unix ns as the operators know it: the stamp of the last input, tick or mark."""
        return self._state.position.now_ns

    @property
    def nameless(self) -> int:
        """How many points of other people's exporters were left out, as they name no host."""
        return self._decoder.nameless

    @property
    def failed_commits(self) -> int:
        """How many commits the disk refused; what they held is written later."""
        return self._state.failed_commits

    @property
    def mode(self) -> Mode:
        """What becomes of what is concluded: replay, live, standby or shadow."""
        return self._mode

    @property
    def published(self) -> int:
        """How many outputs this process has published."""
        return self._delivery.published

    @property
    def outbox_size(self) -> int:
        """How many outputs are not published yet."""
        return len(self._state.outbox)

    @property
    def state_rows(self) -> int:
        """How many rows all operators have."""
        return self._state.row_count()

    def rows(self, operator: str, table: str) -> Iterator[tuple[str, bytes]]:
        """(name, value) of the rows of one operator's table over all keys, for what is told beside the operators."""
        return ((name, self._owners.shown_row(row)) for name, row in self._state.rows_of(operator, table))

    def lead(self) -> None:
        """Keeps time and publishes from now on; first what lies on the bus is read, for it may say what
        is published.
        """
        self._mode = Mode.LIVE
        self._keeps_time = True
        self._delivery.catch_up()

    def follow(self) -> None:
        """Becomes a standby: another instance publishes and keeps time."""
        self._mode = Mode.STANDBY
        self._keeps_time = False

    def shadow(self, *, keeps_time: bool) -> None:
        """Judges beside another instance, or alone, and publishes nothing. keeps_time: but ticks, where nobody else
        does.
        """
        self._mode = Mode.SHADOW
        self._keeps_time = keeps_time

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was kept of an earlier life, and nothing was read yet."""
        return self._state.is_fresh

    def timers(self) -> tuple[int, int | None]:
        """How many timers are set, and when the first is due (Unix ns), None without any."""
        return self._state.timer_count, self._state.next_due_ns()

    def seed(self, records: Sequence[Record]) -> None:
        """Gives operators what an earlier life has published, before anything is read."""
        self._dispatch(0, [(-1, replace(record, payload=self._owners.keyed(record.payload))) for record in records])
        self._uncommitted = True

    def drain(self, reads: int | None = None) -> int:
        """Processes all that lies on the bus, then keeps time if live, and commits if due. The number of messages
        processed.

        reads: at most so many reads of the bus, for a caller that has something else to do as well. Raises what an
        operator, ``on_output`` or the bus raises; after an operator's exception the runner must not be used further
        (its state file is as of the last commit).
        """
        processed = self._read_all(reads)
        if self._keeps_time and self._bus.caught_up() and self._clockwork.keep_time():
            processed += self._read_all(reads)
        if self._uncommitted and (self._has_news() or self._pace.is_due()):
            self._commit()
        return processed

    def let_time_pass(self, duration_ns: int) -> None:
        """Appends ticks for ``duration_ns`` beyond the last stamp and processes them: for the end of a replay."""
        end_ns = self.now_ns + duration_ns
        advance = getattr(self._bus, "advance_clock", None)
        while self.now_ns < end_ns:
            if advance is not None:
                advance(min(self.now_ns + BEAT_NS, end_ns))
            self._clockwork.append_mark(EventName.TICK)
            self._read_all()

    def close(self) -> None:
        """Commits what is pending, delivers it, and closes the state."""
        self._commit()
        self._state.close()

    # --- input ---
    def _read_all(self, reads: int | None = None) -> int:
        processed = 0
        if not self._uncommitted:
            self._deliver()  # left by an earlier life, by an on_output that raised, or by a bus that took nothing
        while reads != 0 and (messages := self._bus.read(self._state.position.after, READ_LIMIT)):
            reads = None if reads is None else reads - 1
            for message in messages:
                self._process_message(message)
            processed += len(messages)
            self._uncommitted = True
            if self._has_news() or self._pace.is_due():
                self._commit()
        self.messages += processed
        return processed

    def _process_message(self, message: Message) -> None:
        topic, position = message.topic, self._state.position
        position.after = message.position
        if topic == TOPIC_FINDINGS:
            self._process_finding(message)
        elif topic in self._input_topics:
            self._advance_time(message.stamp_ns)
            payloads = self._decoder.decode(topic, message.value)
            if payloads:  # copies for people, our own incidents among them, do not say that agents are heard
                position.input_ns, position.beats, position.silent = position.now_ns, 0, False
            self._route(message, payloads)
        elif topic == TOPIC_CLOCK:
            self._process_mark(message)
        elif topic in OUTPUT_TOPICS:
            self._delivery.find(message)

    def _process_finding(self, message: Message) -> None:
        """What people say there is input; what operators have concluded there is our own."""
        if message.key == KEY_OF_PEOPLE:
            self._advance_time(message.stamp_ns)
            self._route(message, decode_logs(TOPIC_FINDINGS, message.value))
        else:
            self._delivery.find(message)

    def _process_mark(self, message: Message) -> None:
        if (until := message.headers.get(HEADER_PUBLISHED)) is not None:
            self._delivery.forget_published(int(until))
            return
        payloads = decode_logs(TOPIC_CLOCK, message.value)
        silent = any(isinstance(p, Event) and p.name is EventName.INPUT_SILENT for p in payloads)
        self._advance_time(message.stamp_ns)
        position = self._state.position
        if silent:
            position.silent = True
            self._route(message, payloads)
        else:
            position.beats += 1
            position.silent = False  # a replay that was told to let time pass

    def _advance_time(self, stamp_ns: int) -> None:
        """Fire what is due before a message stamped ``stamp_ns``; then it is that time."""
        state, position = self._state, self._state.position
        if position.now_ns and (position.silent or stamp_ns - position.now_ns > GAP_NS):
            state.restart_timers(stamp_ns)
        while (due_ns := state.next_due_ns()) is not None and due_ns <= stamp_ns:
            due_ns, key, name, operator = state.pop_timer()
            position.now_ns = max(position.now_ns, due_ns)
            index = self._index_of.get(operator)
            if index is None:  # an operator of another release
                continue
            context = self._context(index, key)
            self._operators[index].on_timer(Timer(name, due_ns), context)
            self._dispatch(index + 1, [(index, record) for record in self._take_emitted(context)])
        position.now_ns = max(position.now_ns, stamp_ns)

    def _route(self, message: Message, payloads: Sequence[Payload]) -> None:
        records: list[tuple[int, Record]] = []
        for payload in payloads:
            if isinstance(payload, Broken):
                self._set_aside(message, payload)
                continue
            if isinstance(payload, Event) and payload.identity.cluster:
                self._state.position.cluster = payload.identity.cluster
            keyed = self._owners.keyed(payload)
            record = Record(topic=message.topic, key=message.key, stamp_ns=self.now_ns, payload=keyed)
            if self._on_input is not None:
                self._on_input(replace(record, payload=self._owners.named(payload)))
            records.append((-1, record))
        self.records += len(records)
        self._dispatch(0, records)

    def _set_aside(self, message: Message, broken: Broken) -> None:
        self.broken += 1
        if self.broken == 1:
            self._report(f"{message.topic}, position {message.position}: {broken.reason}; kept on {TOPIC_DLQ}")
        kept, headers = dead_letter(message, broken)
        self._delivery.add(
            Record(topic=TOPIC_DLQ, key=message.key, stamp_ns=self.now_ns, payload=kept), kept.value, headers
        )

    # --- operators ---
    def _dispatch(self, first: int, records: Sequence[tuple[int, Record]]) -> None:
        """Give records to the operators from ``first`` on, each with the index of its emitter (-1: the bus)."""
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
                context = self._context(index, key)
                self._operators[index].process(batch, context)
                for record in self._take_emitted(context):
                    self._place(index, record, index + 1, pending)

    def _place(
        self, emitter: int, record: Record, first: int, pending: list[dict[str, list[Record]]]
    ) -> list[list[Record]]:
        """Put a record into the batch of each operator that wants it, and give these; an emitted one also into the
        outbox."""
        batches: list[list[Record]] = []
        if emitter >= 0:
            record = self._emit(record)
            if not isinstance(record.payload, Finding):
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
            context = self._contexts[(index, key)] = RunnerContext(self._state, self._operators[index].name, key)
        context.now_ns = self._state.position.now_ns
        return context

    def _take_emitted(self, context: RunnerContext) -> list[Record]:
        emitted, context.emitted = context.emitted, []
        return emitted

    def _emit(self, record: Record) -> Record:
        payload = record.payload
        if isinstance(payload, Broken | Samples):
            raise TypeError(f"an operator emitted {type(payload).__name__}")
        topic, key = destination_of(record)
        record = Record(topic=topic, key=key, stamp_ns=self._state.position.now_ns, payload=payload)
        shown = self._owners.shown(payload)
        self._delivery.add(replace(record, payload=shown), encode_payloads([shown]))
        return record

    # --- output ---
    def _has_news(self) -> bool:
        """Something was concluded that could be handed out after a commit."""
        if not self._state.outbox or self._mode is Mode.STANDBY:
            return False
        return self._mode is not Mode.LIVE or not self._delivery.is_late()

    def _commit(self) -> None:
        self._pace.commit(self._state.commit)
        self._uncommitted = False
        self._deliver()

    def _deliver(self) -> None:
        if self._state.outbox and self._mode is not Mode.STANDBY:
            self._delivery.deliver(publishes=self._mode is Mode.LIVE)
