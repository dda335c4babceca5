"""What stands still is told seldom, and rules of the judge find in it what they would find in every look."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.agents.collectors.base.still_points import FULL_NS, StillPoints
from whichrank.processors.entity.conditions import EntityState
from whichrank.processors.entity.loads import load_load_rules
from whichrank.processors.entity.metrics import take_samples
from whichrank.processors.entity.rules import load_rules
from whichrank.processors.entity.series import AskedOf
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.records import Identity, Point, Samples

BEGIN_NS, LOOK_NS = 1_790_000_000_000_000_000, 5_000_000_000
#: Metric, its attributes by device, and values that are well and that are not.
KINDS: Sequence[tuple[str, dict[str, str], tuple[float, ...]]] = (
    ("whichrank.gpu.throttled", {"whichrank.gpu.reason": "hw_thermal_slowdown"}, (0.0, 1.0)),
    ("whichrank.gpu.pcie.lanes.limit", {}, (16.0,)),
    ("whichrank.gpu.pcie.lanes", {}, (16.0, 8.0)),
    ("hw.network.up", {}, (1.0, 0.0)),
    ("hw.network.bandwidth.limit", {}, (5e10, 1e10)),
    ("whichrank.gpu.ecc.errors", {"error.type": "uncorrected", "whichrank.gpu.since": "driver_load"}, (0.0, 1.0, 2.0)),
    ("hw.temperature", {"hw.sensor_location": "gpu"}, (60.0, 61.0)),
)


def point(name: str, value: float, time_ns: int, device: int = 0, **about: str) -> Point:
    return Point(name=name, value=value, attributes={"hw.id": f"d{device}", **about}, time_ns=time_ns)


def looks(moves: Sequence[tuple[int, int, int, int]], count: int) -> list[list[Point]]:
    """moves: look, kind, device, and which of the kind's values it has from then on."""
    found = []
    state = {(kind, device): 0 for kind in range(len(KINDS)) for device in range(4)}
    for number in range(count):
        for look, kind, device, pick in moves:
            if look == number:
                state[kind, device] = pick % len(KINDS[kind][2])
        found.append(
            [
                Point(
                    name=KINDS[kind][0],
                    value=KINDS[kind][2][pick],
                    attributes={"hw.id": f"d{device}", **KINDS[kind][1]},
                    time_ns=BEGIN_NS + number * LOOK_NS,
                )
                for (kind, device), pick in state.items()
            ]
        )
    return found


def conditions_of(told: Sequence[Sequence[Point]]) -> list[tuple[str, float, float | None, float, float]]:
    """What each look changed: condition, since, until, lag and the time at which it was known."""
    state, asked_of, found = EntityState(), AskedOf(load_rules()), []
    for points in told:
        if points:
            samples = Samples(identity=Identity(node="n"), points=tuple(points))
            changed = take_samples(state, samples, asked_of(samples))
            found += [(c.key, c.since, c.until, c.lag_s, c.known) for c in changed]
    return sorted(found, key=str)


def test_what_stands_still_is_told_within_a_minute() -> None:
    still = StillPoints("node-7")
    times = []
    for number in range(100):
        told = still("gpu", [point("whichrank.gpu.speed", 1.98e9, BEGIN_NS + number * 2 * LOOK_NS)])
        times += [each.time_ns for each in told]
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert max(gaps) <= 60e9
    assert len(times) < 30


def test_all_of_a_node_is_told_in_one_look() -> None:
    still = StillPoints("node-7")
    told = []
    for number in range(2 * FULL_NS // LOOK_NS):
        now = BEGIN_NS + number * LOOK_NS
        told.append(len(still("network", [point("hw.network.up", 1.0, now, device) for device in range(8)])))
        told[-1] += len(still("gpu", [point("whichrank.gpu.speed", 1.0, now, device) for device in range(8)]))
    assert set(told) == {0, 16}


def test_what_was_not_told_goes_before_what_moved_on() -> None:
    still = StillPoints("node-7")
    seen = [point("hw.network.up", 1.0, BEGIN_NS + number * LOOK_NS) for number in range(4)]
    for each in seen:
        still("network", [each])
    down = point("hw.network.up", 0.0, BEGIN_NS + 4 * LOOK_NS)
    assert still("network", [down]) in ([seen[-1], down], [down])
    assert still("network", [replace(down, time_ns=BEGIN_NS + 5 * LOOK_NS)])  # it is down: told at each look


def test_a_load_and_who_watches_are_told_at_each_look() -> None:
    of_nodes = [name for name, rule in load_load_rules().items() if not rule.job]  # servers' exporters tell the others
    for name in (*of_nodes, "whichrank.collector.watching"):
        assert node_metrics()[name].each_look
        still = StillPoints("node-7")
        assert all(still("x", [point(name, 1.0, BEGIN_NS + number * LOOK_NS)]) for number in range(30))


@settings(max_examples=40, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 59), st.integers(0, len(KINDS) - 1), st.integers(0, 3), st.integers(0, 2)),
        max_size=12,
    ),
    node=st.sampled_from(["a", "b", "node-17", "x9"]),
)
def test_rules_conclude_the_same_at_the_same_time(moves: list[tuple[int, int, int, int]], node: str) -> None:
    every = looks(moves, 90)
    still = StillPoints(node)
    told = [still("all", points) for points in every]
    assert conditions_of(told) == conditions_of(every)
    assert sum(map(len, told)) < sum(map(len, every))
