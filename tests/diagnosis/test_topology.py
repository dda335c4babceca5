"""Places of nodes out of every kind of file that sites keep, and one clear line for what is no such file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.diagnosis.hostlist import HostlistError, expand_hostlist
from whichrank.diagnosis.topology import (
    TopologyError,
    from_kubernetes_labels,
    level_of,
    parse_slurm,
    parse_topology,
    place_of,
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[01-03,7],login1", ["gpu01", "gpu02", "gpu03", "gpu7", "login1"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("rack[a,b]-gpu[1-2].cluster", ["racka-gpu1.cluster", "racka-gpu2.cluster", "rackb-gpu1.cluster"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        (" a , b ", ["a", "b"]),
        ("", []),
    ],
)
def test_hostlists(text: str, names: list[str]) -> None:
    assert expand_hostlist(text)[: len(names)] == names


@pytest.mark.parametrize("text", ["n[1-3", "n]1[", "n[3-1]", "n[a-c]", "n[1-999999999]", "n[1-999][1-999]", "n[[1]]"])
def test_what_is_no_hostlist_is_said(text: str) -> None:
    with pytest.raises(HostlistError, match="hostlist"):
        expand_hostlist(text)


@given(st.text(alphabet="n0123456789[]-, ", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_hostlist_ends(text: str) -> None:
    try:
        names = expand_hostlist(text)
    except HostlistError:
        return
    assert len(names) <= 65_536


def test_a_tree_of_switches() -> None:
    places = parse_slurm(
        """# the fabric
SwitchName=leaf1 Nodes=gpu[001-002] LinkSpeed=100
switchname=leaf2 nodes=gpu[003-004],\\
 gpu009
SwitchName=spine1 Switches=leaf[1-2]  # both
SwitchName=core Switches=spine1
"""
    )
    assert places["gpu001"] == {"leaf": "leaf1", "spine": "spine1", "core": "core"}
    assert places["gpu004"]["leaf"] == "leaf2"
    assert sorted(places) == ["gpu001", "gpu002", "gpu003", "gpu004", "gpu009"]


def test_blocks() -> None:
    places = parse_slurm("BlockName=b1 Nodes=gpu[1-18]\nBlockName=b2 Nodes=gpu[19-36]\nBlockSizes=18\n")
    assert places["gpu18"] == {"block": "b1"}
    assert places["gpu19"] == {"block": "b2"}


def test_switches_in_a_circle_end() -> None:
    places = parse_slurm("SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Switches=a\n")
    assert places["n1"] == {"leaf": "a", "spine": "b"}


TOML = """
[nodes."gpu[01-02]"]
Rack = "r7"
"ToR switch" = "leaf-3"
PDU = "pdu-a"
[nodes."gpu[01-02]".rail]
mlx5_0 = 0
mlx5_1 = 1
"""
CSV = "hostname,rack,leaf,pdu\n# a remark\ngpu01,r7,leaf-3,pdu-a\n\ngpu[02-03],r8,,\n"


def test_a_table_of_ones_own() -> None:
    place = {"rack": "r7", "leaf": "leaf-3", "pdu": "pdu-a", "rail.mlx5_0": "0", "rail.mlx5_1": "1"}
    assert parse_topology(TOML, "site.toml") == {"gpu01": place, "gpu02": place}
    rows = [{"node": "gpu01", "rack": "r7", "rail": {"mlx5_0": 0}}]
    for document in (rows, {"nodes": rows}, {"gpu01": {"rack": "r7", "rail": {"mlx5_0": 0}}}):
        assert parse_topology(json.dumps(document), "site.json") == {"gpu01": {"rack": "r7", "rail.mlx5_0": "0"}}
    assert parse_topology(CSV, "site.csv") == {
        "gpu01": {"rack": "r7", "leaf": "leaf-3", "pdu": "pdu-a"},
        "gpu02": {"rack": "r8"},
        "gpu03": {"rack": "r8"},
    }
    assert parse_topology(CSV.replace(",", "\t"), "site.tsv")["gpu01"]["leaf"] == "leaf-3"
    assert parse_topology("SwitchName=s Nodes=n1", "/etc/slurm/topology.conf") == {"n1": {"leaf": "s"}}


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("rack,leaf\nr1,l1\n", "a.csv", "a.csv: the first line names no column of nodes"),
        ("[1, 2", "a.json", "a.json: "),
        ('"gpu01"', "a.json", "a.json: wants a table of nodes"),
        ('{"gpu01": 7}', "a.json", "a.json: of 'gpu01' wants a table of labels"),
        ('[{"rack": "r1"}]', "a.json", "a.json: an entry names no node"),
        ("nodes = [", "a.toml", "a.toml: "),
        ('[nodes."gpu[1-"]\nrack = "r1"', "a.toml", "a.toml: hostlist"),
        ("SwitchName=s Nodes=gpu[1-\n", "topology.conf", "topology.conf: line 1: hostlist"),
        ("\nhello world\n", "topology.conf", "topology.conf: line 2: 'hello' is no KEY=VALUE"),
        ("- topology: cluster\n", "topology.yaml", "topology.yaml: line 1"),
        ("[" * 100_000, "a.json", "a.json: "),
        ("Nodes=n1\n", "topology.conf", "topology.conf: line 1: nodes without SwitchName"),
    ],
)
def test_bad_files_get_one_clear_line(text: str, name: str, line: str) -> None:
    with pytest.raises(TopologyError) as raised:
        parse_topology(text, name)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@given(st.sampled_from(["a.toml", "a.json", "a.csv", "a.tsv", "topology.conf"]), st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_file_is_read_or_refused(name: str, text: str) -> None:
    try:
        places = parse_topology(text, name)
    except TopologyError:
        return
    assert all(isinstance(value, str) for labels in places.values() for value in labels.values())


def test_labels_of_kubernetes_nodes() -> None:
    labels = {
        "kubernetes.io/hostname": "gpu01",
        "topology.kubernetes.io/zone": "eu-1a",
        "topology.kubernetes.io/region": "eu-1",
        "example.com/rack": "r7",
        "example.com/leaf-switch": "l3",
        "network.topology.nvidia.com/spine": "s1",
        "nvidia.com/gpu.clique": "7f3b.12",
        "nvidia.com/gpu.count": "8",
        "topology.kubernetes.io/rack": "",
    }
    assert from_kubernetes_labels(labels) == {
        "zone": "eu-1a",
        "region": "eu-1",
        "rack": "r7",
        "leaf": "l3",
        "spine": "s1",
        "nvlink_domain": "7f3b.12",
    }


def test_a_known_label_wins_over_one_that_looks_alike() -> None:
    labels = {"a.example/leaf": "no", "network.topology.nvidia.com/leaf": "yes"}
    assert from_kubernetes_labels(labels) == {"leaf": "yes"}


def test_levels_as_people_write_them() -> None:
    assert [level_of(word) for word in ("ToR", "Leaf Switch", "RACK_ID", "scalable-unit", "Aisle")] == [
        "leaf",
        "leaf",
        "rack",
        "block",
        "aisle",
    ]


def test_a_node_by_any_of_its_names() -> None:
    places = {"gpu01": {"rack": "r1"}, "10.0.0.7": {"rack": "r2"}}
    assert place_of(places, ["GPU01.cluster.example"]) == {"rack": "r1"}
    assert place_of(places, ["", "other", "gpu01"]) == {"rack": "r1"}
    assert place_of(places, ["10.9.9.9"]) == {}
    assert place_of({"gpu01.a.example": {"rack": "r1"}}, ["gpu01"]) == {"rack": "r1"}
    assert place_of(places, []) == {}
