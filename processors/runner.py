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

from ..telemetry.packed_flush import blocks_of
from ..telemetry.records import Broken, Event, Flush, Payload, Record
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
from .runner_decode import MessageDecoder
from .runner_delivery import OUTPUT_TOPICS, READ_LIMIT, Delivery
from .runner_dispatch import Dispatcher
from .runner_letters import dead_letter
from .runner_state import RunnerState

_log = logging.getLogger(__name__)

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
        on_input: sees each record before the operators do, after a crash possibly again. What it raises is counted.
        pace: of commits, where not as usual.
        live: append ticks, outputs and marks to the bus; False for a replay, which only reads. See also ``lead`` and
            ``follow``.
        report: takes one line for what a person should know; default is a warning in the log.
        metrics: names of those that operators ask for; all others in the messages of a topic of metrics are left out.
        Raises OSError if another process uses the state file.
        """
        self._bus = bus
        self._on_input = on_input
        self._mode = Mode.LIVE if live else Mode.REPLAY
        self._keeps_time = live
        self._input_topics = frozenset(input_topics)
        self._pace = pace if pace is not None else CommitPace()
        self._report = report if report is not None else _log.warning
        self._decoder = MessageDecoder(metrics, self._report, with_flushes=True)
        self._state = RunnerState(state_path, bus=bus.identity, start_after=start_after, report=self._report)
        self._owners = JobOwners(self._state.open_table(("runner", "", "owners")), self._report)
        if live and bus.reads_outputs and self._state.position.after > bus.last_position:
            # The disk refused the end of the capture, but not the state: those messages were processed, and their
            # positions are given out again.
            self._state.position.after = bus.last_position
        self._delivery = Delivery(bus, self._state, on_output, self._report)
        self._dispatcher = Dispatcher(self._state, self._delivery, self._owners, operators, self._report)
        if live:
            self._delivery.begin()
        self._uncommitted = False
        self._clockwork = Clockwork(bus, self._state, self._delivery, self._report)
        #: Records that could not be read.
        self.broken = 0
        #: Records that ``on_input`` has raised at.
        self.failed_inputs = 0
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
    def contained(self) -> int:
        """How often an operator has raised in this process, or the bus on one conclusion: each time a key, a part of
        one, or the conclusion was contained.
        """
        return self._dispatcher.containment.failures + self._delivery.refused

    @property
    def muted(self) -> int:
        """How many records were dropped in this process, as their key had failed again."""
        return self._dispatcher.containment.dropped

    @property
    def forgotten(self) -> int:
        """How many jobs and entities this process has forgotten before their time, as there were too many."""
        return self._dispatcher.forgotten

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
        return len(self._state.timers), self._state.timers.next_due_ns()

    def seed(self, records: Sequence[Record]) -> None:
        """Gives operators what an earlier life has published, before anything is read."""
        self._dispatcher.message = None
        keyed = [replace(record, payload=self._owners.keyed(record.payload)) for record in records]
        self._dispatcher.dispatch(0, [(-1, record) for record in keyed])
        self._uncommitted = True

    def drain(self, reads: int | None = None) -> int:
        """Processes all that lies on the bus, then keeps time if live, and commits if due. The number of messages
        processed.

        reads: at most so many reads of the bus, for a caller that has something else to do as well. Raises what
        ``on_output`` or the bus raises; what an operator raises is contained (``runner_dispatch``).
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
            payloads = self._decode(message)
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
            self._route(message, self._decode(message))
        else:
            self._delivery.find(message)

    def _decode(self, message: Message) -> Sequence[Payload]:
        try:
            return self._decoder.decode(message.topic, message.value)
        except Exception as error:  # whatever bytes make a decoder do, MemoryError included, ends one message
            reason = f"decoding failed: {type(error).__name__}: {error}"[:300]
            return [Broken(topic=message.topic, reason=reason, value=message.value)]

    def _process_mark(self, message: Message) -> None:
        if (until := message.headers.get(HEADER_PUBLISHED)) is not None:
            self._delivery.forget_published(int(until) if until.isdigit() else 0)
            return
        payloads = self._decode(message)
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
            state.timers.restart(stamp_ns)
        while (due_ns := state.timers.next_due_ns()) is not None and due_ns <= stamp_ns:
            due_ns, key, name, operator = state.timers.pop()
            position.now_ns = max(position.now_ns, due_ns)
            self._dispatcher.fire(operator, key, Timer(name, due_ns))
        position.now_ns = max(position.now_ns, stamp_ns)

    def _route(self, message: Message, payloads: Sequence[Payload]) -> None:
        records: list[tuple[int, Record]] = []
        for payload in payloads:
            if isinstance(payload, Broken):
                self._set_aside(message, payload)
                continue
            if isinstance(payload, Event) and payload.identity.cluster:
                self._state.position.cluster = payload.identity.cluster
            try:
                keyed = self._owners.keyed(payload)
            except Exception as error:  # a record whose owner makes no sense is one dead letter
                reason = f"its owner cannot be told: {type(error).__name__}: {error}"
                self._set_aside(message, Broken(topic=message.topic, reason=reason, value=message.value))
                continue
            record = Record(topic=message.topic, key=message.key, stamp_ns=self.now_ns, payload=keyed)
            if self._on_input is not None:
                shown = self._owners.named(payload)
                for each in blocks_of(shown) if isinstance(shown, Flush) else (shown,):
                    self._show_input(record, each)
            records.append((-1, record))
        self.records += len(records)
        self._dispatcher.message = message
        self._dispatcher.dispatch(0, records)

    def _show_input(self, record: Record, payload: Payload) -> None:
        """payload: as people read it."""
        assert self._on_input is not None
        try:
            self._on_input(record if payload is record.payload else replace(record, payload=payload))
        except Exception as error:  # it only looks on: a record that it cannot take must not keep it from the operators
            self.failed_inputs += 1
            if self.failed_inputs == 1:
                self._report(f"{record.topic}: what looks on at the input failed: {type(error).__name__}: {error}")

    def _set_aside(self, message: Message, broken: Broken) -> None:
        self.broken += 1
        if self.broken == 1:
            self._report(f"{message.topic}, position {message.position}: {broken.reason}; kept on {TOPIC_DLQ}")
        kept, headers = dead_letter(message, broken)
        self._delivery.add(
            Record(topic=TOPIC_DLQ, key=message.key, stamp_ns=self.now_ns, payload=kept), kept.value, headers
        )

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
