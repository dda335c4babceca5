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


@pytest.mark.parametrize(
    ("options", "excluded"),
    [
        ("--nodes=2", "--exclude=node-1 --nodes=2"),
        ("-N2 -l", "--exclude=node-1 -N2 -l"),
        ("-lN 2 --pty", "--exclude=node-1 -lN 2 --pty"),
        ("-n 16 --mpi pmix", "--exclude=node-1 -n 16 --mpi pmix"),
        # Of several the last one holds: those before are kept in one.
        ("-N 2 --exclude=node-7", "--exclude=node-7,node-1 -N 2"),
        ("-x node-[7-8] -N 2", "--exclude=node-[7-8],node-1 -N 2"),
        ("-N 2 --nodelist=node-[2-3]", "--exclude=node-1 -N 2 --nodelist=node-[2-3]"),
    ],
)
def test_srun_excludes_it(tmp_path: Path, options: str, excluded: str) -> None:
    program = ("python", "train.py", "-x", "node-9", "--exclude=y")
    found = without_node(("srun", *options.split(), *program), "node-1", (), tmp_path, allocated=8)
    assert found.command == ("srun", *excluded.split(), *program)
    again = without_node(found.command, "node-2", (), tmp_path)
    assert "nodelist" in again.how or again.command[1] == f"{found.command[1]},node-2"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", "takes all nodes"),
        ("--ntasks-per-node=1", "takes all nodes"),
        ("-N 8", "wants 8 of 8 nodes, and 1 are left out"),
        ("-N 7-8 -x node-5", "wants 7 of 8 nodes, and 2 are left out"),
        ("-N 2 -w node-[1-2]", "asks for node-1"),
        ("-N 2 --exclude=/etc/bad-nodes", "a file"),
    ],
)
def test_srun_without_a_node_to_spare_is_not_started(tmp_path: Path, options: str, why: str) -> None:
    found = without_node(("srun", *options.split(), "python", "-N2", "t.py"), "node-1", (), tmp_path, allocated=8)
    assert (found.command, why in found.how) == ((), True)


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
