"""Keys lead where Kafka's own hash leads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some
from kafka.partitioner.default import murmur2 as theirs

from whichrank.transport.partition_keys import key_of_each, murmur2


@given(some.binary(max_size=40))
def test_the_hash_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == theirs(key) & 0xFFFFFFFF


@given(some.integers(1, 50))
def test_there_is_a_key_for_each_partition(partitions: int) -> None:
    keys = key_of_each(partitions, "x")
    assert [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys] == list(range(partitions))
