"""Hypothesis strategies for records, shared by the codec tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from whichrank.telemetry.block import MAX_RANK
from whichrank.telemetry.records import Block, Event, Finding, Group, Identity, Incident
from whichrank.telemetry.tables import TABLES
from whichrank.telemetry.vocabulary import EventName, ExitState, Level, Op, Phase, ProcessState

#: Any text that UTF-8 can hold.
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TIME_NS = st.integers(0, (1 << 62) - 1)

identities = st.builds(
    Identity,
    cluster=TEXT,
    run=TEXT,
    job=TEXT,
    attempt=TEXT,
    world=TEXT,
    node=TEXT,
    rank=st.integers(-1, MAX_RANK - 1),
)
groups = st.builds(
    Group,
    uid=TEXT,
    name=TEXT,
    desc=TEXT,
    ranks=st.sampled_from(["", "0-3", "1,5,9-11"]),
    size=st.integers(0, 1 << 20),
    backend=TEXT,
    timeout_s=st.floats(0, 1e9),
    is_default=st.booleans(),
)

_SCALARS = st.one_of(TEXT, INT64, st.floats(allow_nan=False), st.booleans())
_FREE_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=5).map(tuple))
#: Names that no operator relies on the type of, some of them made to collide with names on the wire.
_FREE_NAMES = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(lambda name: "x-" + name),
    st.sampled_from(["step.phase", "attribute.x", "attribute.attribute.x", "monotonic_ns", "mesh.tp"]),
)
_ENUM_LIMITS: dict[str, int] = {
    "phase": max(Phase),
    "op": max(Op),
    "last_op": max(Op),
    "process_state": max(ProcessState),
    "level": max(Level),
    "exit_state": max(ExitState),
}

#: Events whose attributes none is required of.
FREE_EVENTS = (EventName.JOB_STARTED, EventName.RANK_STOPPED, EventName.AGENT_HEALTH, EventName.RANK_EXIT)


@st.composite
def events(draw: st.DrawFn) -> Event:
    attributes: dict[str, Any] = draw(st.dictionaries(_FREE_NAMES, _FREE_VALUES, max_size=8))
    attributes.update(
        draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "pid": st.integers(0, 1 << 32),
                    "exit_code": st.integers(-(1 << 62), 1 << 62),
                    "file": TEXT,
                    "core": st.booleans(),
                    "stack": TEXT,
                },
            )
        )
    )
    return Event(
        name=draw(st.sampled_from(FREE_EVENTS)),
        identity=draw(identities),
        time_ns=draw(TIME_NS),
        mono_ns=draw(TIME_NS),
        attributes=attributes,
    )


@st.composite
def blocks(draw: st.DrawFn, max_rows: int = 300) -> Block:
    name = draw(st.sampled_from(list(TABLES)))
    block_groups = tuple(draw(st.lists(groups, min_size=1, max_size=4)))
    dtype = TABLES[name]
    count = draw(st.integers(0, max_rows))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    rows = np.frombuffer(random.bytes(count * dtype.itemsize), dtype).copy()
    rows["rank"] %= MAX_RANK
    if "group" in (dtype.names or ()):
        rows["group"] %= len(block_groups)
    for column, highest in _ENUM_LIMITS.items():
        if column in (dtype.names or ()):
            rows[column] %= highest + 1
    return Block(
        name=name,
        identity=draw(identities),
        rows=rows,
        groups=block_groups,
        clock_offset_ns=draw(st.integers(1 - (1 << 62), (1 << 62) - 1)),
        time_ns=draw(TIME_NS),
    )


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), INT64, st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
findings = st.builds(
    Finding,
    identity=identities,
    key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    cleared=st.booleans(),
    time_ns=TIME_NS,
    body=st.dictionaries(TEXT, _JSON, max_size=5),
)
incidents = st.builds(
    Incident,
    document=st.fixed_dictionaries(
        {"id": TEXT, "revision": st.integers(1, 100), "change": st.sampled_from(["opened", "updated", "resolved"])},
        optional={"confidence": st.floats(0, 1), "notes": _JSON},
    ),
)
