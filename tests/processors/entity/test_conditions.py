"""The row of an entity: what is written is read, and so is what a release before has written."""

from __future__ import annotations

import json
import math

from whichrank.processors.entity.conditions import Condition, EntityState


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
    found.series = {"x\ny": [1.5, 1e18 / 3, 0.0, 0.0, 0.0, math.nan], "z": [0.0] * 5 + [-1.0]}
    return found


def test_what_is_written_is_read() -> None:
    found = EntityState.unpack(state().pack())
    assert found.conditions == state().conditions
    assert (found.watching, found.limits) == (state().watching, state().limits)
    assert repr(found.series) == repr(state().series)
    found.series["new"] = [4.0] * 6
    assert list(EntityState.unpack(found.pack()).series) == ["x\ny", "z", "new"]
    assert EntityState.unpack(EntityState().pack()) == EntityState()


def test_a_row_of_the_release_before_is_read() -> None:
    old = {"conditions": [], "ranks": {}, "series": {"x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}}
    assert EntityState.unpack(json.dumps(old).encode()).series == old["series"]
