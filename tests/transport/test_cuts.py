"""Cuts: whatever was fetched when, everybody reads the same order, and no partition runs ahead of one that lags."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.transport.cuts import Queue, choose_cut, in_order, pack_ends, unpack_ends
from whichrank.transport.kafka_client import Fetched, Partition

P0, P1, P2 = ("blocks", 0), ("blocks", 1), ("logs", 0)


def message(partition: Partition, offset: int, stamp_ns: int, size: int = 1) -> Fetched:
    return Fetched(
        topic=partition[0],
        partition=partition[1],
        offset=offset,
        key=b"",
        value=b"x" * size,
        stamp_ns=stamp_ns,
        appended_by_broker=True,
    )


def queue(partition: Partition, stamps: list[int], *, drained: bool, first: int = 0, deaf: bool = False) -> Queue:
    messages = [message(partition, first + n, stamp) for n, stamp in enumerate(stamps)]
    return Queue(messages=messages, is_drained=drained, is_deaf=deaf)


class TestWhereACutLies:
    def test_everything_that_is_here_when_all_is_here(self) -> None:
        queues = {P0: queue(P0, [5, 9], drained=True), P1: queue(P1, [1], drained=True, first=7)}
        assert choose_cut(queues) == {P0: 2, P1: 8}

    def test_nothing_where_nothing_is(self) -> None:
        assert choose_cut({P0: Queue(is_drained=True), P1: Queue()}) == {}
        assert choose_cut({}) == {}

    def test_no_further_than_a_partition_that_lags_has_been_heard(self) -> None:
        """An hour of one partition must not pass before the first second of another."""
        queues = {P0: queue(P0, [10, 20, 3600], drained=True), P1: queue(P1, [15, 18], drained=False)}
        assert choose_cut(queues) == {P0: 1, P1: 2}

    def test_a_partition_that_was_not_heard_at_all_holds_the_others(self) -> None:
        assert choose_cut({P0: queue(P0, [10], drained=True), P1: Queue()}) == {}

    def test_one_that_does_not_answer_holds_nobody(self) -> None:
        assert choose_cut({P0: queue(P0, [10], drained=True), P1: Queue(is_deaf=True)}) == {P0: 1}

    def test_what_was_taken_before_counts_as_heard(self) -> None:
        lagging = Queue(taken_ns=12)
        assert choose_cut({P0: queue(P0, [10, 20], drained=True), P1: lagging}) == {P0: 1}

    def test_it_is_bounded_in_messages_and_bytes(self) -> None:
        queues = {P0: queue(P0, list(range(100)), drained=True), P1: queue(P1, list(range(100)), drained=True)}
        assert sum(choose_cut(queues, messages=30).values()) == 30
        large = {P0: Queue(messages=[message(P0, n, n, 1000) for n in range(50)], is_drained=True)}
        assert choose_cut(large, size_bytes=10_000) == {P0: 10}
        assert choose_cut(large, size_bytes=10) == {P0: 1}, "one in any case, or nothing would ever go on"


class TestTheOrderInside:
    def test_by_stamp_then_by_place(self) -> None:
        taken = {P1: (0, [message(P1, 0, 5), message(P1, 1, 7)]), P0: (0, [message(P0, 3, 5), message(P0, 4, 9)])}
        assert [(m.partition, m.offset) for m in in_order(taken)] == [(0, 3), (1, 0), (1, 1), (0, 4)]

    def test_a_stamp_that_goes_back_keeps_its_partitions_order(self) -> None:
        """Another broker leads the partition, and its clock is behind."""
        taken = {P0: (0, [message(P0, 0, 50), message(P0, 1, 10)]), P1: (0, [message(P1, 0, 30)])}
        assert [(m.partition, m.offset) for m in in_order(taken)] == [(1, 0), (0, 0), (0, 1)]

    def test_a_stamp_before_the_last_cut_counts_as_that(self) -> None:
        taken = {P0: (40, [message(P0, 9, 10)]), P1: (0, [message(P1, 0, 30)])}
        assert [m.partition for m in in_order(taken)] == [1, 0]


stamps = st.lists(st.integers(0, 60), max_size=15).map(sorted)


@settings(max_examples=200)
@given(st.lists(stamps, min_size=1, max_size=3), st.randoms(use_true_random=False), st.integers(1, 9))
def test_however_it_is_fetched_every_reader_of_the_cuts_sees_the_same(
    logs: list[list[int]], drawn: random.Random, limit: int
) -> None:
    """One proposes cuts while messages trickle in; another reads by them, with everything at hand."""
    partitions = [P0, P1, P2][: len(logs)]
    whole = {p: [message(p, n, stamp) for n, stamp in enumerate(log)] for p, log in zip(partitions, logs, strict=True)}
    queues = {partition: Queue() for partition in partitions}
    fetched = dict.fromkeys(partitions, 0)
    cuts: list[dict[Partition, int]] = []
    led: list[Fetched] = []
    ends = dict.fromkeys(partitions, 0)
    for turn in range(400):
        if all(ends[p] == len(whole[p]) for p in partitions):
            break
        for p in partitions:
            more = drawn.randint(0, 4) if turn < 200 else 1  # it trickles, but it comes
            queues[p].messages += whole[p][fetched[p] : fetched[p] + more]
            fetched[p] = min(len(whole[p]), fetched[p] + more)
            queues[p].is_drained = fetched[p] == len(whole[p])
        cut = choose_cut(queues, messages=limit)
        if not cut:
            continue
        cuts.append(cut)
        led += take(queues, ends, cut)
    assert all(ends[p] == len(whole[p]) for p in partitions), "everything was taken in the end"
    followers = {p: Queue(messages=list(whole[p])) for p in partitions}
    followed: list[Fetched] = []
    follower_ends = dict.fromkeys(partitions, 0)
    for cut in cuts:
        followed += take(followers, follower_ends, cut)
    assert followed == led
    assert [m.stamp_ns for m in led] == sorted(m.stamp_ns for m in led), "and time never goes back"


def take(queues: dict[Partition, Queue], ends: dict[Partition, int], cut: dict[Partition, int]) -> list[Fetched]:
    taken = {}
    for partition, end in cut.items():
        queue, count = queues[partition], end - ends[partition]
        taken[partition] = (queue.taken_ns, queue.messages[:count])
        queue.messages = queue.messages[count:]
        queue.taken_ns = max([queue.taken_ns, *(m.stamp_ns for m in taken[partition][1])])
        ends[partition] = end
    return in_order(taken)


@given(st.dictionaries(st.tuples(st.text(max_size=8), st.integers(0, 99)), st.integers(0, 1 << 62), max_size=6))
def test_ends_come_back_as_they_were_packed(ends: dict[Partition, int]) -> None:
    assert unpack_ends(pack_ends(ends)) == ends
    again = dict(itertools.islice(reversed(ends.items()), len(ends)))
    assert pack_ends(again) == pack_ends(ends)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"t": 3}', b'{"t": {"0": -1}}', b'{"t": {"0": "x"}}', b'{"t": {"x": 1}}', b"\xff"]
)
def test_what_is_no_cut_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unpack_ends(text)
