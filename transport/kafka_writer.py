"""What a ``KafkaLog`` writes: single records with the broker's answer, and outputs in transactions of one owner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ..telemetry.topics import TOPIC_CLOCK
from .bus import HEADER_PUBLISHED, Output
from .kafka_client import Client, Fenced, KafkaTrouble, Producer, Sent, TooLarge

#: Header of records in the clock topic: name of the instance that wrote it.
HEADER_BY = "whichrank.by"
#: How long an append, or a transaction, may take.
APPEND_TIMEOUT_S = 5.0
#: After a flush the client's thread may still be about to call back.
FLUSHED_S = 0.5


class Unsettled(KafkaTrouble):
    """Whether an earlier transaction was committed stands in the clock by now."""


class KafkaWriter:
    """One thread calls everything."""

    def __init__(
        self, client: Client, *, instance: bytes, transactional_id: str, report: Callable[[str], None]
    ) -> None:
        """instance: see ``KafkaLog``. Nothing is connected yet."""
        self._client = client
        self._instance = instance
        self._transactional_id = transactional_id
        self._report = report
        self._appender: Producer | None = None
        self._publisher: Producer | None = None
        self._is_uncertain = False  # whether the last transaction was committed
        self._refused: set[tuple[str, str, bytes]] = set()  # outputs that no broker takes
        #: Brokers refuse a batch as a whole: then one is sent at a time, until it is known which it was.
        self._sends_alone = False
        #: Outputs that were left out because no broker takes a message of their size.
        self.too_large = 0

    def append(self, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> Sent:
        """Appends a message and waits for the broker's answer. Raises KafkaTrouble, also without an answer in time."""
        answers: list[Sent | KafkaTrouble | None] = []
        answered = threading.Event()
        marked = dict(headers or {})
        if topic == TOPIC_CLOCK:
            marked[HEADER_BY] = self._instance

        def done(sent: Sent | None, trouble: KafkaTrouble | None) -> None:
            answers.append(trouble or sent)
            answered.set()

        if self._appender is None:
            self._appender = self._client.producer()
        self._appender.send(topic, key.encode(), value, marked, done)
        self._appender.flush(APPEND_TIMEOUT_S)
        answered.wait(FLUSHED_S)
        answer = answers[0] if answers else KafkaTrouble(f"Kafka did not answer within {APPEND_TIMEOUT_S:.0f} s")
        if not isinstance(answer, Sent):
            self._discard_appender()
            raise answer or KafkaTrouble("Kafka did not say where it appended")
        return answer

    def publish(self, outputs: Sequence[Output], until: int) -> None:
        """Writes outputs and a mark in one transaction.

        Raises Fenced, KafkaTrouble, Unsettled: see ``KafkaLog.publish``.

        An output that is too large for the brokers is left out, counted and told: it would hold up all others for good.
        """
        try:
            producer = self._publisher
            if producer is None:
                producer = self._publisher = self._client.producer(transactional_id=self._transactional_id)
            producer.begin()
            if self._is_uncertain:  # this has settled it, one way or the other
                producer.abort(APPEND_TIMEOUT_S)
                self._is_uncertain = False
                raise Unsettled("what was published before has to be read first")
            for output in outputs:
                self._send(producer, output)
            mark = {HEADER_PUBLISHED: str(until).encode(), HEADER_BY: self._instance}
            producer.send(TOPIC_CLOCK, b"", b"", mark)
            producer.commit(APPEND_TIMEOUT_S)
            self._refused.clear()
            self._sends_alone = False
        except Unsettled:
            raise
        except Fenced:
            self._discard_publisher()
            raise
        except KafkaTrouble:
            self._discard_publisher()
            self._is_uncertain = True
            raise

    def claim(self) -> None:
        """Takes the transactional id over: what an older owner has begun will fail.

        Raises KafkaTrouble, else Unsettled always.
        """
        self._discard_publisher()
        self._is_uncertain = True
        self.publish([], -1)

    def close(self) -> None:
        """Gives both producers up; a transaction that is open is aborted by the brokers."""
        self._discard_appender()
        self._discard_publisher()

    def _send(self, producer: Producer, output: Output) -> None:
        name = (output.topic, output.key, output.value)
        if name in self._refused:
            return
        troubles: list[KafkaTrouble] = []

        def done(sent: Sent | None, trouble: KafkaTrouble | None) -> None:
            if isinstance(trouble, TooLarge):
                troubles.append(trouble)
                self._sends_alone = True

        try:
            producer.send(output.topic, output.key.encode(), output.value, output.headers, done)
        except TooLarge as trouble:  # for the client: nothing was sent, and nothing else is concerned
            self._leave_out(output, trouble)
            return
        if self._sends_alone:
            producer.flush(APPEND_TIMEOUT_S)
            if troubles:
                self._leave_out(output, troubles[0])
                raise troubles[0]

    def _leave_out(self, output: Output, trouble: KafkaTrouble) -> None:
        self._refused.add((output.topic, output.key, output.value))
        self.too_large += 1
        size = f"{len(output.value)} bytes"
        self._report(f"{output.topic}: a message of {size} (key {output.key!r}) is left out: {trouble}")

    def _discard_appender(self) -> None:
        if self._appender is not None:
            self._appender.close(1.0)
            self._appender = None

    def _discard_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.close(1.0)
            self._publisher = None
