"""The same command without one node: each launcher in its own words, and never fewer nodes than were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichrank.commands.supervise.node_exclusion import restarts_by_itself, without_node

SPARES = ("node-8", "node-9")


def test_an_elastic_torchrun_goes_on_with_those_that_come(tmp_path: Path) -> None:
    for launcher in (("torchrun",), ("python3", "-m", "torch.distributed.run")):
        command = (*launcher, "--nnodes=2:4", "train.py")
        assert without_node(command, "node-1", (), tmp_path).command == command
        assert not without_node((*launcher, "--nnodes", "4", "train.py"), "node-1", (), tmp_path).command
        assert "MIN:MAX" in without_node((*launcher, "train.py"), "node-1", (), tmp_path).how


def test_srun_excludes_it(tmp_path: Path) -> None:
    found = without_node(("srun", "--nodes=2", "python", "train.py"), "node-1", (), tmp_path)
    assert found.command == ("srun", "--exclude=node-1", "--nodes=2", "python", "train.py")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("mpirun", "--hostfile", "{file}", "-np", "4", "python", "train.py"), 2),
        (("deepspeed", "--hostfile={file}", "train.py"), 1),
        (("accelerate", "launch", "--deepspeed_hostfile", "{file}", "train.py"), 3),
    ],
)
def test_a_spare_takes_its_place_in_a_copy_of_the_hostfile(tmp_path: Path, words: tuple[str, ...], option: int) -> None:
    hosts = tmp_path / "hosts"
    text = "# ours\nnode-1 slots=8\nnode-10 slots=8\nnode-8 slots=8\n"
    hosts.write_text(text)
    command = tuple(word.format(file=hosts) for word in words)
    found = without_node(command, "node-1", SPARES, tmp_path)
    assert found.spare == "node-9"  # node-8 is in use
    changed = [index for index, pair in enumerate(zip(command, found.command, strict=True)) if pair[0] != pair[1]]
    assert changed == [option]
    copy = Path(found.command[option].rpartition("=")[2])
    assert copy.read_text() == text.replace("node-1 ", "node-9 ")
    assert hosts.read_text() == text  # the owner's file is his
    assert not without_node(command, "node-1", (), tmp_path).command
    assert not without_node(command, "node-2", SPARES, tmp_path).command


def test_a_spare_takes_its_place_in_a_list(tmp_path: Path) -> None:
    found = without_node(("mpirun", "-H", "node-1:8,node-2:8", "train"), "node-1", SPARES, tmp_path)
    assert found.command == ("mpirun", "-H", "node-8:8,node-2:8", "train")


@pytest.mark.parametrize("name", ["n[1-9]", "ALL", "a b", "--all", ""])
def test_a_name_that_means_more_than_one_node_goes_nowhere(tmp_path: Path, name: str) -> None:
    assert not without_node(("srun", "train"), name, SPARES, tmp_path).command


def test_launchers_that_restart_by_themselves_are_known() -> None:
    assert restarts_by_itself(("ft_launcher", "--nnodes=2", "train.py")) == "ft_launcher"
    assert restarts_by_itself(("python", "-m", "nvidia_resiliency_ext.fault_tolerance.launcher", "t.py"))
    assert not restarts_by_itself(("torchrun", "train.py"))
    assert not without_node(("bash", "start.sh"), "node-1", SPARES, Path("/nonexistent")).command
