"""What a Kubernetes node's conditions say is wrong with it: from its JSON to conditions of the node."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.surroundings.scheduler_collector import SchedulerCollector
from whichrank.diagnosis.data_file import read_toml
from whichrank.processors.entity.rules import load_rules
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName, Kind


@dataclass
class Watched:
    """A node whose JSON somebody keeps up to date."""

    folder: Path
    node: Node = field(default_factory=Node)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.says()
        self.restart()

    def restart(self) -> None:
        file = str(self.folder / "node.json")
        self.collector = SchedulerCollector(proc=self.folder, pod_info=self.folder, node_file=file)

    def says(self, **conditions: str) -> None:
        """By type what it says; "False" where it says that it is not so."""
        told = [
            {"type": kind, "status": "False" if text == "False" else "True", "reason": "R", "message": text}
            for kind, text in conditions.items()
        ]
        (self.folder / "node.json").write_text(json.dumps({"status": {"conditions": told}}))

    def look(self) -> None:
        wall_ns = round((START_S + self.now_s) * 1e9)
        for each in self.collector.collect(Timestamps(wall_ns=wall_ns, mono_ns=wall_ns)).happenings:
            who = Identity(cluster="local", node=self.node.name)
            self.node.take(Event(name=each.name, identity=who, time_ns=each.time_ns, attributes=each.attributes))
        self.now_s += 10.0


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_condition_of_the_node_begins_and_ends_with_it(watched: Watched) -> None:
    watched.says(KernelDeadlock="False", Ready="True")
    watched.look()
    assert not watched.node.open
    watched.says(KernelDeadlock="task docker:7 blocked for more than 300 seconds", Ready="True")
    watched.look()
    told = watched.node.open["kernel_deadlock/KernelDeadlock"]
    assert told["text"] == "KernelDeadlock: task docker:7 blocked for more than 300 seconds"
    watched.says(KernelDeadlock="False", Ready="True")
    watched.look()
    assert not watched.node.open


def test_an_agent_that_starts_again_takes_back_what_is_over(watched: Watched) -> None:
    watched.says(DiskPressure="kubelet has disk pressure")
    watched.look()
    assert set(watched.node.open) == {"disk_pressure/DiskPressure"}
    watched.says()
    watched.restart()
    watched.look()
    assert not watched.node.open


def test_what_nobody_knows_is_nothing(watched: Watched) -> None:
    watched.says(SomethingElse="True")
    watched.look()
    assert not watched.node.open


def test_a_missing_gpu_is_why_a_rank_does_not_come(tmp_path: Path) -> None:
    court = Court()
    watched = Watched(tmp_path, Node(court=court))
    watched.node.rank(2)
    watched.look()
    watched.says(GPUMissing="7 of 8 GPUs")
    watched.look()
    court.hear(make_finding(Kind.RANK_NOT_ENTERED, 2, at=watched.now_s + 4.0, onset=watched.now_s))
    (document,) = court.pages
    assert (document["scope"], document["cause"]["condition"]) == ("node", "gpu_missing")


@pytest.mark.parametrize(
    "name", sorted(set(read_toml("whichrank.diagnosis", "node_notices.toml")["problems"].values()))
)
def test_every_condition_has_an_effect(name: str) -> None:
    assert load_rules().of_event(EventName.NODE_CONDITION, name, "", "", "error") is not None
