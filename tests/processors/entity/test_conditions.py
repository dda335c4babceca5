"""The row of an entity: what is written is read, and so is what a release before has written."""

from __future__ import annotations

import math

import numpy as np

from whichrank.processors.entity.conditions import Condition, EntityState
from whichrank.processors.entity.series_table import SeriesTable


def state() -> EntityState:
    condition = Condition(
        name="c",
        device_kind="gpu",
        device="g",
        severity="info",
        domain="d",
        scope="gpu",
        action=None,
        explains=[],
        since=1.0,
        last=2.0,
        text="a line\nand another",
        source="kernel",
    )
    found = EntityState(watching={"gpu": True}, limits={"a": math.inf})
    found.add(condition)
    found.series = SeriesTable(["x\ny", "z"], np.array([[1.5, 1e18 / 3, 0.0, 0.0, 0.0, math.nan], [0.0] * 5 + [-1.0]]))
    return found


def test_what_is_written_is_read() -> None:
    found = EntityState.unpack(state().pack(), state().pack_still())
    assert found.conditions == state().conditions
    assert (found.watching, found.limits) == (state().watching, state().limits)
    assert found.series == state().series
    found.series.add("new")
    again = EntityState.unpack(found.pack(), found.pack_still())
    assert list(again.series) == ["x\ny", "z", "new"]
    assert again.series == found.series
    assert EntityState.unpack(EntityState().pack(), EntityState().pack_still()) == EntityState()


def test_a_row_of_the_release_before_is_read() -> None:
    one_row = b'{"conditions":[],"watching":{"gpu":true}}\n["x"]\n' + np.arange(6.0).tobytes()
    found = EntityState.unpack(one_row)
    assert (found.series, found.watching) == (SeriesTable(["x"], np.arange(6.0).reshape(1, 6)), {"gpu": True})
