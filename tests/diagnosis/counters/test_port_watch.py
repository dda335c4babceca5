"""Conditions of ports: when they begin, get worse and end; the same after packing; bounded."""

from __future__ import annotations

import json
import random

import pytest

from whichrank.diagnosis.counters.port_conditions import ChangeKind, PortConditionSpan
from whichrank.diagnosis.counters.port_watch import MAX_PORTS, PortWatch, conditions_of
from whichrank.diagnosis.counters.rules import ExpectedPorts, Grade
from whichrank.diagnosis.counters.sample import Layer, LinkRate, LinkState, NodeSample, PortSample
from whichrank.telemetry.vocabulary import Scope

UP, DOWN = LinkState.ACTIVE, LinkState.DOWN


def port(state: LinkState = UP, gbps: float = 400, device: str = "mlx5_0", **counters: int | None) -> PortSample:
    return PortSample(
        device=device, layer=Layer.INFINIBAND, state=state, rate=LinkRate(gbps=gbps, lanes=4), counters=counters
    )


def look(t_s: float, *ports: PortSample) -> NodeSample:
    return NodeSample(t_s=t_s, ports=ports)


def series(*states: tuple[float, LinkState]) -> list[NodeSample]:
    return [look(t_s, port(state)) for t_s, state in states]


def names(found: list[PortConditionSpan]) -> list[str]:
    return [condition.name for condition in found]


def test_nothing_is_wrong_with_a_quiet_port() -> None:
    quiet = [look(10.0 * i, port(link_downed=3, symbol_error=7, np_cnp_sent=50 * i)) for i in range(1000)]
    assert conditions_of(quiet) == []


def test_a_drop_begins_as_a_warning_and_becomes_critical_after_four_minutes() -> None:
    watch = PortWatch()
    said = [
        (t_s, change.kind, change.condition.grade)
        for sample in series((0, UP), (60, DOWN), (120, DOWN), (299, DOWN), (300, DOWN), (360, DOWN), (400, UP))
        for t_s, change in ((sample.t_s, each) for each in watch.take(sample))
    ]
    assert said == [
        (60, ChangeKind.BEGAN, Grade.WARN),
        (300, ChangeKind.WORSENED, Grade.CRITICAL),
        (400, ChangeKind.ENDED, Grade.CRITICAL),
    ]


def test_a_port_that_never_worked_is_no_fault() -> None:
    (found,) = conditions_of(series((0, DOWN), (1000, DOWN)))
    assert (found.name, found.grade, found.until_s) == ("link_down", Grade.INFO, None)


def test_link_downed_that_moves_is_no_drop() -> None:
    bouncing = [look(0, port())] + [look(60.0 * i, port(DOWN, link_downed=i)) for i in range(1, 11)]
    dropped = [found for found in conditions_of(bouncing) if found.name == "link_down"]
    assert dropped[0].grade is Grade.WARN


def test_one_flap_is_tolerated_and_three_are_not() -> None:
    cycle = [(0, UP), (10, DOWN), (40, DOWN), (50, UP)]
    one = [(float(t_s), state) for t_s, state in cycle]
    assert "link_flapping" not in names(conditions_of(series(*one)))
    three = [(t_s + 60.0 * i, state) for i in range(3) for t_s, state in cycle]
    (found,) = [each for each in conditions_of(series(*three)) if each.name == "link_flapping"]
    assert (found.value, found.since_s, found.until_s) == (3, 50, None)


def test_a_flapping_link_is_steady_again_after_ten_quiet_minutes_and_told_once() -> None:
    cycle = [(0, UP), (10, DOWN), (40, DOWN), (50, UP)]
    many = [(t_s + 60.0 * i, state) for i in range(6) for t_s, state in cycle]
    quiet = [(many[-1][0] + 60.0 * i, UP) for i in range(1, 30)]
    found = [each for each in conditions_of(series(*many, *quiet)) if each.name == "link_flapping"]
    assert len(found) == 1
    assert found[0].until_s == pytest.approx(many[-1][0] + 600, abs=60)


def test_flaps_between_two_looks_are_known_from_the_counter() -> None:
    samples = [look(10.0 * i, port(link_downed=min(i, 6))) for i in range(10)]
    found = {each.name: each for each in conditions_of(samples)}
    assert found["link_flapping"].grade is Grade.CRITICAL
    assert found["link_downed"].grade is Grade.WARN


def test_an_unknown_state_neither_ends_nor_prolongs() -> None:
    unknown = LinkState.UNKNOWN
    assert conditions_of(series((0, UP), (10, unknown), (9999, unknown), (10000, UP))) == []
    (found,) = conditions_of(series((0, UP), (10, DOWN), (20, unknown), (30, unknown)))
    assert found.until_s is None


