"""From the outbox to whoever listens, and to the bus: everything once, although a process may die anywhere.

The outbox holds what was emitted and committed. An earlier life, or another instance, may have published a part of it;
the bus says so, and until all that it held when we began to lead is read, nothing is appended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from ..telemetry import attributes as names
from ..telemetry.otlp import decode_logs
from ..telemetry.records import Broken, Payload, Record
from ..transport.bus import (
    TOPIC_DLQ,
    TOPIC_FINDINGS,
    TOPIC_INCIDENTS,
    TOPIC_REQUESTS,
    Bus,
    Message,
    Output,
)
from .runner_state import OutboxEntry, RunnerState

OUTPUT_TOPICS = frozenset({TOPIC_FINDINGS, TOPIC_INCIDENTS, TOPIC_REQUESTS, TOPIC_DLQ})
READ_LIMIT = 512
#: Outputs that are published at once, and no other instance sees a part of them.
PUBLISH_LIMIT = 500
#: A runner this far behind says nothing until it has caught up: what has ended meanwhile is no news.
LATE_NS = 10_000_000_000


class Delivery:
    """Hands out what a runner concludes, once. For one thread. ``published``: outputs that this process
    has appended.
    """

    def __init__(
        self, bus: Bus, state: RunnerState, on_output: Callable[[Record], None], report: Callable[[str], None]
    ) -> None:
        self._report = report
        self._bus = bus
        self._state = state
        self._on_output = on_output
        self._records: dict[int, Record] = {}  # of outbox entries made by this process
        self._shown: set[int] = set()  # outbox entries already given to on_output
        self._catch_up_to = 0
        self._found: Counter[tuple[str, str, bytes]] = Counter()  # outputs on the bus that are still in the outbox
        self._was_late = False
        self.published = 0
        #: Outputs that the bus cannot hold, in this process.
        self.refused = 0

    def begin(self) -> None:
        """To be called for a runner that is live from its start: finds what of the outbox the bus holds already."""
        self.catch_up()
        if self._bus.reads_outputs and self._state.outbox:
            self._find_outputs(self._state.outbox[0].after, self._state.position.after)

    def catch_up(self) -> None:
        """Notes how far the bus goes now: nothing is published before that is read, as it may say what is published."""
        self._catch_up_to = self._bus.last_position

    def has_caught_up(self) -> bool:
        """Whether all was read that lay on the bus when this process began to lead."""
        return self._state.position.after >= self._catch_up_to or self._bus.has_given(self._catch_up_to)

    # --- in ---
    def add(self, record: Record, value: bytes, headers: str = "") -> None:
        """Adds an output to the outbox, with the next commit. headers: a JSON object of texts, "" none."""
        entry = self._state.add_output(record.topic, record.key, record.stamp_ns, value, headers)
        self._records[entry.id] = record

    def find(self, message: Message) -> None:
        """Notes an output that was read from the bus, so that it is not published again."""
        if message.position <= self._catch_up_to:
            self._found[(message.topic, message.key, message.value)] += 1

    def _find_outputs(self, after: int, until: int) -> None:
        """Note the outputs on the bus between two positions."""
        while after < until and (messages := self._bus.read(after, READ_LIMIT)):
            for message in messages:
                if message.position <= until and message.topic in OUTPUT_TOPICS:
                    self._found[(message.topic, message.key, message.value)] += 1
            after = messages[-1].position

    # --- out ---
    def deliver(self, *, publishes: bool) -> None:
        """Gives new outputs of the outbox to ``on_output``; once caught up, publishes them and drops them from the
        outbox.

        publishes: append to the bus; nothing is done then while far behind. Raises what ``on_output`` and the bus
        raise.
        """
        if publishes and self.is_late():
            return
        self._drop_overtaken()
        has_caught_up = self.has_caught_up()
        ready: list[OutboxEntry] = []
        damaged: list[OutboxEntry] = []
        for entry in list(self._state.outbox):
            if entry.id not in self._shown:
                try:
                    record = self._record_of(entry)
                except (ValueError, LookupError, TypeError, AttributeError) as error:
                    self._refuse(f"the state's outbox, entry {entry.id}", len(entry.value), error)
                    damaged.append(entry)
                    continue
                self._on_output(record)
                self._shown.add(entry.id)
            if has_caught_up:
                ready.append(entry)
        if damaged:
            self._forget(damaged)
        while ready:
            count = _whole_positions(ready, PUBLISH_LIMIT)
            if publishes:
                self._publish(ready[:count])
            self._forget(ready[:count])
            self._found.clear()
            ready = ready[count:]

    def forget_published(self, until: int) -> None:
        """Drops outputs emitted up to position ``until`` from the outbox, as a mark says that they are published."""
        if published := [entry for entry in self._state.outbox if entry.after <= until]:
            self._forget(published)

    def _publish(self, entries: Sequence[OutboxEntry]) -> None:
        outputs = [_output(entry) for entry in entries if not self._is_found(entry)]
        try:
            self._bus.publish(outputs, entries[-1].after)
            self.published += len(outputs)
        except OSError:
            self.catch_up()  # whether it was taken may stand there
            raise
        except Exception:  # one of them is what no bus of this sort can hold: the others must not wait for ever
            self._publish_one_by_one(outputs, entries[-1].after)

    def _publish_one_by_one(self, outputs: Sequence[Output], until: int) -> None:
        """Some may have been taken before: to have them twice is nothing new after a crash either."""
        for output in outputs:
            try:
                self._bus.publish([output], until)
                self.published += 1
            except OSError:
                self.catch_up()
                raise
            except Exception as error:  # as above
                self._refuse(output.topic, len(output.value), error)

    def _refuse(self, where: str, size: int, error: Exception) -> None:
        self.refused += 1
        if self.refused == 1:
            why = f"{type(error).__name__}: {error}"[:200]
            self._report(f"{where}: a conclusion of {size} bytes cannot be published ({why}); left out, as all such")

    def _forget(self, entries: Sequence[OutboxEntry]) -> None:
        self._state.forget_outputs(entries)
        for entry in entries:
            self._shown.discard(entry.id)
            self._records.pop(entry.id, None)
        self._state.commit()

    def _is_found(self, entry: OutboxEntry) -> bool:
        """An earlier life has published it."""
        found = (entry.topic, entry.key, entry.value)
        if not self._found[found]:
            return False
        self._found[found] -= 1
        return True

    def is_late(self) -> bool:
        """Whether it is more than LATE_NS behind: then outputs are held back, and of each incident only the last is
        news later.
        """
        late = not self._bus.caught_up() and self._bus.now_ns() - self._state.position.now_ns > LATE_NS
        self._was_late |= late
        return late

    def _drop_overtaken(self) -> None:
        """Of incidents concluded while late only the last revision is news, of requests for evidence none."""
        if not self._was_late:
            return
        self._was_late = False
        last = {entry.key: entry.id for entry in self._state.outbox if entry.topic == TOPIC_INCIDENTS}
        self._forget(
            [
                entry
                for entry in self._state.outbox
                if entry.topic == TOPIC_REQUESTS or (entry.topic == TOPIC_INCIDENTS and last[entry.key] != entry.id)
            ]
        )

    def _record_of(self, entry: OutboxEntry) -> Record:
        record = self._records.get(entry.id)
        if record is not None:
            return record
        payload: Payload
        if any(not isinstance(text, str) for text in json.loads(entry.headers or "{}").values()):
            raise ValueError("headers that are no texts")  # an earlier life's file is damaged
        if entry.topic == TOPIC_DLQ:
            reason = json.loads(entry.headers)[names.DLQ_REASON] if entry.headers else ""
            payload = Broken(topic=entry.topic, reason=reason, value=entry.value)
        else:
            payload = decode_logs(entry.topic, entry.value)[0]
        return Record(topic=entry.topic, key=entry.key, stamp_ns=entry.stamp_ns, payload=payload)


def _whole_positions(entries: Sequence[OutboxEntry], limit: int) -> int:
    """How many of these make about ``limit``, so that no position's outputs are divided."""
    count = min(limit, len(entries))
    while count < len(entries) and entries[count].after == entries[count - 1].after:
        count += 1
    return count


def _output(entry: OutboxEntry) -> Output:
    texts = json.loads(entry.headers) if entry.headers else {}
    headers = {name: text.encode("utf-8", "replace") for name, text in texts.items()} or None
    return Output(topic=entry.topic, key=entry.key, value=entry.value, headers=headers)
