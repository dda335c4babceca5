"""Signals of a node become conditions with a beginning and an end."""

from __future__ import annotations

import pytest

from tests.processors.entity.node import Node
from whichrank.processors.entity.conditions import canonical_pci
from whichrank.processors.entity.rules import SEVERITIES, load_rules
from whichrank.telemetry.vocabulary import EventName


def test_the_rules_can_be_read_and_hold_together() -> None:
    rules = load_rules()
    assert len(rules.events) > 10
    for rule in rules.events:
        assert rule.effect.explains
        assert 0 <= rule.severity < len(SEVERITIES)
        assert rule.effect.before_s > 0
    for of_metric in rules.metrics.values():
        for metric_rule in of_metric:
            metric_rule.shows.format(value="1", device="d")


def test_an_xid_is_a_condition_of_the_gpu_that_its_bus_belongs_to() -> None:
    node = Node()
    node.rank(5, "GPU-5")
    node.xid(79, 5, at=1.0)
    condition = node.open["xid_79/GPU-5"]
    assert condition["ranks"] == [{"job": "j", "attempt": "a1", "world": "", "rank": 5, "pid": 105}]
    assert (condition["since"] - 1_700_000_000.0, condition["scope"]) == (1.0, "gpu")


def test_who_uses_the_gpu_may_be_known_later() -> None:
    node = Node()
    node.xid(79, 5, at=1.0)
    assert "xid_79/0000:0f:00.0" in node.open
    node.rank(5, "GPU-5", at=2.0)
    assert node.open["xid_79/GPU-5"]["ranks"][0]["rank"] == 5


def test_a_storm_is_one_condition_told_at_powers_of_two() -> None:
    node = Node()
    for number in range(1000):
        node.xid(94, 1, at=number / 100)
    assert len(node.findings) == 10
    assert node.open.popitem()[1]["count"] == 512


def test_what_follows_from_another_error_is_no_condition() -> None:
    node = Node()
    node.xid(79, 1, at=0.0)
    node.xid(45, 1, at=0.1, role="cascade")
    assert [finding.body["condition"]["name"] for finding in node.findings] == ["xid_79"]


def test_a_condition_ends_when_nothing_more_is_heard_of_it_and_when_its_end_is_told() -> None:
    node = Node()
    node.kernel("oom_kill", at=0.0, device_kind="memory", domain="host", pid=101)
    node.tell(EventName.PROBE_LATE, at=10.0, mount="/data", operation="stat", age_s=6.0)
    assert node.open["mount_stalls//data"]["since"] == pytest.approx(1_700_000_004.0)
    node.tell(EventName.PROBE_LATE, at=20.0, mount="/data", operation="stat", age_s=12.0, answered=True)
    assert set(node.open) == {"oom_kill/"}
    node.pass_time(599.0)
    assert node.open
    node.pass_time(601.0)
    assert not node.open


def test_a_link_that_comes_back_at_once_is_tolerated_until_it_does_so_too_often() -> None:
    node = Node()
    for number in range(4):
        node.kernel("nic_link_down", at=60.0 * number, device="mlx5_0", device_kind="nic", domain="network")
        node.kernel("nic_link_up", at=60.0 * number + 2, device="mlx5_0", device_kind="nic", domain="network")
    tolerated = [finding.body["condition"]["tolerated"] for finding in node.findings if finding.cleared]
    assert tolerated == [True, True, False, False]


def test_a_late_collector_is_a_condition_while_it_lasts() -> None:
    node = Node()
    for at, value in enumerate((0.0, 12.0, 22.0, 0.0, 0.0, 0.0, 0.0)):
        node.measure("whichrank.collector.late", {"gpu": value}, at=10.0 * at, attribute="whichrank.collector")
        assert bool(node.open) == (at in (1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    ("text", "bus"),
    [
        ("0000:5d:00.0", "0000:5d:00"),
        ("00000000:5D:00.0", "0000:5d:00"),
        ("PCI:0000:5d:00", "0000:5d:00"),
        ("5d:00.0", "0000:5d:00"),
        ("GPU-1234", ""),
        ("", ""),
        ("mlx5_0", ""),
        ("1:2:3:4", ""),
    ],
)
def test_a_bus_has_one_name(text: str, bus: str) -> None:
    assert canonical_pci(text) == bus
