"""A topic as it is now, from its beginning to its end: for commands and for what must be known before work begins."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .kafka_client import Client, Fetched, KafkaTrouble

#: Longer than any topic that is read in this way may take.
READ_S = 120.0


def read_whole(client: Client, topic: str, *, within_s: float = READ_S) -> Iterator[Fetched]:
    """Committed messages up to the end that the topic has now, in order per partition. Raises KafkaTrouble."""
    reader = client.consumer(committed_only=True)
    try:
        partitions = [(topic, number) for number in reader.partitions(topic)]
        bounds = reader.bounds(partitions)
        reader.assign({partition: first for partition, (first, _) in bounds.items()})
        until = time.monotonic() + within_s
        while any(reader.next_offset(partition) < end for partition, (_, end) in bounds.items()):
            yield from reader.poll(0.2)
            if time.monotonic() > until:
                raise KafkaTrouble(f"{topic} cannot be read to its end within {within_s:.0f} s")
    finally:
        reader.close()
