"""The tables of limits are whole, and say what belongs to a product."""

from __future__ import annotations

import pytest

from whichrank.diagnosis.counters.rules import (
    CounterRule,
    RuleKind,
    counter_rules,
    expected_by_product,
    expected_ports,
    link_rules,
)


def test_every_rule_can_fire_and_says_what_it_shows() -> None:
    rules = counter_rules()
    assert len(rules) >= 12
    for rule in rules:
        assert rule.shows, rule.name
        assert rule.quiet_s > 0, rule.name
        assert len(set(rule.counters)) == len(rule.counters) > 0, rule.name
        if rule.kind is RuleKind.RATE:
            assert rule.quiet_s >= rule.unit_s, f"{rule.name} would end before its next window"
        if rule.saturates_at is not None and rule.kind is RuleKind.DELTA:
            assert rule.limit < rule.saturates_at, rule.name


def test_a_rate_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs per"):
        CounterRule(name="x", counters=("x",), kind=RuleKind.RATE, limit=1)


def test_links() -> None:
    rules = link_rules()
    assert rules.flap_down_s < rules.drop_s < rules.flap_window_s


@pytest.mark.parametrize(
    ("gpu", "ports", "gbps"),
    [("NVIDIA H100 80GB HBM3", 8, 400), ("NVIDIA A100-SXM4-80GB", 1, 200), ("GB200", 8, 400), ("h200", 8, 400)],
)
def test_what_belongs_to_a_gpu(gpu: str, ports: int, gbps: float) -> None:
    expected = expected_ports(gpu)
    assert expected is not None
    assert (expected.ports, expected.gbps) == (ports, gbps)


def test_an_unknown_gpu_has_no_expectation() -> None:
    assert expected_ports("Tesla T4") is None
    assert expected_ports("") is None
    assert all(entry.ports > 0 and entry.gbps > 0 for entry in expected_by_product().values())
