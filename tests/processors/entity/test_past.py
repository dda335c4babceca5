"""Servers and switches against their own past: what is usual, latencies, lights, bits and codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.processors.cluster.conftest import START_S
from tests.processors.entity.node import NodeCourt
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.entity.past import ENOUGH, NEW_USUAL_S
from whichrank.telemetry.records import Finding, Identity, Point, Record, Samples
from whichrank.telemetry.topics import TOPIC_METRICS

S = "whichrank.storage.server"


class Entity:
    """A switch or server that is looked at every 15 s; the operator is made anew for each look."""

    def __init__(self, kind: str, name: str = "e1") -> None:
        self.kind, self.name, self.at = kind, name, 0.0
        self.court = NodeCourt()
        self.court.entity = f"{kind}:{name}"
        self.findings: list[Finding] = []

    def look(self, *points: tuple[str, float, Mapping[str, str]]) -> None:
        self.at += 15.0
        time_ns = round((START_S + self.at) * 1e9)
        told = tuple(Point(name=name, value=value, attributes=dict(of), time_ns=time_ns) for name, value, of in points)
        self.court.now = time_ns
        samples = Samples(identity=Identity(node=self.name, cluster="local"), entity=self.kind, points=told)
        record = Record(topic=TOPIC_METRICS, key="", stamp_ns=time_ns, payload=samples)
        EntityOperator().process([record], self.court)
        emitted, self.court.emitted = self.court.emitted, []
        self.findings += [each.payload for each in emitted if isinstance(each.payload, Finding)]

    @property
    def open(self) -> dict[str, dict[str, Any]]:
        last = {finding.key: finding for finding in self.findings if "condition" in finding.body}
        bodies = [finding.body["condition"] for finding in last.values() if not finding.cleared]
        return {f"{body['name']}/{body['device']}": body for body in bodies}


def of(target: str, operation: str = "open") -> dict[str, str]:
    return {"whichrank.storage.target": target, "whichrank.storage.operation": operation}


class Mdt:
    """A metadata target: 1,000 operations a second."""

    def __init__(self) -> None:
        self.server = Entity("storage", "mds1")
        self.count = self.spent_s = 0.0

    def look(self, latency_s: float, rate: float = 1000.0) -> None:
        self.count += 15.0 * rate
        self.spent_s += 15.0 * rate * latency_s
        self.server.look(
            (f"{S}.operations", self.count, of("lfs-MDT0000")), (f"{S}.operation_time", self.spent_s, of("lfs-MDT0000"))
        )


def test_a_server_that_takes_far_longer_than_usual() -> None:
    mdt = Mdt()
    for _ in range(ENOUGH + 2):
        mdt.look(0.002)
    mdt.look(0.009)
    mdt.look(0.009)
    assert mdt.server.open == {}, "more than four times as long, but not long"
    mdt.look(0.05)
    mdt.look(0.05)
    (condition,) = mdt.server.open.values()
    assert (condition["name"], condition["device"]) == ("server_slow", "lfs-MDT0000/open")
    assert (condition["entity_kind"], condition["scope"]) == ("storage", "storage")
    for _ in range(4):
        mdt.look(0.002)
    assert mdt.server.open == {}


def test_what_was_so_from_the_first_look_on_is_its_usual() -> None:
    mdt = Mdt()
    for _ in range(ENOUGH + 10):
        mdt.look(0.05)
    assert mdt.server.open == {}


def test_what_lasts_for_an_hour_is_the_usual_from_then_on() -> None:
    mdt = Mdt()
    for _ in range(ENOUGH + 2):
        mdt.look(0.002)
    for _ in range(round(NEW_USUAL_S / 15.0) - 2):
        mdt.look(0.05)
    assert "server_slow/lfs-MDT0000/open" in mdt.server.open
    for _ in range(8):
        mdt.look(0.05)
    assert mdt.server.open == {}


def test_a_server_of_which_nobody_asks_anything_is_not_slow_when_somebody_does() -> None:
    mdt = Mdt()
    for _ in range(ENOUGH + 10):
        mdt.look(0.002, rate=0.0)
    for _ in range(4):
        mdt.look(0.05)
    assert mdt.server.open == {}


def test_a_counter_that_began_anew_is_neither_slow_nor_burdened() -> None:
    mdt = Mdt()
    for _ in range(ENOUGH + 2):
        mdt.look(0.002)
    mdt.count = mdt.spent_s = 0.0
    for _ in range(3):
        mdt.look(0.002)
    assert mdt.server.open == {}


@pytest.mark.parametrize(("usual", "now", "is_weak"), [(-2.0, -4.5, False), (-2.0, -5.5, True), (-9.0, -9.5, False)])
def test_an_optic_against_its_own_light(usual: float, now: float, is_weak: bool) -> None:
    switch = Entity("switch", "leaf1")
    light = {"hw.id": "Eth1/7", "network.io.direction": "receive"}
    for _ in range(ENOUGH + 2):
        switch.look(("whichrank.optic.power", usual, light))
    for _ in range(3):
        switch.look(("whichrank.optic.power", now, light))
    assert list(switch.open) == (["optic_weak/Eth1/7"] if is_weak else [])


def test_a_port_that_somebody_has_switched_off_is_not_down() -> None:
    switch, port = Entity("switch", "leaf1"), {"hw.id": "Eth1/7"}
    up, enabled = "hw.network.up", "whichrank.network.port.enabled"
    switch.look((up, 1.0, port), (enabled, 1.0, port))
    switch.look((up, 0.0, port), (enabled, 0.0, port))
    switch.look((up, 0.0, port), (enabled, 0.0, port))
    assert switch.open == {}
    switch.look((up, 0.0, port), (enabled, 1.0, port))
    assert list(switch.open) == ["port_down/Eth1/7"]


def test_a_node_s_limits_are_not_asked_of_a_switch_and_a_switch_s_not_of_a_node() -> None:
    node, switch = Entity("node", "n1"), Entity("switch", "leaf1")
    for value in (0.0, 500.0, 1000.0):
        for each in (node, switch):
            errors = {"hw.id": "p", "hw.type": "network", "error.type": "local_ack_timeout_err"}
            crc = {**errors, "error.type": "rx_crc_errors"}
            each.look(("hw.errors", value, errors), ("hw.errors", value, crc))
    assert list(node.open) == ["port_loses_packets/p"]
    assert list(switch.open) == ["port_rcv_errors/p"]


def test_requests_that_fail_are_counted_against_those_that_there_are() -> None:
    """A store that serves little and one that serves much: a share says the same of both."""
    for rate, failing, is_bad in ((2.0, 0.5, True), (5000.0, 20.0, False), (5000.0, 900.0, True)):
        store = Entity("storage", "s3")
        for look in range(6):
            seconds = 15.0 * look
            failed = {**of("s3", "get"), "error.type": "5xx"}
            store.look((f"{S}.operations", rate * seconds, of("s3", "get")), (f"{S}.errors", failing * seconds, failed))
        assert list(store.open) == (["requests_fail/s3/get"] if is_bad else [])


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x4, []),
        (0x20, ["gpu_throttled"]),
        (0x48, ["gpu_throttled"]),
        (0x80, ["gpu_power_brake"]),
        (0xC0, ["gpu_power_brake", "gpu_throttled"]),
    ],
)
def test_reasons_of_a_gpu_s_clock_are_bits(bits: int, names: list[str]) -> None:
    node = Entity("node", "n1")
    for _ in range(3):
        node.look(("whichrank.gpu.throttle_bits", float(bits), {"hw.id": "GPU-1"}))
    assert sorted(name.partition("/")[0] for name in node.open) == names


def test_the_last_xid_is_news_only_when_it_changes() -> None:
    told, stood = Entity("node", "n1"), Entity("node", "n2")
    for value in (0.0, 0.0, 79.0, 79.0):
        told.look(("whichrank.gpu.xid.last", value, {"hw.id": "GPU-1"}))
        stood.look(("whichrank.gpu.xid.last", 79.0, {"hw.id": "GPU-1"}))
    assert (list(told.open), list(stood.open)) == (["xid_79/GPU-1"], [])