def test_error_rates_begin_and_end() -> None:
    climbing = [look(10.0 * i, port(port_rcv_errors=200 * min(i, 5))) for i in range(100)]
    (found,) = conditions_of(climbing)
    assert (found.name, found.since_s, found.value, found.unit) == ("port_rcv_errors", 10, 20, "per second")
    assert found.until_s == 650, "ten minutes after the last window beyond the limit"


def test_half_rate_is_critical_and_three_quarters_a_warning() -> None:
    for gbps, grade in ((200.0, Grade.CRITICAL), (300.0, Grade.WARN)):
        samples = [look(0, port()), look(10, port(gbps=gbps)), look(20, port(gbps=gbps)), look(30, port())]
        (found,) = conditions_of(samples)
        assert (found.name, found.grade, found.since_s, found.until_s) == ("rate_degraded", grade, 10, 30)


def test_a_port_below_what_the_node_should_have_is_degraded_from_the_first_look() -> None:
    expected = ExpectedPorts(ports=1, gbps=400)
    found = conditions_of([look(0, port(gbps=200))], expected=expected)
    assert sorted(names(found)) == ["ports_too_few", "rate_degraded"]
    assert {each.scope for each in found} == {Scope.NODE, Scope.LINK}


def test_a_port_that_is_gone_for_three_looks_is_missing_and_may_come_back() -> None:
    both = (port(), port(device="mlx5_1"))
    samples = [look(0, *both), look(1, both[0]), look(2, both[0]), look(3, both[0]), look(4, *both)]
    assert names(conditions_of(samples[:3])) == []
    (found,) = conditions_of(samples)
    assert (found.name, found.port, found.since_s, found.until_s) == ("port_missing", "mlx5_1/1", 3, 4)


def test_a_counter_at_the_end_of_its_width_says_so_once() -> None:
    samples = [look(10.0 * i, port(local_link_integrity_errors=15)) for i in range(5)]
    (found,) = conditions_of([*samples, look(60, port(local_link_integrity_errors=0))])
    assert (found.name, found.grade) == ("counter_full:local_link_integrity_errors", Grade.INFO)
    assert found.until_s == 60


def test_looks_out_of_order_change_nothing() -> None:
    watch = PortWatch()
    watch.take(look(10, port()))
    assert watch.take(look(5, port(DOWN))) == []
    assert watch.take(look(10, port(DOWN))) == []
    assert watch.ignored_looks == 2


def random_looks(seed: int, count: int) -> list[NodeSample]:
    draw = random.Random(seed)
    t_s, counters = 0.0, {"link_downed": 0, "symbol_error": 0, "port_rcv_errors": 0, "carrier_changes": 0}
    samples = []
    for _ in range(count):
        t_s += draw.choice((1.0, 10.0, 30.0, 300.0, -5.0))
        for name in counters:
            counters[name] = max(0, counters[name] + draw.choice((0, 0, 0, 1, 5000, -(10**6))))
        values = {name: draw.choice((value, value, value, None)) for name, value in counters.items()}
        ports = [port(draw.choice(list(LinkState)), draw.choice((400, 200, 0)), f"mlx5_{i}", **values) for i in (0, 1)]
        samples.append(look(t_s, *ports[: draw.choice((0, 1, 2, 2, 2))]))
    return samples


def test_packing_at_any_look_changes_nothing() -> None:
    for seed in range(20):
        plain, packed = PortWatch(), PortWatch()
        for sample in random_looks(seed, 60):
            packed = PortWatch.unpack(json.loads(json.dumps(packed.pack())))
            assert plain.take(sample) == packed.take(sample)
        assert plain.open_conditions == packed.open_conditions


def test_changes_tell_a_whole_story() -> None:
    """A condition begins before it worsens or ends; what is open is what began and did not end."""
    for seed in range(50):
        watch = PortWatch(expected=ExpectedPorts(ports=2, gbps=400))
        standing: set[tuple[str, str]] = set()
        for sample in random_looks(seed, 60):
            for change in watch.take(sample):
                key = change.condition.key
                assert (key in standing) is (change.kind is not ChangeKind.BEGAN)
                assert (change.condition.until_s is not None) is (change.kind is ChangeKind.ENDED)
                (standing.discard if change.kind is ChangeKind.ENDED else standing.add)(key)
        assert {condition.key for condition in watch.open_conditions} == standing


def test_a_flood_of_ports_is_bounded() -> None:
    watch = PortWatch()
    watch.take(look(0, *(port(device=f"veth{i}") for i in range(MAX_PORTS + 100))))
    assert watch.ignored_looks == 100
    assert len(watch.pack()["ports"]) == MAX_PORTS
