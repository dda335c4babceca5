"""Calls that were open at a flush: those that a list of all of them, gone through one by one, would have."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.job.state.open_calls import MOST_OPEN_CALLS, OpenCalls
from whichrank.telemetry.tables import COLLECTIVES

NODES, RANKS_PER_NODE = 3, 2


def rows_of(node: int, drawn: list[tuple[int, int]], *, done_ns: int) -> np.ndarray:
    rows = np.zeros(len(drawn), COLLECTIVES)
    for row, (rank, seq) in zip(rows, drawn, strict=True):
        row["rank"], row["seq"], row["done_ns"] = node * RANKS_PER_NODE + rank, seq, done_ns
    return rows


message = st.tuples(
    st.integers(0, NODES - 1),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, RANKS_PER_NODE - 1), st.integers(1, 9)), min_size=1, max_size=5),
)


@given(messages=st.lists(message, max_size=20), restart_at=st.integers(0, 20), taken_at=st.integers(0, 20))
def test_as_one_by_one(messages: list[tuple[int, bool, list[tuple[int, int]]]], restart_at: int, taken_at: int) -> None:
    calls = OpenCalls()
    expected: list[tuple[int, int, int, int]] = []
    for stamp, (node, ends, drawn) in enumerate(messages):
        if stamp == restart_at:
            kept, calls = calls.as_array(), OpenCalls()
            calls.put_back(kept)
        rows = rows_of(node, drawn, done_ns=int(ends))
        if ends:
            last: dict[int, int] = {}
            for rank, seq in drawn:
                whose = node * RANKS_PER_NODE + rank
                last[whose] = max(seq, last.get(whose, 0))
            expected = [call for call in expected if call[2] > last.get(call[0], 0)]
            calls.end(rows)
        else:
            expected += [(node * RANKS_PER_NODE + rank, 0, seq, stamp) for rank, seq in drawn]
            assert calls.add(rows, np.full(rows.size, stamp))
        if stamp == taken_at:
            old = [call for call in expected if call[3] <= stamp - 2]
            assert sorted(map(tuple, calls.take_seen_until(stamp - 2).tolist())) == sorted(old)
            expected = [call for call in expected if call[3] > stamp - 2]
        assert sorted(map(tuple, calls.as_array().tolist())) == sorted(expected)
        assert len(calls) == len(expected)
        if expected:
            assert calls.first_stamp_ns() == min(call[3] for call in expected)


def test_there_is_room_for_so_many() -> None:
    calls = OpenCalls()
    full = rows_of(0, [(0, seq) for seq in range(MOST_OPEN_CALLS)], done_ns=0)
    assert calls.add(full, np.full(full.size, 1))
    assert not calls.add(full[:1], np.array([2]))
    assert len(calls) == MOST_OPEN_CALLS
