"""Rows of a block are checked in one pass over their bytes where that decides, and column by column where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.telemetry.block import _ENUMS, DESCRIPTORS, MAX_RANK, BlockError, read_rows
from whichrank.telemetry.tables import TABLES
from whichrank.telemetry.vocabulary import EventName

GROUPS = 300
#: Beside what is allowed, and where one byte does not tell.
RANKS = (0, 255, 256, 65_536, MAX_RANK - 1, MAX_RANK, 1 << 31)
INDICES = (0, 43, 44, 255, 256, GROUPS - 1, GROUPS, 65_535)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(TABLES)))
def test_rows_are_refused_or_changed_as_each_column_says(data: st.DataObject, name: EventName) -> None:
    rows = np.zeros(data.draw(st.integers(1, 4)), TABLES[name])
    enums = _ENUMS[name]
    for row in rows:
        row["rank"] = data.draw(st.sampled_from(RANKS))
        if "group" in rows.dtype.names:
            row["group"] = data.draw(st.sampled_from(INDICES))
        for column, highest, _ in enums:
            row[column] = data.draw(st.sampled_from((0, highest, highest + 1, 255)))
    too_high = (rows["rank"] >= MAX_RANK).any() or ("group" in rows.dtype.names and (rows["group"] >= GROUPS).any())
    body = rows.tobytes()
    if too_high:
        with pytest.raises(BlockError):
            read_rows(name, DESCRIPTORS[name], rows.size, body, GROUPS)
        return
    expected = rows.copy()
    for column, highest, instead in enums:
        expected[column][rows[column] > highest] = instead
    assert read_rows(name, DESCRIPTORS[name], rows.size, body, GROUPS).tobytes() == expected.tobytes()
