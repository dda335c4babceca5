"""Faults of the chassis, from a simulated BMC through the real ipmitool to the node's conditions and an incident."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.agents.collectors.simulated_bmc import HAS_TOOLS, NO_TOOLS, SimulatedBmc, simulated_bmc
from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import Collected, Timestamps
from whichrank.agents.collectors.chassis.bmc_collector import BmcCollector
from whichrank.diagnosis.chassis import conditions, faults_of_sensors, records_of_log
from whichrank.processors.entity.rules import load_rules
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName, Kind

LOOK_S = 60.0


@dataclass
class Watched:
    ask: Callable[[Sequence[str]], str]
    node: Node = field(default_factory=Node)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.collector = BmcCollector(ask=self.ask)

    def look(self) -> Collected:
        wall_ns = round((START_S + self.now_s) * 1e9)
        found = self.collector.collect(Timestamps(wall_ns=wall_ns, mono_ns=round((1000.0 + self.now_s) * 1e9)))
        for each in found.happenings:
            who = Identity(cluster="local", node=self.node.name)
            self.node.take(Event(name=each.name, identity=who, time_ns=each.time_ns, attributes=each.attributes))
        self.now_s += LOOK_S
        return found


@pytest.fixture(scope="module")
def bmc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedBmc]:
    if not HAS_TOOLS:
        pytest.skip(NO_TOOLS)
    with simulated_bmc(tmp_path_factory.mktemp("bmc") / "chassis") as bmc:
        yield bmc


@pytest.mark.parametrize(
    ("condition", "sensor", "worse", "well"),
    [
        ("power_supply_failed", "PS1 Status", ("state", 1, 1), ("state", 1, 0)),
        ("power_supply_failed", "PS2 Status", ("state", 2, 3), ("state", 2, 0)),
        ("power_redundancy_lost", "PS Redundancy", ("state", 3, 1), ("state", 3, 0)),
        ("processor_failed", "CPU1 Status", ("state", 4, 0), ("state", 4, 7)),
        ("memory_module_failed", "DIMM A1", ("state", 5, 1), ("state", 5, 6)),
        ("fan_failed", "FAN1", ("reading", 16, 5), ("reading", 16, 100)),
        ("chassis_hot", "Inlet Temp", ("reading", 17, 60), ("reading", 17, 25)),
    ],
)
def test_a_fault_of_the_chassis_is_told_until_it_is_over(
    bmc: SimulatedBmc, condition: str, sensor: str, worse: tuple[str, int, int], well: tuple[str, int, int]
) -> None:
    watched = Watched(bmc.ask)
    watched.look()
    assert not watched.node.open, "what its log holds of earlier faults is history"
    getattr(bmc, worse[0])(*worse[1:])
    assert not watched.look().problems
    assert set(watched.node.open) == {f"{condition}/{sensor}"}
    getattr(bmc, well[0])(*well[1:])
    watched.look()
    assert not watched.node.open


def test_an_outlet_that_is_too_warm_by_a_little_is_none(bmc: SimulatedBmc) -> None:
    watched = Watched(bmc.ask)
    watched.look()
    bmc.reading(17, 38)
    watched.look()
    assert not watched.node.open
    bmc.reading(17, 25)


def test_a_bmc_that_does_not_answer_ends_nothing(bmc: SimulatedBmc) -> None:
    is_mute = False

    def ask(words: Sequence[str]) -> str:
        if is_mute:
            raise subprocess.TimeoutExpired("ipmitool", 30.0)
        return bmc.ask(words)

    watched = Watched(ask)
    watched.look()
    bmc.state(1, 1)
    watched.look()
    is_mute = True
    found = watched.look()
    assert found.blind
    assert "does not answer" in found.problems[0]
    assert set(watched.node.open) == {"power_supply_failed/PS1 Status"}
    is_mute = False
    bmc.state(1, 0)
    watched.look()
    assert not watched.node.open


SENSORS = "FAN1             | 10h | ok  | 29.1 | 6000 RPM\n"
RECORD = "  5 | 11/30/2026 | 10:00:00 | Memory DIMM A1 | Uncorrectable ECC | {}\n"


def of_log(*logs: str) -> Watched:
    """A BMC whose sensors are well; one log for each look."""
    left = list(logs)
    return Watched(lambda words: SENSORS if words[0] == "sdr" else left.pop(0))


def test_what_the_log_alone_tells_stands_for_an_hour() -> None:
    watched = of_log("", *[RECORD.format("Asserted")] * 62)
    watched.look()
    for _ in range(60):
        watched.look()
        assert set(watched.node.open) == {"memory_module_failed/DIMM A1"}
    watched.look()
    assert not watched.node.open


def test_what_the_log_takes_back_is_over() -> None:
    told = RECORD.format("Asserted")
    watched = of_log("", told, told + RECORD.replace("  5", "  6").format("Deasserted"))
    watched.look()
    watched.look()
    assert set(watched.node.open) == {"memory_module_failed/DIMM A1"}
    watched.look()
    assert not watched.node.open


def test_a_log_that_was_cleared_begins_anew() -> None:
    old = RECORD.replace("  5", " 9f")
    watched = of_log(old.format("Asserted"), "", RECORD.format("Asserted"))
    watched.look()
    watched.look()
    assert not watched.node.open
    watched.look()
    assert set(watched.node.open) == {"memory_module_failed/DIMM A1"}


def test_a_node_without_a_bmc_is_not_asked(tmp_path: Path) -> None:
    found = BmcCollector(root=tmp_path).collect(Timestamps(wall_ns=1, mono_ns=1))
    assert not found.problems
    assert not found.blind


def test_rows_that_are_none() -> None:
    assert faults_of_sensors("Could not open device at /dev/ipmi0\n") is None
    assert records_of_log("SEL has no entries\n a | b | Asserted\n | | | |\n") == []
    (early,) = records_of_log("   1 |  Pre-Init  |0000079650| Power Supply PS1 Status | Failure detected | Asserted\n")
    assert early.fault is not None
    assert (early.fault.condition, early.sensor) == ("power_supply_failed", "PS1 Status")


def test_a_supply_that_fails_is_why_a_rank_is_slow() -> None:
    court = Court()
    watched = of_log("", "")
    watched.node = Node(court=court)
    watched.node.rank(2)
    watched.look()
    watched.collector = BmcCollector(
        ask=lambda words: "PS1 | c8h | ok | 10.1 | Failure detected\n" if words[0] == "sdr" else ""
    )
    watched.look()
    court.hear(make_finding(Kind.RANK_SLOW, 2, at=watched.now_s + 4.0, onset=watched.now_s))
    (document,) = court.pages
    assert (document["scope"], document["cause"]["condition"]) == ("node", "power_supply_failed")


@pytest.mark.parametrize("name", sorted(conditions()))
def test_every_condition_of_the_chassis_has_an_effect(name: str) -> None:
    assert load_rules().of_event(EventName.NODE_CONDITION, name, "", "hardware", "warning") is not None
