"""From a tree of ports that changes over time to the node's conditions, through the collector and the operator."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.agents.collectors.port_tree import infiniband_port, write
from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.network.network_collector import NetworkCollector
from whichrank.diagnosis.counters.rules import counter_rules
from whichrank.processors.entity.rules import load_rules
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName, Kind

SECOND_NS = 1_000_000_000
LOOK_S = 5.0
PORT = "mlx5_0/1"


@dataclass
class Watched:
    """A node with a port that a collector looks at every five seconds, beginning at 0."""

    folder: Path
    node: Node = field(default_factory=Node)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.port = infiniband_port(self.folder, interface="ib0")
        self.restart()
        self.look()

    def restart(self) -> None:
        self.collector = NetworkCollector(sys=self.folder, statistics=None)

    def counts(self, **counters: int) -> None:
        write(self.port / "counters", counters)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            wall_ns = round((START_S + self.now_s) * 1e9)
            found = self.collector.collect(Timestamps(wall_ns=wall_ns, mono_ns=round((1000.0 + self.now_s) * 1e9)))
            for each in found.happenings:
                who = Identity(cluster="local", node=self.node.name)
                self.node.take(Event(name=each.name, identity=who, time_ns=each.time_ns, attributes=each.attributes))
            self.now_s += LOOK_S

    @property
    def open(self) -> set[str]:
        return {body["name"] for body in self.node.open.values()}


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "sys")


def test_a_port_in_order_has_no_condition(watched: Watched) -> None:
    watched.look(100)
    assert not watched.open


def test_symbol_errors_begin_and_end_a_condition(watched: Watched) -> None:
    for value in range(0, 1000, 100):
        watched.counts(symbol_error=value)
        watched.look()
    told = watched.node.open[f"symbol_error/{PORT}"]
    assert (told["severity"], told["scope"], told["action"]) == ("warning", "link", "drain_after_job")
    watched.look(round(1300 / LOOK_S))
    assert "symbol_error" not in watched.open


def test_one_error_is_none(watched: Watched) -> None:
    watched.counts(symbol_error=1)
    watched.look(10)
    assert not watched.open


def test_a_port_that_goes_out_of_the_system_is_missing_until_it_is_back(watched: Watched) -> None:
    watched.look(2)
    kept = watched.folder.parent / "kept"
    shutil.move(watched.folder / "class/infiniband", kept)
    watched.look(2)
    assert "port_missing" not in watched.open
    watched.look(2)
    assert watched.node.open[f"port_missing/{PORT}"]["action"] == "restart_without_node"
    shutil.move(kept, watched.folder / "class/infiniband")
    watched.look()
    assert "port_missing" not in watched.open


def test_a_port_that_goes_down_for_long_again_and_again_flaps(watched: Watched) -> None:
    for _ in range(3):
        assert "link_flapping" not in watched.open
        write(watched.port, {"state": "1: DOWN"})
        watched.look(8)
        write(watched.port, {"state": "4: ACTIVE"})
        watched.look(4)
    assert watched.node.open[f"link_flapping/{PORT}"]["severity"] == "error"
    watched.look(round(700 / LOOK_S))
    assert "link_flapping" not in watched.open


def test_that_a_port_is_down_is_said_by_its_metric_alone(watched: Watched) -> None:
    write(watched.port, {"state": "1: DOWN"})
    watched.look(100)
    assert not watched.open


def test_a_collector_that_begins_anew_takes_back_what_it_said(watched: Watched) -> None:
    for value in range(0, 1000, 100):
        watched.counts(symbol_error=value)
        watched.look()
    watched.restart()
    watched.look(3)
    assert not watched.open


def test_it_is_the_cause_of_an_exchange_that_stands_still(tmp_path: Path) -> None:
    court = Court()
    watched = Watched(tmp_path / "sys", Node(court=court))
    watched.node.rank(2)
    for value in range(0, 1000, 100):
        watched.counts(port_rcv_errors=value)
        watched.look()
    court.hear(make_finding(Kind.COLLECTIVE_STALLED, 2, at=watched.now_s + 4.0, onset=watched.now_s))
    (document,) = court.pages
    assert (document["scope"], document["cause"]["condition"]) == ("link", "port_rcv_errors")
    assert document["cause"]["device"] == PORT


@pytest.mark.parametrize("name", [rule.name for rule in counter_rules()])
def test_every_rule_of_a_counter_has_an_effect(name: str) -> None:
    if name == "local_ack_timeout_err":
        assert any(rule.condition == "port_loses_packets" for rule in load_rules().metrics["hw.errors"])
        return
    assert load_rules().of_event(EventName.NODE_CONDITION, name, "", "network", "warning") is not None
