"""Kafka as a ``Bus``: many partitions, read in the one order that the cuts in ``whichrank.clock`` have written down.

A position is the offset in ``whichrank.clock`` of the record that ends a cut, or of a mark. ``read`` gives whole cuts,
so what is committed after it never stands inside one. The instance that publishes (``leads``) proposes cuts and reads
them back like everybody else. One thread calls everything.
"""

from __future__ import annotations

import bisect
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ..telemetry.topics import TOPIC_CLOCK
from .bus import HEADER_PUBLISHED, Message, Output
from .clock_cuts import HEADER_CUT, SEARCH_RECORDS, ClockCuts
from .cuts import choose_cut, in_order, pack_ends
from .kafka_client import Client, Consumer, Fenced, Fetched, KafkaTrouble, Partition
from .kafka_writer import HEADER_BY, KafkaWriter, Unsettled
from .partition_reading import PartitionReading, deaf_words

#: Header of a record of the clock by which the publishing instance says only that it is alive.
HEADER_ALIVE = "whichrank.alive"

#: Cuts are proposed this often at most: what a record waits for, against what a cut costs.
CUT_PERIOD_S = 0.1
#: A publishing instance that has nothing to say is heard this often.
ALIVE_PERIOD_S = 3.0
#: Before the first record of the clock is -1.
NOT_OPEN = -2
#: New partitions of a topic are looked for this often.
PARTITIONS_PERIOD_S = 30.0


