"""Rows of open steps: settled late or at once, they read the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.job.columns.packing import unpack
from whichrank.processors.job.columns.rows import pick, put
from whichrank.processors.job.state.open_rows import Arrived, OpenChunk, OpenRows
from whichrank.telemetry.tables import COLLECTIVES, NO_GROUP

TIMES = ("enqueued_ns", "done_ns")
LOOKUPS = [np.array([3, 1, NO_GROUP], np.uint16), np.array([0, NO_GROUP], np.uint16)]


def arrived(first: int, size: int, node: int) -> Arrived:
    rows = np.zeros(size, COLLECTIVES)
    rows["seq"] = np.arange(first, first + size)
    rows["enqueued_ns"] = 10 + rows["seq"]
    rows["done_ns"] = np.where(rows["seq"] % 3 == 0, 0, 20 + rows["seq"])  # 0: not done
    rows["group"] = np.where(rows["seq"] % 5 == 0, NO_GROUP, rows["seq"] % (LOOKUPS[node].size - 1))
    return Arrived(rows=rows, offset_ns=1000 * (node + 1), groups=LOOKUPS[node])


def expected(part: Arrived) -> np.ndarray:
    rows: np.ndarray = part.rows.copy()
    for row in rows:
        for name in TIMES:
            row[name] += part.offset_ns if row[name] else 0
        row["group"] = NO_GROUP if row["group"] == NO_GROUP else LOOKUPS[part.offset_ns // 1000 - 1][row["group"]]
    return rows


@given(
    messages=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1), st.booleans()), max_size=12),
    restart_at=st.integers(0, 12),
)
def test_rows_read_the_same_whenever_they_are_settled(messages: list[tuple[int, int, bool]], restart_at: int) -> None:
    open_rows = OpenRows(COLLECTIVES, TIMES)
    parts: list[Arrived] = []
    first = 1
    for turn, (size, node, read_now) in enumerate(messages):
        if turn == restart_at:  # another working copy, from what was to be saved
            saved = open_rows.take_everything()
            open_rows = OpenRows(COLLECTIVES, TIMES)
            for part in saved:
                open_rows.add(part, saved=True)
        parts.append(arrived(first, size, node))
        open_rows.add(parts[-1])
        first += size
        if read_now:
            open_rows.all()
    wanted = np.concatenate([expected(part) for part in parts]) if parts else np.zeros(0, COLLECTIVES)
    assert open_rows.size == wanted.size
    assert np.array_equal(open_rows.all(), wanted)


def test_what_is_kept_is_all_there_is() -> None:
    open_rows = OpenRows(COLLECTIVES, TIMES)
    open_rows.add(arrived(1, 10, 0))
    rows = open_rows.all()
    last = rows[rows["seq"] > 8].copy()
    open_rows.keep(last)
    open_rows.add(arrived(11, 1, 0))
    assert open_rows.all()["seq"].tolist() == [9, 10, 11]
    assert np.array_equal(open_rows.all()[:2], last)


def test_each_message_is_handed_out_for_saving_once() -> None:
    open_rows = OpenRows(COLLECTIVES, TIMES)
    first, second = arrived(1, 2, 0), arrived(3, 2, 1)
    open_rows.add(first)
    assert open_rows.take_unsaved() == [first]
    open_rows.add(second)
    open_rows.all()
    assert open_rows.take_unsaved() == [second]
    assert open_rows.take_unsaved() == []


def test_a_row_of_the_state_is_written_once_and_reads_as_its_messages() -> None:
    chunk, parts = OpenChunk(), [arrived(1, 5, 0), arrived(6, 3, 1)]
    chunk.parts += [("rows", part) for part in parts]
    assert not chunk.is_written
    _, arrays = unpack(chunk.write())
    assert chunk.is_written, "what comes after it goes into the next row"
    assert not chunk.parts
    assert arrays["offsets"].tolist() == [1000, 2000]
    for number, part in enumerate(parts):
        assert np.array_equal(arrays[f"rows/{number}"], part.rows)
        assert part.groups is not None
        assert np.array_equal(arrays[f"lookup/{number}"], part.groups)


@given(st.lists(st.integers(0, 9), max_size=12), st.booleans())
def test_rows_are_moved_as_numpy_would(chosen: list[int], is_mask: bool) -> None:
    rows = arrived(1, 10, 0).rows
    places = np.array(sorted(set(chosen)), np.intp)
    which = np.isin(np.arange(10), places) if is_mask else places
    assert np.array_equal(pick(rows, which), rows[which])
    target = np.zeros(12, COLLECTIVES)
    put(target, places, pick(rows, places))
    assert np.array_equal(target[places], rows[places])
    assert not target[[place for place in range(12) if place not in places]]["seq"].any()
