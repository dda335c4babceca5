"""Signals of a node become conditions with a beginning and an end."""

from __future__ import annotations

import pytest

from tests.processors.entity.node import Node
from whichrank.processors.entity.condition_rules import SEVERITIES
from whichrank.processors.entity.conditions import canonical_pci
from whichrank.processors.entity.rules import load_rules
from whichrank.telemetry.vocabulary import EventName


def test_the_rules_can_be_read_and_hold_together() -> None:
    rules = load_rules()
    assert len(rules.events) > 10
    for rule in rules.events:
        # A drain is told, and ends nothing; so is some of what others judge by themselves (services, the unknown).
        is_told_only = rule.source is EventName.NODE_CONDITION or rule.words == {"node_drain"}
        assert rule.effect.explains or is_told_only
        assert 0 <= rule.severity < len(SEVERITIES)
        assert rule.effect.before_s > 0
    for of_metric in rules.metrics.values():
        for metric_rule in of_metric:
            metric_rule.shows.format(value="1", device="d", share="1 %")


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


def test_a_port_that_was_up_and_is_down_is_a_condition_and_one_that_nobody_uses_is_none() -> None:
    node = Node()
    node.measure("hw.network.up", {"mlx5_0/1": 1.0, "eth1": 0.0}, at=0.0)
    assert not node.open
    node.measure("hw.network.up", {"mlx5_0/1": 0.0, "eth1": 0.0}, at=10.0)
    assert set(node.open) == {"port_down/mlx5_0/1"}
    node.measure("hw.network.up", {"mlx5_0/1": 1.0, "eth1": 0.0}, at=15.0)
    assert not node.open
    assert node.findings[-1].body["condition"]["tolerated"]


def test_a_narrow_link_is_one_that_has_fewer_lanes_than_its_device() -> None:
    node = Node()
    node.measure("whichrank.gpu.pcie.lanes.limit", {"GPU-0": 16.0, "GPU-1": 16.0, "GPU-2": 8.0}, at=0.0)
    for at in (1.0, 11.0, 22.0):
        node.measure("whichrank.gpu.pcie.lanes", {"GPU-0": 16.0, "GPU-1": 8.0, "GPU-2": 8.0}, at=at)
    assert set(node.open) == {"pcie_narrow/GPU-1"}


def test_what_differs_from_its_peers_needs_peers() -> None:
    node = Node()
    few = {f"GPU-{n}": 1.98e9 for n in range(2)} | {"GPU-9": 1.1e9}
    for number, speeds in enumerate((few, few | {"GPU-3": 1.98e9})):
        points = {f"{gpu}": speed for gpu, speed in speeds.items()}
        node.measure_where("whichrank.gpu.speed.limit", points, {"whichrank.gpu.clock": "sm"}, at=10.0 * number)
        assert set(node.open) == ({"gpu_clock_locked/GPU-9"} if number else set())


def test_a_counter_that_begins_anew_has_not_grown() -> None:
    node = Node()
    where = {"error.type": "uncorrected", "whichrank.gpu.since": "driver_load"}
    for at, value in ((0.0, 5.0), (10.0, 5.0), (20.0, 1.0), (30.0, 1.0)):
        node.measure_where("whichrank.gpu.ecc.errors", {"GPU-0": value}, where, at=at)
        assert not node.open
    node.measure_where("whichrank.gpu.ecc.errors", {"GPU-0": 2.0}, where, at=40.0)
    assert set(node.open) == {"gpu_memory_error/GPU-0"}


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


def test_a_process_with_the_number_of_one_that_is_gone_has_a_gpu_of_its_own() -> None:
    node = Node()
    node.rank(0, "GPU-0", pid=500)
    node.rank(1, "GPU-1", pid=501)
    node.rank(7, "GPU-1", pid=500, at=0.0, job="later")
    node.xid(79, 0, at=1.0)
    assert node.open["xid_79/GPU-0"]["ranks"] == []


def test_the_words_that_rules_speak_of_are_there() -> None:
    rules = load_rules()
    effects = [rule.effect for rule in rules.events] + [rule.effect for of in rules.metrics.values() for rule in of]
    assert {effect.ends_with for effect in effects} == {"", *rules.ends_with}


def test_two_who_tell_of_one_error_are_one_condition_in_the_words_of_the_first() -> None:
    found = {"gpu_uuid": "GPU-1", "pci_bus": "00000000:0B:00.0", "event": "xid", "code": "94"}
    for kernel_first in (True, False):
        node = Node()
        node.rank(1, "GPU-1")
        if kernel_first:
            node.xid(94, 1, at=-0.5)
        node.tell(EventName.DEVICE_EVENT, at=-0.4, **found)
        if not kernel_first:
            node.xid(94, 1, at=-0.5)
        (condition,) = node.open.values()
        assert (condition["source"], condition["since"]) == ("kernel", 1_700_000_000.0 - 0.5)


def watching(node: Node, at: float, **collectors: float) -> None:
    node.measure("whichrank.collector.watching", collectors, at=at, attribute="whichrank.collector")


def told_watches(node: Node) -> list[tuple[list[str], list[str]]]:
    bodies = [finding.body["watch"] for finding in node.findings if "watch" in finding.body]
    return [(body["sees"], body["blind"]) for body in bodies]


def test_what_is_seen_of_a_node_is_told_when_it_changes_and_now_and_then() -> None:
    node = Node()
    for at in range(0, 300, 10):
        watching(node, float(at), gpu=1.0, kernel_log=0.0)
    assert told_watches(node) == [(["gpu"], ["kernel_log"])]
    watching(node, 300.0, gpu=1.0, kernel_log=0.0)
    watching(node, 310.0, gpu=0.0, kernel_log=1.0)
    assert told_watches(node)[1:] == [(["gpu"], ["kernel_log"]), (["kernel_log"], ["gpu"])]


def test_nobody_looks_where_the_agent_is_silent() -> None:
    node = Node()
    watching(node, 0.0, gpu=1.0, host=1.0)
    node.pass_time(34.0)
    assert len(told_watches(node)) == 1
    node.pass_time(120.0)
    assert told_watches(node)[1:] == [([], ["gpu", "host"])]
    watching(node, 130.0, gpu=1.0, host=1.0)
    assert told_watches(node)[2:] == [(["gpu", "host"], [])]


@pytest.mark.timeout(60)
def test_no_timer_fires_for_ever_wherever_seconds_are_rounded() -> None:
    """Of 2,000 ends and silences some are no exact number of nanoseconds in a double."""
    for number in range(2000):
        at = number * 0.000_000_777 + number / 7.0
        node = Node()
        node.kernel("oom_kill", at=at, device_kind="memory", domain="host", text="Killed process 9")
        watching(node, at, gpu=1.0)
        for _ in range(20):
            if not node.context.timers:
                break
            node.fire_next()
        assert not node.context.timers
        assert told_watches(node)[-1] == ([], ["gpu"])
