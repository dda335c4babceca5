"""Rows of open steps: put together late or at once, they read the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.job.columns.packing import unpack
from whichrank.processors.job.columns.rows import pick, put
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.micro_batch import Gathered, arrivals_by_table, ranks_by_flush
from whichrank.processors.job.state.open_rows import OpenChunk, OpenRows
from whichrank.processors.job.state.open_step_rows import read_open
from whichrank.telemetry.tables import COLLECTIVES, NO_GROUP
from whichrank.telemetry.vocabulary import EventName

TIMES = ("enqueued_ns", "done_ns")
LOOKUPS = [np.array([3, 1, NO_GROUP], np.uint16), np.array([0, NO_GROUP], np.uint16)]


def rows_of(first: int, size: int, node: int = 0) -> np.ndarray:
    rows = np.zeros(size, COLLECTIVES)
    rows["seq"] = np.arange(first, first + size)
    rows["rank"] = 8 * node + rows["seq"] % 8
    rows["enqueued_ns"] = 10 + rows["seq"]
    rows["done_ns"] = np.where(rows["seq"] % 3 == 0, 0, 20 + rows["seq"])  # 0: not done
    rows["group"] = np.where(rows["seq"] % 5 == 0, NO_GROUP, rows["seq"] % (LOOKUPS[node].size - 1))
    return rows


def flush_of(rows: np.ndarray, node: int) -> Gathered:
    return Gathered(
        node=f"n{node}",
        stamp_ns=1,
        closed_ns=1,
        offset_ns=1000 * (node + 1),
        groups=LOOKUPS[node],
        tables=((EventName.BLOCK_COLLECTIVES, rows.tobytes()),),
    )


def expected(rows: np.ndarray, node: int) -> np.ndarray:
    rows = rows.copy()
    for row in rows:
        for name in TIMES:
            row[name] += 1000 * (node + 1) if row[name] else 0
        row["group"] = NO_GROUP if row["group"] == NO_GROUP else LOOKUPS[node][row["group"]]
    return rows


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1)), min_size=1, max_size=12))
def test_flushes_together_are_in_the_terms_of_the_job_as_one_by_one(sizes: list[tuple[int, int]]) -> None:
    parts = [(rows_of(20 * number, size, node), node) for number, (size, node) in enumerate(sizes)]
    ((name, came),) = arrivals_by_table([flush_of(rows, node) for rows, node in parts])
    assert name is EventName.BLOCK_COLLECTIVES
    assert np.array_equal(came.rows, np.concatenate([expected(rows, node) for rows, node in parts]))
    assert came.of_flush.tolist() == [place for place, (rows, _) in enumerate(parts) for _ in rows]
    found = [(flush.node, ranks.tolist()) for flush, ranks in ranks_by_flush(came)]
    assert found == [(f"n{node}", rows["rank"].tolist()) for rows, node in parts]


@given(
    messages=st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=12),
    restart_at=st.integers(0, 12),
)
def test_rows_read_the_same_whenever_they_are_read(messages: list[tuple[int, bool]], restart_at: int) -> None:
    open_rows = OpenRows(COLLECTIVES)
    parts: list[np.ndarray] = []
    first = 1
    for turn, (size, read_now) in enumerate(messages):
        if turn == restart_at:  # another working copy, from what was to be saved
            saved = open_rows.take_everything()
            open_rows = OpenRows(COLLECTIVES)
            for part in saved:
                open_rows.add(part, saved=True)
        parts.append(rows_of(first, size))
        open_rows.add(parts[-1])
        first += size
        if read_now:
            open_rows.all()
    wanted = np.concatenate(parts) if parts else np.zeros(0, COLLECTIVES)
    assert open_rows.size == wanted.size
    assert np.array_equal(open_rows.all(), wanted)


def test_what_is_kept_is_all_there_is() -> None:
    open_rows = OpenRows(COLLECTIVES)
    open_rows.add(rows_of(1, 10))
    rows = open_rows.all()
    last = rows[rows["seq"] > 8].copy()
    open_rows.keep(last)
    open_rows.add(rows_of(11, 1))
    assert open_rows.all()["seq"].tolist() == [9, 10, 11]
    assert np.array_equal(open_rows.all()[:2], last)


def test_what_was_added_is_handed_out_for_saving_once() -> None:
    open_rows = OpenRows(COLLECTIVES)
    first, second = rows_of(1, 2), rows_of(3, 2)
    open_rows.add(first)
    assert [rows is first for rows in open_rows.take_unsaved()] == [True]
    open_rows.add(second)
    open_rows.all()
    assert [rows is second for rows in open_rows.take_unsaved()] == [True]
    assert list(open_rows.take_unsaved()) == []


def test_a_row_of_the_state_is_written_once_and_reads_as_its_parts() -> None:
    chunk, parts = OpenChunk(), [rows_of(1, 5), rows_of(6, 3)]
    chunk.parts += [("rows", part) for part in parts]
    assert not chunk.is_written
    _, arrays = unpack(chunk.write())
    assert chunk.is_written, "what comes after it goes into the next row"
    assert not chunk.parts
    for number, part in enumerate(parts):
        assert np.array_equal(arrays[f"rows/{number}"], part)


@pytest.mark.parametrize("lookup", [None, LOOKUPS[0]])
def test_open_rows_of_an_earlier_release_are_put_in_the_terms_of_the_job(lookup: np.ndarray | None) -> None:
    """It kept them as they came, with what puts them there beside them."""
    job, rows = JobState(job="j"), rows_of(1, 7)
    lookups = {} if lookup is None else {"lookup/0": lookup}
    read_open(job, {"rows/0": rows, **lookups, "offsets": np.array([1000])})
    wanted = expected(rows, 0)
    if lookup is None:
        wanted["group"] = rows["group"]
    assert np.array_equal(job.open_steps.calls.all(), wanted)
    assert list(job.open_steps.calls.take_unsaved()) == []


@given(st.lists(st.integers(0, 9), max_size=12), st.booleans())
def test_rows_are_moved_as_numpy_would(chosen: list[int], is_mask: bool) -> None:
    rows = rows_of(1, 10)
    places = np.array(sorted(set(chosen)), np.intp)
    which = np.isin(np.arange(10), places) if is_mask else places
    assert np.array_equal(pick(rows, which), rows[which])
    target = np.zeros(12, COLLECTIVES)
    put(target, places, pick(rows, places))
    assert np.array_equal(target[places], rows[places])
    assert not target[[place for place in range(12) if place not in places]]["seq"].any()