class KafkaLog:
    """``Bus`` over input topics of one Kafka cluster."""

    #: ``read`` gives inputs and marks only.
    reads_outputs = False

    def __init__(
        self,
        client: Client,
        topics: Sequence[str],
        *,
        instance: str,
        transactional_id: str,
        identity: str,
        report: Callable[[str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect.

        topics: the input topics, all of whose partitions are read.
        instance: this process's name, the same over its restarts and unlike any other's.
        identity: tells this cluster and its topics from any other (``kafka_topics.identity_of``).
        Raises KafkaTrouble.
        """
        self.identity = identity
        self._client = client
        self._topics = tuple(topics)
        self._instance = instance.encode()
        self._report = report
        self._monotonic_s = monotonic_s
        self._clock: Partition = (TOPIC_CLOCK, 0)
        self._consumer: Consumer | None = client.consumer(committed_only=True)
        self._writer = KafkaWriter(client, instance=self._instance, transactional_id=transactional_id, report=report)
        self._reading: dict[Partition, PartitionReading] = {}
        self._deaf: list[Partition] = []  # as told last
        self._marks: deque[Fetched] = deque()
        self._position = NOT_OPEN  # of the last record of the clock that is done with
        self._given = NOT_OPEN  # of the last message that was given out: the reader goes on after it
        self._ends: dict[Partition, int] = {}  # of the last cut that was given out
        self._first_kept, self._clock_end = self._bounds_of_clock()
        self._proposed = -1  # offset of our own last cut
        self._proposed_s = self._appended_s = -1e9
        self._looked_for_partitions_s = monotonic_s()
        self._stamp_ns, self._stamped_s = 0, monotonic_s()  # newest stamp by the broker, and when it came
        self._now_ns = 0
        #: Whether this instance proposes cuts and publishes.
        self.leads = False
        #: Another one has published since this one took over: it leads now.
        self.is_overtaken = False
        self._claimed_end = 0  # of the clock, when this one took over
        self._other_ns = 0  # the broker's stamp of the last record that another instance wrote
        #: Name of the instance that was heard last, but for this one.
        self.other = ""
        self._cuts = ClockCuts(client, self._clock, report, monotonic_s)

    # --- Bus ---
    @property
    def last_position(self) -> int:
        """Position of the newest record of the clock that is known of; -1: none."""
        return self._clock_end - 1

    def start_position(self) -> int:
        """Position after which a reader without a state begins: the oldest cut that is kept.

        Raises KafkaTrouble.
        """
        if self._first_kept == 0:
            return -1
        for begin in range(self._first_kept, self._clock_end, SEARCH_RECORDS):
            until = min(begin + SEARCH_RECORDS, self._clock_end) - 1
            if self._cuts.last(begin, until):
                return until
        return self._clock_end - 1

    @property
    def too_large(self) -> int:
        """How many outputs were left out because no broker takes a message of their size."""
        return self._writer.too_large

    @property
    def missed(self) -> int:
        """How many messages retention had deleted before they were read."""
        return self._consumer.gone if self._consumer is not None else 0

    @property
    def unreadable_marks(self) -> int:
        """How many records in the clock could not be read."""
        return self._cuts.unreadable

    def now_ns(self) -> int:
        """The broker's clock (Unix ns), as far as it was heard; it never goes back."""
        elapsed_ns = round((self._monotonic_s() - self._stamped_s) * 1e9)
        self._now_ns = max(self._now_ns, self._stamp_ns + elapsed_ns)
        return self._now_ns

    def append(self, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> int | None:
        """Appends a message and waits for the broker's answer; returns its offset on TOPIC_CLOCK, None on other topics.

        Raises KafkaTrouble.
        """
        sent = self._writer.append(topic, key, value, headers)
        if topic != TOPIC_CLOCK:
            return None
        self._appended_s = self._monotonic_s()
        if sent.stamp_ns > self._stamp_ns:
            self._stamp_ns, self._stamped_s = sent.stamp_ns, self._appended_s
        self._clock_end = max(self._clock_end, sent.offset + 1)
        return sent.offset

    def read(self, after: int, limit: int) -> Sequence[Message]:
        """The cuts and marks that follow ``after``: whole ones, at least one if any is there, about ``limit`` messages.

        Returns an empty sequence when nothing has come. Raises KafkaTrouble; the next call goes on.
        """
        if after != self._given:
            self._open(after)
        self._fetch()
        messages: list[Message] = []
        while self._marks and len(messages) < limit:
            given = self._give_out(self._marks[0])
            if given is None:  # a cut whose messages have not all come
                break
            self._marks.popleft()
            messages += given
        if messages:
            self._given = messages[-1].position
        if self.leads:
            self._propose()
        return messages

    def publish(self, outputs: Sequence[Output], until: int) -> None:
        """Append outputs and say that everything concluded up to position ``until`` is published: both or neither.

        Raises Fenced when another instance publishes now, KafkaTrouble when it is not known whether it was done. Then
        another try raises Unsettled once it can be known: the clock must be read to its (new) end first.
        """
        try:
            self._writer.publish(outputs, until)
        except Unsettled:
            self._refresh_end()
            raise
        except Fenced:
            self.leads = False
            raise
        self._appended_s = self._monotonic_s()

    def close(self) -> None:
        """Ends the writer, so that what it has under way is answered or given up, and then the reader."""
        self._writer.close()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # --- who publishes ---
    def claim(self) -> None:
        """Takes over: from here on an older instance's transactions fail. What it published has to be read next.

        Raises KafkaTrouble.
        """
        with contextlib.suppress(Unsettled):
            self._writer.claim()
        self._refresh_end()
        self._claimed_end = self._clock_end
        self.leads, self.is_overtaken = True, False

    def silence_s(self) -> float:
        """For how long no other instance has been heard, by the broker's clock; infinite if none ever was."""
        return (self.now_ns() - self._other_ns) / 1e9 if self._other_ns else float("inf")

    def say_alive(self) -> None:
        """Writes a sign of life into the clock, by whose answer the broker's clock is heard. Raises KafkaTrouble."""
        self.append(TOPIC_CLOCK, "", b"", {HEADER_ALIVE: b"1"})

    def is_quiet(self) -> bool:
        """Whether nothing was written for so long that this instance, if it leads, ought to ``say_alive``."""
        return self._monotonic_s() - self._appended_s >= ALIVE_PERIOD_S

    def clock_is_read(self) -> bool:
        """Whether all that other instances have written into the clock was given out, so that it is known who leads."""
        return self._position != NOT_OPEN and not self._marks and self._is_at_end(self._clock)

    def has_given(self, position: int) -> bool:
        """See ``Bus``: marks of transactions and words between instances give no message."""
        if self._position == NOT_OPEN or (self._marks and self._marks[0].offset <= position):
            return False
        return self._position >= position or self._connected().next_offset(self._clock) > position

    def caught_up(self) -> bool:
        """Whether everything that the brokers are known to have was given out."""
        return (
            self._consumer is not None
            and self._position != NOT_OPEN
            and not self._marks
            and self._position >= self._proposed
            and self._is_at_end(self._clock)
            and all(reading.queue.is_drained and not reading.queue.messages for reading in self._reading.values())
        )

    def lag_s(self) -> float:
        """Age of the oldest message that was fetched and not given out; 0 if there is none."""
        stamps = [r.queue.messages[0].stamp_ns for r in self._reading.values() if r.queue.messages]
        return max(0.0, (self.now_ns() - min(stamps)) / 1e9) if stamps else 0.0

    # --- opening ---
    def _open(self, after: int) -> None:
        """Read on after a position: where its inputs begin stands in the cuts up to it."""
        consumer = self._connected()
        partitions = [(topic, number) for topic in self._topics for number in consumer.partitions(topic)]
        bounds = consumer.bounds([*partitions, self._clock])
        self._first_kept, self._clock_end = bounds[self._clock]
        starts = self._cuts.ends_at(after, self._first_kept) if after >= self._first_kept else {}
        for partition in partitions:
            start = starts.get(partition, bounds[partition][0])
            if start < bounds[partition][0]:
                gone = bounds[partition][0] - start
                self._report(f"{partition[0]}, partition {partition[1]}: {gone} messages are gone by retention, unread")
                start = bounds[partition][0]
            starts[partition] = start
        self._reading = {partition: PartitionReading(moved_s=self._monotonic_s()) for partition in partitions}
        self._ends = {partition: starts[partition] for partition in partitions}
        self._marks.clear()
        consumer.assign({})
        consumer.assign({**self._ends, self._clock: max(after + 1, self._first_kept)})
        self._position = self._given = after

    def _bounds_of_clock(self) -> tuple[int, int]:
        consumer = self._connected()
        consumer.partitions(TOPIC_CLOCK)
        return consumer.bounds([self._clock])[self._clock]

    def _refresh_end(self) -> None:
        with contextlib.suppress(KafkaTrouble):
            self._first_kept, self._clock_end = self._bounds_of_clock()

    def _connected(self) -> Consumer:
        if self._consumer is None:
            raise KafkaTrouble("the bus is closed", lasting=True)
        return self._consumer

    # --- fetching ---
    def _fetch(self) -> None:
        consumer = self._connected()
        # Do not wait while something is here already.
        is_busy = bool(self._marks) or any(reading.queue.messages for reading in self._reading.values())
        now_s = self._monotonic_s()
        for message in consumer.poll(0.0 if is_busy else CUT_PERIOD_S):
            partition = (message.topic, message.partition)
            if message.stamp_ns > self._stamp_ns and message.appended_by_broker:
                self._stamp_ns, self._stamped_s = message.stamp_ns, self._monotonic_s()
            if partition == self._clock:
                self._marks.append(message)
                self._clock_end = max(self._clock_end, message.offset + 1)
                self._note_other(message)
                continue
            reading = self._reading[partition]
            reading.queue.messages.append(message)
            reading.size_bytes += len(message.value)
            reading.moved_s = now_s
        for partition, reading in self._reading.items():
            reading.look(consumer, partition, is_at_end=self._is_at_end(partition), now_s=now_s)
        self._tell_deaf()
        if now_s - self._looked_for_partitions_s >= PARTITIONS_PERIOD_S:
            self._looked_for_partitions_s = now_s
            self._look_for_partitions(consumer)

    def _tell_deaf(self) -> None:
        deaf = sorted(partition for partition, reading in self._reading.items() if reading.queue.is_deaf)
        if deaf == self._deaf:
            return
        self._deaf = deaf
        self._report(deaf_words(deaf))

    def _is_at_end(self, partition: Partition) -> bool:
        consumer = self._connected()
        end = consumer.end_offset(partition)
        return end is not None and consumer.next_offset(partition) >= end

    def _look_for_partitions(self, consumer: Consumer) -> None:
        known = {(topic, number) for topic in self._topics for number in consumer.partitions(topic)}
        new = known - set(self._reading)
        if not new:
            return
        bounds = consumer.bounds(sorted(new))
        for partition in sorted(new):
            self._reading[partition] = PartitionReading(moved_s=self._monotonic_s())
            self._ends[partition] = bounds[partition][0]
        places = {
            partition: consumer.next_offset(partition)
            for partition in [*self._reading, self._clock]
            if partition not in new
        }
        consumer.assign({**places, **{partition: self._ends[partition] for partition in new}})
        self._report(
            f"{len(new)} new partitions are read: {', '.join(f'{topic}/{number}' for topic, number in sorted(new))}"
        )

    def _note_other(self, record: Fetched) -> None:
        by = record.headers.get(HEADER_BY, b"")
        if by and by != self._instance:
            self._other_ns, self.other = record.stamp_ns, by.decode(errors="replace")
            # Whom we have taken over from can publish no more, so that this one has taken over from us. It need not be
            # found out by a refusal: who has been away and is behind may have nothing to publish for long.
            if self.leads and HEADER_PUBLISHED in record.headers and record.offset >= self._claimed_end:
                self.leads, self.is_overtaken = False, True

    # --- giving out ---
    def _give_out(self, record: Fetched) -> list[Message] | None:
        """The messages that a record of the clock stands for; None if some have not come yet."""
        given: list[Message] = []
        if HEADER_CUT in record.headers:
            ends = self._cuts.read(record)
            if not self._has_come(ends):
                return None
            given = [self._message(message, record.offset) for message in self._take(ends)]
        elif HEADER_PUBLISHED in record.headers or record.value:
            given = [self._message(record, record.offset)]
        self._position = record.offset
        return given

    def _has_come(self, ends: Mapping[Partition, int]) -> bool:
        """Whether all that a cut takes was fetched. Topics that are not ours belong to another release's cuts."""
        ours = {partition: end for partition, end in ends.items() if partition[0] in self._topics}
        if any(partition not in self._reading for partition in ours):  # added, and the leader knew it first
            self._look_for_partitions(self._connected())
        return all(
            partition in self._reading and self._connected().next_offset(partition) >= end
            for partition, end in ours.items()
        )

    def _take(self, ends: Mapping[Partition, int]) -> list[Fetched]:
        taken: dict[Partition, tuple[int, Sequence[Fetched]]] = {}
        for partition, end in ends.items():
            reading = self._reading.get(partition)
            if reading is None or end <= self._ends.get(partition, 0):
                continue
            messages = reading.trim(bisect.bisect_left(reading.queue.messages, end, key=lambda m: m.offset))
            taken[partition] = (reading.queue.taken_ns, messages)
            if messages:
                reading.queue.taken_ns = max(reading.queue.taken_ns, *(message.stamp_ns for message in messages))
            self._ends[partition] = end
        return in_order(taken)

    def _message(self, fetched: Fetched, position: int) -> Message:
        return Message(
            topic=fetched.topic,
            key=fetched.key.decode("utf-8", "replace"),
            value=fetched.value,
            position=position,
            stamp_ns=fetched.stamp_ns,
            headers=fetched.headers,
            place=(fetched.partition, fetched.offset),
        )

    # --- cutting ---
    def _propose(self) -> None:
        """Append the next cut, unless the last one is still on its way back."""
        now_s = self._monotonic_s()
        if self._position < self._proposed or now_s - self._proposed_s < CUT_PERIOD_S:
            return
        ends = choose_cut({partition: reading.queue for partition, reading in self._reading.items()})
        if not ends:
            return
        offset = self.append(TOPIC_CLOCK, "", b"", {HEADER_CUT: pack_ends({**self._ends, **ends})})
        self._proposed, self._proposed_s = -1 if offset is None else offset, now_s
