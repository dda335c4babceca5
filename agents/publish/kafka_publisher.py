"""From the threads that look at ranks to Kafka, without ever making them wait.

``publish`` puts a message into a bounded queue and returns. One thread here owns the outbox (memory, spool) and the
producer; another makes the connection, because that may take as long as it likes. While Kafka does not answer, what is
older than a second is on disk. Nothing here raises into a caller; each trouble is one line, once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ...telemetry.topics import TOPIC_BLOCKS
from ...transport.kafka_client import KafkaTrouble, Producer, QueueFull, Sent, TooLarge
from ..base.priority import Priority
from .broker_clock import BrokerClock
from .outbox import Outbox, OutboxSettings, WaitingMessages
from .spool import OTHERS, OWN, Outgoing, Spool

logger = logging.getLogger("whichrank.agents")

#: Between two looks at answers and disk, while there is something to look after, while there is no connection that
#: answers, and else.
_TURN_S, _APART_TURN_S, _IDLE_TURN_S = 0.05, 0.2, 0.5
#: After the first message the others of the same flush, and of other jobs', are waited for: one turn for all.
_GATHER_S = 0.02
_LEDGER_NS = 1_000_000_000
_FIRST_CONNECT_S, _LONGEST_CONNECT_S = 0.5, 15.0
_SPOOL_RETRY_NS = 10_000_000_000
#: A producer that is to be replaced gets so long to answer for what it holds.
_REPLACE_NS = 10_000_000_000
_SECOND_NS = 1_000_000_000
_CLOSE_PRODUCER_S = 1.0
MAX_PROBLEMS = 256
#: Owners who have lost most are told with their losses.
_MOST_OWNERS = 16


class KafkaPublisher:
    """Thread-safe. ``stats`` is what it counts, for AGENT_HEALTH and for the line at the end."""

    def __init__(
        self,
        connect: Callable[[], Producer],
        *,
        spool_directory: Path | None,
        spool_bytes: int,
        settings: OutboxSettings | None = None,
        report: Callable[[str], None] = logger.warning,
        clock: BrokerClock | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``connect`` makes a producer, takes as long as it likes and raises KafkaTrouble.

        clock: hears the stamps of the topic of blocks, which are its brokers' (``whichrank topics`` sees to that).
        """
        self._connect = connect
        self._spool_directory, self._spool_bytes = spool_directory, spool_bytes
        self._settings = settings or OutboxSettings()
        self._report_line = report
        self._said: set[str] = set()
        self._clock = clock
        self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
        self._lock = threading.Lock()
        self._inbox = WaitingMessages()
        self._inbox_dropped: Counter[tuple[Priority, str]] = Counter()
        self._number = 0
        self._wake = threading.Event()
        self._answers: deque[tuple[int, Outgoing, KafkaTrouble | None]] = deque()
        self._outbox = Outbox(self._settings)
        self._producer: Producer | None = None
        self._generation = 0  # of the producer: what an old one says later is not listened to
        self._connecting: threading.Thread | None = None
        self._new_producer: Producer | None = None
        self._connect_at_ns, self._connect_s = 0, _FIRST_CONNECT_S
        self._replace_by_ns = 0
        self._spool_at_ns = self._ledger_at_ns = 0
        self._troubles = 0
        self._close_by_ns = 0
        self._stats: Mapping[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="whichrank-publisher", daemon=True)

    def start(self) -> None:
        """Opens the spool, whose messages of an earlier agent go first, and starts the thread."""
        self._open_spool(self._monotonic_ns())
        spool = self._outbox.spool
        # Beyond every number of an earlier agent, even of one whose spool cannot be read at the moment.
        self._number = max(self._wall_ns() // 1000, spool.last_number if spool is not None else 0)
        self._count()
        self._thread.start()

    def of_owner(self, uid: int) -> Callable[[str, str, bytes, Priority], None]:
        """``publish`` for the jobs of one owner, who has a share of the spool."""
        return partial(self.publish, owner=uid)

    def publish(self, topic: str, key: str, value: bytes, priority: Priority, *, owner: int = OWN) -> None:
        """Queue a message: any thread, no I/O. Beyond the bound the oldest of the lowest priority is dropped.

        owner: uid of whose job it is of.
        """
        with self._lock:
            self._number += 1
            self._inbox.put(
                Outgoing(
                    number=self._number,
                    priority=priority,
                    topic=topic,
                    key=key,
                    value=value,
                    stamp_ns=self._wall_ns(),
                    owner=owner,
                )
            )
            while self._inbox.size > self._settings.memory_bytes and (least := self._inbox.least()) is not None:
                self._inbox.take(least)  # the thread hangs, in a disk perhaps
                self._inbox_dropped[least.priority, "queue_full"] += 1
        self._wake.set()

    @property
    def stats(self) -> Mapping[str, int]:
        """Counters by name, at most a moment old. Drops go on over restarts as long as the spool lives."""
        return self._stats

    def close(self, patience_s: float) -> None:
        """Sends what is left for ``patience_s``, puts the rest into the spool, and ends the thread.

        Takes a second or two more at most.
        """
        self._close_by_ns = self._monotonic_ns() + int(patience_s * _SECOND_NS)
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(patience_s + 2 * _CLOSE_PRODUCER_S)

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            if self._wake.wait(self._turn_s()):
                time.sleep(_GATHER_S)
            self._wake.clear()
            now_ns = self._monotonic_ns()
            try:
                self._turn(now_ns)
            except Exception as error:  # edge: whatever a client library or a disk can do, this thread goes on
                self._troubles += 1
                self._say(f"publisher: {type(error).__name__}: {error}")
                time.sleep(_TURN_S)
            if self._close_by_ns and (
                now_ns >= self._close_by_ns or (not self._outbox.unsent and not len(self._inbox))
            ):
                break
        self._end()

    def _turn_s(self) -> float:
        if not self._outbox.unsent and not self._replace_by_ns:
            return _IDLE_TURN_S
        return _TURN_S if self._producer is not None else _APART_TURN_S

    def _turn(self, now_ns: int) -> None:
        self._open_spool(now_ns)
        self._take_in(now_ns)
        if self._producer is not None:
            self._producer.poll()
        self._hear(now_ns)
        self._keep_connected(now_ns)
        if self._producer is not None and not self._replace_by_ns:
            self._hand_over(self._producer, now_ns)
        self._outbox.tidy(now_ns)
        if self._outbox.disk_problem:
            self._say(f"spool {self._outbox.disk_problem}; records are kept in memory only, tried again every 10 s")
        spool = self._outbox.spool
        if spool is not None and now_ns >= self._ledger_at_ns:
            self._ledger_at_ns = now_ns + _LEDGER_NS
            spool.write_ledger()
        self._count()

    def _take_in(self, now_ns: int) -> None:
        with self._lock:
            taken, self._inbox = self._inbox, WaitingMessages()
        while (message := taken.first()) is not None:
            taken.take(message)
            self._outbox.put(message, now_ns)

    def _hear(self, now_ns: int) -> None:
        """What the client says of messages that it had."""
        while self._answers:
            generation, message, trouble = self._answers.popleft()
            if generation != self._generation:
                continue
            if trouble is None:
                self._outbox.sent_well(message)
                continue
            self._troubles += 1
            self._say(str(trouble))
            if isinstance(trouble, TooLarge):
                self._outbox.refused(message, "too_large")
                continue
            self._outbox.given_back(message, now_ns)
            if trouble.lasting:
                self._replace_producer(now_ns)

    def _hand_over(self, producer: Producer, now_ns: int) -> None:
        while (message := self._outbox.next(now_ns)) is not None:
            try:
                producer.send(
                    message.topic, message.key.encode("utf-8", "replace"), message.value, None, self._listener(message)
                )
            except QueueFull:
                self._outbox.take_back(message)
                return
            except TooLarge as trouble:
                self._troubles += 1
                self._say(str(trouble))
                self._outbox.refused(message, "too_large")
            except KafkaTrouble as trouble:  # it may have waited for a second: the rest has its turn first
                self._troubles += 1
                self._say(str(trouble))
                self._outbox.take_back(message)
                self._outbox.hold(message.topic, now_ns)
                return
            except BaseException:  # a bug of the library: it never had the message, and who knows what it is in
                self._outbox.take_back(message)
                self._outbox.hold(message.topic, now_ns)
                self._replace_producer(now_ns)
                raise
            if self._replace_by_ns:
                return

    def _listener(self, message: Outgoing) -> Callable[[Sent | None, KafkaTrouble | None], None]:
        generation, answers, wake = self._generation, self._answers, self._wake
        clock = self._clock if message.topic == TOPIC_BLOCKS else None
        handed_ns = self._monotonic_ns()

        def on_done(sent: Sent | None, trouble: KafkaTrouble | None) -> None:
            if clock is not None and sent is not None:
                clock.hear(handed_ns=handed_ns, answered_ns=self._monotonic_ns(), stamp_ns=sent.stamp_ns)
            answers.append((generation, message, trouble))
            wake.set()

        return on_done

    # --- connection -----------------------------------------------------------------------------------------------
    def _replace_producer(self, now_ns: int) -> None:
        """A lasting refusal may have left the client unusable: a new one follows, after the back-off."""
        self._replace_by_ns = self._replace_by_ns or now_ns + _REPLACE_NS

    def _keep_connected(self, now_ns: int) -> None:
        if self._replace_by_ns and (now_ns >= self._replace_by_ns or not self._outbox.in_flight):
            old, self._producer = self._producer, None
            self._generation += 1
            self._replace_by_ns = 0
            self._connect_at_ns = now_ns + int(self._connect_s * _SECOND_NS)
            self._connect_s = min(2 * self._connect_s, _LONGEST_CONNECT_S)
            self._outbox.give_back_all(now_ns)
            if old is not None:
                threading.Thread(target=_close, args=(old,), name="whichrank-kafka-close", daemon=True).start()
        if self._producer is None and self._new_producer is not None:
            self._producer, self._new_producer = self._new_producer, None
        if self._outbox.sent and self._producer is not None:
            self._connect_s = _FIRST_CONNECT_S
        # The thread leaves its producer before it says that it is done: asked in this order, none is overlooked.
        is_idle = self._connecting is None and self._new_producer is None
        if self._producer is None and is_idle and now_ns >= self._connect_at_ns:
            self._connecting = threading.Thread(target=self._make, name="whichrank-kafka-connect", daemon=True)
            self._connecting.start()

    def _make(self) -> None:
        try:
            self._new_producer = self._connect()
        except Exception as error:  # edge: a client library; KafkaTrouble says what to do, anything else is named
            self._troubles += 1
            self._say(str(error) if isinstance(error, KafkaTrouble) else f"Kafka: {type(error).__name__}: {error}")
            self._connect_at_ns = self._monotonic_ns() + int(self._connect_s * _SECOND_NS)
            self._connect_s = min(2 * self._connect_s, _LONGEST_CONNECT_S)
        finally:
            self._connecting = None
            self._wake.set()

    # --- spool and counters ---------------------------------------------------------------------------------------
    def _open_spool(self, now_ns: int) -> None:
        if self._spool_directory is None or self._outbox.spool is not None or now_ns < self._spool_at_ns:
            return
        self._spool_at_ns = now_ns + _SPOOL_RETRY_NS
        try:
            self._outbox.use_spool(Spool(self._spool_directory, self._spool_bytes, self._say))
        except OSError as error:
            what = f"{error.filename or self._spool_directory}: {error.strerror or error}"
            self._say(f"no spool: {what}; while Kafka is absent, records are kept in memory only")

    def _count(self) -> None:
        outbox, spool = self._outbox, self._outbox.spool
        with self._lock:
            self._outbox.dropped.update(self._inbox_dropped)
            self._inbox_dropped.clear()
        stats: dict[str, int] = {
            "kafka.connected": int(self._producer is not None),
            "kafka.sent": outbox.sent,
            "kafka.sent_bytes": outbox.sent_bytes,
            "kafka.in_flight": outbox.in_flight,
            "kafka.memory_bytes": outbox.memory_bytes,
            "kafka.given_back": outbox.failed,
            "kafka.sent_late": outbox.sent_late,
            "kafka.troubles": self._troubles,
            "kafka.unsent": outbox.unsent,
        }
        if spool is not None:
            stats["spool.records"] = spool.waiting
            stats["spool.bytes"] = spool.bytes
            stats["spool.age_s"] = max(self._wall_ns() - spool.oldest_ns, 0) // _SECOND_NS if spool.oldest_ns else 0
            stats["spool.written"] = spool.written
            stats["spool.damaged"] = spool.damaged
            for uid, count in spool.dropped_of.most_common(_MOST_OWNERS):
                who = {OWN: "agent", OTHERS: "others"}.get(uid, f"user_{uid}")
                stats[f"spool.dropped_of.{who}"] = count
        for (priority, reason), count in sorted(outbox.dropped.items()):
            stats[f"kafka.dropped.{priority.word}.{reason}"] = count
        self._stats = stats

    def _say(self, line: str) -> None:
        if line not in self._said and len(self._said) < MAX_PROBLEMS:
            self._said.add(line)
            self._report_line(line)

    def _end(self) -> None:
        """Everything that Kafka has not taken goes to disk; the client gets a moment to end."""
        now_ns = self._monotonic_ns()
        try:
            self._take_in(now_ns)
            self._hear(now_ns)
            self._outbox.save(now_ns, last_chance=True)
            if self._producer is not None:
                self._producer.close(_CLOSE_PRODUCER_S)
                self._hear(now_ns)
            self._outbox.tidy(now_ns)
        except Exception as error:  # edge: the end of the process; each part that can still be saved is
            self._say(f"publisher, at the end: {type(error).__name__}: {error}")
        self._count()
        if self._outbox.spool is not None:
            self._outbox.spool.close()


def _close(producer: Producer) -> None:
    try:
        producer.close(_CLOSE_PRODUCER_S)
    except Exception as error:  # edge: nobody uses it any more
        logger.debug("closing a Kafka producer: %s", error)


def describe_stats(stats: Mapping[str, int]) -> str:
    """One line from a publisher's counters: what Kafka has, what it has not, what was dropped and why."""
    parts = [f"{stats.get('kafka.sent', 0)} messages to Kafka"]
    if stats.get("kafka.unsent"):
        parts.append(f"{stats['kafka.unsent']} not taken by it ({stats.get('spool.records', 0)} of them in the spool)")
    dropped = {name.removeprefix("kafka.dropped."): count for name, count in stats.items() if ".dropped." in name}
    if dropped:
        parts.append("dropped " + ", ".join(f"{count} {name.replace('.', ', ')}" for name, count in dropped.items()))
    return "; ".join(parts)
