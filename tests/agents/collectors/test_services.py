"""Services by what systemd says of them, and mounts by fstab: told when they stop, and when they are back."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.processors.cluster.conftest import START_S
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import Collected, Timestamps
from whichrank.agents.collectors.chassis.services_collector import ServicesCollector, states_of
from whichrank.telemetry.records import Event, Identity

FABRIC = "nvidia-fabricmanager.service"
MOUNTINFO = (
    "24 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n31 24 0:45 / /data rw,relatime - nfs4 nas1:/data rw,vers=4.2\n"
)


@dataclass
class Watched:
    root: Path
    states: dict[str, str] = field(default_factory=dict)
    node: Node = field(default_factory=Node)
    now_s: float = 0.0
    is_mute: bool = False

    def __post_init__(self) -> None:
        for folder in ("etc", "proc/self"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.fstab("")
        self.mountinfo(MOUNTINFO)
        self.collector = ServicesCollector(root=self.root, ask=self.answer)

    def fstab(self, text: str) -> None:
        (self.root / "etc/fstab").write_text(text)

    def mountinfo(self, text: str) -> None:
        (self.root / "proc/self/mountinfo").write_text(text)

    def answer(self, units: Sequence[str]) -> str:
        if self.is_mute:
            raise subprocess.TimeoutExpired("systemctl", 5.0)
        known = {
            unit: ("loaded", self.states[unit]) if unit in self.states else ("not-found", "inactive") for unit in units
        }
        return "\n\n".join(
            f"Id={unit}\nLoadState={load}\nActiveState={is_now}" for unit, (load, is_now) in known.items()
        )

    def look(self) -> Collected:
        wall_ns = round((START_S + self.now_s) * 1e9)
        found = self.collector.collect(Timestamps(wall_ns=wall_ns, mono_ns=round((1000.0 + self.now_s) * 1e9)))
        for each in found.happenings:
            who = Identity(cluster="local", node=self.node.name)
            self.node.take(Event(name=each.name, identity=who, time_ns=each.time_ns, attributes=each.attributes))
        self.now_s += 60.0
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_service_that_stops_is_told_until_it_runs_again(watched: Watched) -> None:
    watched.states = {FABRIC: "active", "slurmd.service": "active"}
    watched.look()
    assert not watched.node.open
    watched.states |= {FABRIC: "inactive", "slurmd.service": "failed"}
    watched.look()
    assert set(watched.node.open) == {f"fabric_manager_down/{FABRIC}", "service_down/slurmd.service"}
    assert watched.node.open[f"fabric_manager_down/{FABRIC}"]["action"] == "restart_without_node"
    watched.states |= {FABRIC: "active", "slurmd.service": "activating"}
    watched.look()
    assert not watched.node.open


def test_one_that_failed_before_anybody_looked_is_told_and_one_that_is_off_is_not(watched: Watched) -> None:
    watched.states = {FABRIC: "failed", "nvidia-dcgm.service": "inactive"}
    watched.look()
    assert set(watched.node.open) == {f"fabric_manager_down/{FABRIC}"}


def test_while_systemd_does_not_answer_nothing_ends(watched: Watched) -> None:
    watched.states = {FABRIC: "failed"}
    watched.look()
    watched.is_mute = True
    found = watched.look()
    assert found.problems
    assert f"fabric_manager_down/{FABRIC}" in watched.node.open
    watched.is_mute, watched.states = False, {FABRIC: "active"}
    watched.look()
    assert not watched.node.open


def test_a_mount_of_a_server_that_is_not_there_is_missing(watched: Watched) -> None:
    watched.fstab(
        "# <file system> ...\n"
        "nas1:/data /data nfs4 defaults,_netdev 0 0\n"
        "nas1:/models /models nfs4 defaults,_netdev 0 0\n"
        "nas1:/home /home nfs4 noauto,x-systemd.automount 0 0\n"
        "/dev/sdb1 /scratch ext4 defaults 0 2\n"
    )
    watched.look()
    assert set(watched.node.open) == {"mount_missing//models"}
    watched.mountinfo(MOUNTINFO + "32 24 0:46 / /models rw - nfs4 nas1:/models rw\n")
    watched.look()
    assert not watched.node.open


def test_a_mount_far_down_the_table_is_there(watched: Watched) -> None:
    """The kernel's table of a node with containers is longer than a page."""
    others = "".join(f"{100 + n} 24 0:{100 + n} / /run/pod/{n} rw - tmpfs tmpfs rw\n" for n in range(500))
    watched.fstab("nas1:/models /models nfs4 defaults 0 0\n")
    watched.mountinfo(others + "32 24 0:46 / /models rw - nfs4 nas1:/models rw\n")
    watched.look()
    assert not watched.node.open
    watched.fstab("# a long comment\n" * 1000 + "nas1:/more /more nfs4 defaults 0 0\n")
    watched.look()
    assert set(watched.node.open) == {"mount_missing//more"}


def test_units_that_are_not_installed_have_no_state() -> None:
    text = "Id=a.service\nLoadState=not-found\nActiveState=inactive\n\n"
    text += "Id=b.service\nLoadState=loaded\nActiveState=active\n"
    assert dict(states_of(text)) == {"b.service": "active"}


def test_where_no_systemd_runs_nothing_is_asked(tmp_path: Path) -> None:
    found = ServicesCollector(root=tmp_path).collect(Timestamps(wall_ns=1, mono_ns=1))
    assert not found.problems
