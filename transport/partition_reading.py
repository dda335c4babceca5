"""One partition as the reader of a ``KafkaLog`` has it: what was fetched, whether it is drained, deaf or held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .cuts import Queue
from .kafka_client import Consumer, Fetched, Partition

#: A partition that is behind and does not answer for so long is not waited for.
DEAF_S = 5.0
#: What is held of a partition before fetching more of it waits.
QUEUE_MESSAGES = 20_000
QUEUE_BYTES = 32 << 20
_MOST_NAMED = 4


@dataclass(slots=True)
class PartitionReading:
    """moved_s: monotonic time of its last message, or at which it was drained."""

    queue: Queue = field(default_factory=Queue)
    size_bytes: int = 0
    is_paused: bool = False
    moved_s: float = 0.0

    def trim(self, count: int) -> list[Fetched]:
        """Takes out and returns the first ``count`` messages of the queue."""
        taken, self.queue.messages = self.queue.messages[:count], self.queue.messages[count:]
        self.size_bytes -= sum(len(message.value) for message in taken)
        return taken

    def look(self, consumer: Consumer, partition: Partition, *, is_at_end: bool, now_s: float) -> None:
        """Notes whether the partition is drained or deaf now, and pauses fetching while too much is held.

        now_s: monotonic.
        """
        self.queue.is_drained = is_at_end
        if self.queue.is_drained or self.queue.messages:
            self.moved_s = now_s
        self.queue.is_deaf = now_s - self.moved_s > DEAF_S
        is_full = len(self.queue.messages) > QUEUE_MESSAGES or self.size_bytes > QUEUE_BYTES
        if is_full and not self.is_paused:
            consumer.pause([partition])
            self.is_paused = True
        elif self.is_paused and not is_full:
            consumer.resume([partition])
            self.is_paused = False


def deaf_words(deaf: Sequence[Partition]) -> str:
    """A line for people: that nothing comes of these partitions; for none, that all are read again."""
    if not deaf:
        return "all partitions are read again"
    names = ", ".join(f"{topic}/{number}" for topic, number in deaf[:_MOST_NAMED])
    more = f" and {len(deaf) - _MOST_NAMED} more" if len(deaf) > _MOST_NAMED else ""
    return f"{names}{more}: nothing comes for {DEAF_S:.0f} s; time goes on without it"
