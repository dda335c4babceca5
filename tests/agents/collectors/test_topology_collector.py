"""Where this node stands, from files that come, change and go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whichrank.agents.collectors.base.collector import Collected, Timestamps
from whichrank.agents.collectors.surroundings.topology_collector import TopologyCollector
from whichrank.telemetry.vocabulary import EventName

HOUR_S = 3600


def at(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=int((1_700_000_000 + seconds) * 1e9), mono_ns=int((5 + seconds) * 1e9))


def place(collected: Collected) -> dict[str, str] | None:
    if not collected.happenings:
        return None
    (happening,) = collected.happenings
    assert happening.name is EventName.NODE_TOPOLOGY
    return dict(happening.attributes)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {"table": tmp_path / "site.csv", "slurm": tmp_path / "topology.conf", "labels": tmp_path / "labels"}


def collector(files: dict[str, Path], *used: str) -> TopologyCollector:
    return TopologyCollector(
        table_file=str(files["table"]) if "table" in used else "",
        slurm_file=str(files["slurm"]),
        labels_file=str(files["labels"]) if "labels" in used else "",
        node_names=["gpu07"],
    )


def test_the_sites_own_table_goes_first_and_others_fill_in(files: dict[str, Path]) -> None:
    files["table"].write_text("node,rack,leaf\ngpu[01-16],r7,leaf-a\n")
    files["slurm"].write_text("SwitchName=s1 Nodes=gpu[01-16]\nSwitchName=s0 Switches=s1\n")
    files["labels"].write_text('topology.kubernetes.io/zone="eu-1a"\nexample.com/rack="other"\n')
    one = collector(files, "table", "labels")
    expected = {"rack": "r7", "leaf": "leaf-a", "spine": "s0", "zone": "eu-1a"}
    assert place(one.collect(at(0))) == expected
    assert place(one.collect(at(60))) is None
    assert place(one.collect(at(HOUR_S))) == expected  # for who began to listen since


def test_a_move_is_told(files: dict[str, Path]) -> None:
    files["slurm"].write_text("SwitchName=s1 Nodes=gpu07\n")
    one = collector(files)
    assert place(one.collect(at(0))) == {"leaf": "s1"}
    files["slurm"].write_text("SwitchName=s1 Nodes=gpu08\nSwitchName=s22 Nodes=gpu07\n")
    assert place(one.collect(at(60))) == {"leaf": "s22"}


def test_a_file_that_breaks_keeps_what_it_said(files: dict[str, Path]) -> None:
    files["table"].write_text("node,rack\ngpu07,r7\n")
    one = collector(files, "table")
    assert place(one.collect(at(0))) == {"rack": "r7"}
    files["table"].write_text("rack\nr7\n")
    broken = one.collect(at(60))
    assert place(broken) is None
    assert broken.problems[0].startswith(f"{files['table']}: the first line names no column of nodes")
    files["table"].unlink()
    gone = one.collect(at(120))
    assert place(gone) is None
    assert gone.problems == [f"{files['table']}: No such file or directory; it is to say where nodes stand"]


def test_labels_as_kubectl_gives_them(files: dict[str, Path]) -> None:
    node = {"metadata": {"labels": {"topology.kubernetes.io/zone": "eu-1a", "example.com/rack": "r9"}}}
    files["labels"].write_text(json.dumps(node))
    assert place(collector(files, "labels").collect(at(0))) == {"zone": "eu-1a", "rack": "r9"}


def test_labels_in_one_text() -> None:
    one = TopologyCollector(slurm_file="", labels="topology.kubernetes.io/zone=eu-1a,example.com/rack=r9,broken,=x")
    assert place(one.collect(at(0))) == {"zone": "eu-1a", "rack": "r9"}


@pytest.mark.parametrize("raw", [b"{half", b"\xff\0\xfe", b"{" * 50_000, b'{"metadata": 3}', b"x" * 1_000_000])
def test_broken_files_raise_nothing(files: dict[str, Path], raw: bytes) -> None:
    for path in files.values():
        path.write_bytes(raw)
    seen = collector(files, "table", "labels").collect(at(0))
    assert place(seen) is None
    assert all("\n" not in line for line in seen.problems)


def test_a_node_that_no_file_knows(files: dict[str, Path]) -> None:
    files["table"].write_text("node,rack\ngpu99,r7\n")
    seen = collector(files, "table").collect(at(0))
    assert place(seen) is None
    assert "says nothing of this node (gpu07" in seen.problems[0]
    assert collector(files).collect(at(0)).problems == []
