"""Keys that lead a message into a certain partition: our producers choose partitions by the key alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, as Java's and every other client of ours has it, unsigned."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    value = (0x9747B28C ^ len(key)) & mask
    whole = len(key) // 4 * 4
    for place in range(0, whole, 4):
        word = int.from_bytes(key[place : place + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    if rest := key[whole:]:
        value = ((value ^ int.from_bytes(rest, "little")) * multiplier) & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


def key_of_each(partitions: int, prefix: str) -> Sequence[bytes]:
    """For each partition of a topic that has so many a key that leads there. prefix: with which all begin."""
    found: dict[int, bytes] = {}
    for number in count():
        key = f"{prefix}{number}".encode()
        found.setdefault((murmur2(key) & 0x7FFFFFFF) % partitions, key)
        if len(found) == partitions:
            return [found[partition] for partition in range(partitions)]
    raise AssertionError("numbers end")
