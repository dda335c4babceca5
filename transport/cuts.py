"""One order over many partitions (docs/decisions/0009-kafka-cuts.md): where a cut lies, and what order holds inside it.

Pure functions of what was fetched. A cut takes a beginning of each partition's queue; inside it messages are read by
(stamp, topic, partition, offset). A stamp that is earlier than one before it in its partition counts as that one.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .kafka_client import Fetched, Offsets, Partition

#: What one cut takes at most, so that nobody has to hold more in memory to read it.
CUT_MESSAGES = 4000
CUT_BYTES = 32 << 20
_FOREVER_NS = 1 << 63


@dataclass(slots=True, kw_only=True)
class Queue:
    """What was fetched of one partition and belongs to no cut yet, in order."""

    messages: list[Fetched] = field(default_factory=list)
    #: Stamp of the last message that was taken by a cut; 0: none was.
    taken_ns: int = 0
    #: Nothing more lies in the partition, as far as is known.
    is_drained: bool = False
    #: The partition has not answered for so long that nobody waits for it.
    is_deaf: bool = False

    def heard_until_ns(self) -> int:
        """The broker's stamp up to which all messages of the partition are here; for ever if drained or deaf."""
        if self.is_drained or self.is_deaf:
            return _FOREVER_NS
        return max((self.taken_ns, *(m.stamp_ns for m in self.messages[-1:])))


def choose_cut(
    queues: Mapping[Partition, Queue], *, messages: int = CUT_MESSAGES, size_bytes: int = CUT_BYTES
) -> dict[Partition, int]:
    """By partition the offset at which the next cut ends, of those that it takes something of; {} if nothing may be
    taken.

    messages, size_bytes: how much at most. No partition is taken further than the others have been heard, or the jobs
    of a partition that lags would seem silent. At least one message is taken if any may be.
    """
    until_ns = min((queue.heard_until_ns() for queue in queues.values()), default=0)
    ends: dict[Partition, int] = {}
    left, left_bytes = messages, size_bytes
    for stamp_ns, partition, message in _merged((p, q.taken_ns, q.messages) for p, q in queues.items()):
        size = len(message.value)
        if stamp_ns > until_ns or left <= 0 or (left_bytes < size and ends):
            break
        ends[partition] = message.offset + 1
        left -= 1
        left_bytes -= size
    return ends


def in_order(taken: Mapping[Partition, tuple[int, Sequence[Fetched]]]) -> list[Fetched]:
    """The messages of a cut in the order in which they are read.

    taken: by partition the stamp (ns) taken before, and its messages.
    """
    return [message for _, _, message in _merged((p, before, messages) for p, (before, messages) in taken.items())]


def _merged(
    parts: Iterable[tuple[Partition, int, Sequence[Fetched]]],
) -> Iterator[tuple[int, Partition, Fetched]]:
    return heapq.merge(*(_stamped(*part) for part in parts), key=lambda item: (item[0], item[1], item[2].offset))


def _stamped(
    partition: Partition, before_ns: int, messages: Sequence[Fetched]
) -> Iterator[tuple[int, Partition, Fetched]]:
    stamp_ns = before_ns
    for message in messages:
        stamp_ns = max(stamp_ns, message.stamp_ns)
        yield stamp_ns, partition, message


def pack_ends(ends: Offsets) -> bytes:
    """The ends of a cut as JSON for a header: {"topic": {"partition": offset}}, in a fixed order."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(ends.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":")).encode()


def unpack_ends(text: bytes) -> dict[Partition, int]:
    """The ends of a cut that ``pack_ends`` packed. Raises ValueError for what is no cut."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("a cut is not an object of topics")
    ends: dict[Partition, int] = {}
    for topic, partitions in content.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"cut of topic {topic!r} is not an object of partitions")
        for partition, offset in partitions.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise ValueError(f"cut of topic {topic!r}: {offset!r} is no offset")
            ends[topic, int(partition)] = offset
    return ends
