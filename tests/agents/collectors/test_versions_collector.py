"""Versions of trees that the tests write and of this machine: baselines, changes, skews, what is remembered."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agents.collectors.port_tree import infiniband_port, write
from tests.agents.collectors.process_tree import process
from whichrank.agents.collectors.base.collector import Collected, Timestamps
from whichrank.agents.collectors.surroundings.versions_collector import VersionsCollector
from whichrank.diagnosis.installed_software import (
    git_head,
    mapped_libraries,
    nvidia_driver,
    os_release,
    packed_commit,
    torch_version,
    version_in_distributions,
    version_in_name,
)

NOW = Timestamps(wall_ns=1_700_000_000_000_000_000, mono_ns=1)
COMMIT, OTHER = "3f" * 20, "a0" * 20
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
RANK = {"RANK": "0", "LOCAL_RANK": "0", "SLURM_JOB_NAME": "llm", "SLURM_JOB_USER": "ada", "SLURM_PROCID": "0"}
SITE = "/opt/venv/lib/python3.11/site-packages"
MAPS = (
    "/usr/bin/python3.11",
    f"{SITE}/torch/lib/libtorch_cpu.so",
    f"{SITE}/nvidia/nccl/lib/libnccl.so.2",
    "/usr/local/cuda/lib64/libcudart.so.12.4.127",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
)


class Node:
    """A tree of a node with one rank in a container, whose files the tests change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "container"
        self.state = folder / "state.json"
        write(folder, {"etc/os-release": 'PRETTY_NAME="Ubuntu 22.04.4 LTS"\nIMAGE_VERSION="7"\n'})
        write(folder, {"proc/sys/kernel/osrelease": "5.15.0-105-generic", "proc/cmdline": "ro quiet"})
        self.driver("550.54.15")
        write(folder, {"sys/module/mlx5_core/version": "24.04-0.6.6"})
        infiniband_port(folder / "sys")
        self.packages(torch="2.6.0+cu124", nccl="2.21.5")

    def driver(self, version: str) -> None:
        write(self.folder, {"proc/driver/nvidia/version": DRIVER.format(version)})

    def packages(self, *, torch: str, nccl: str) -> None:
        site = self.root / SITE.lstrip("/")
        shutil.rmtree(site, ignore_errors=True)
        write(site, {"torch/version.py": f"__all__ = ['__version__']\n__version__ = '{torch}'\ncuda = '12.4'\n"})
        write(site, {f"nvidia_nccl_cu12-{nccl}.dist-info/METADATA": "", "numpy-2.0.dist-info/METADATA": ""})

    def rank(self, pid: int = 50, *, environ: dict[str, str] | None = None, cwd: str = "/code/train") -> None:
        process(self.folder / "proc", pid, environ or RANK, maps=MAPS, cwd=cwd, root=self.root, start=pid)

    def end(self, pid: int = 50) -> None:
        shutil.rmtree(self.folder / "proc" / str(pid))

    def collector(self) -> VersionsCollector:
        return VersionsCollector(
            proc=self.folder / "proc",
            sys=self.folder / "sys",
            etc=self.folder / "etc",
            state_file=str(self.state),
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def changes(collected: Collected) -> list[tuple[str, str, str, str]]:
    """(what, where, old, new) of those that are no baseline."""
    found: Sequence[Any] = [happening.attributes for happening in collected.happenings]
    return [(one["what"], one["where"], one["old"], one["new"]) for one in found if not one["baseline"]]


def baseline(collected: Collected) -> dict[tuple[str, str], str]:
    found: Sequence[Any] = [happening.attributes for happening in collected.happenings]
    return {(one["what"], one["where"]): one["new"] for one in found if one["baseline"]}


def test_the_first_look_is_a_baseline(node: Node) -> None:
    node.rank()
    seen = node.collector().collect(NOW)
    assert seen.problems == []
    assert changes(seen) == []
    found = baseline(seen)
    assert len(found.pop(("kernel_command_line", ""))) == 16
    assert found == {
        ("image", ""): "Ubuntu 22.04.4 LTS 7",
        ("kernel", ""): "5.15.0-105-generic",
        ("nvidia_driver", ""): "550.54.15",
        ("module mlx5_core", ""): "24.04-0.6.6",
        ("nic_firmware", "mlx5_0"): "28.43.2566",
        ("torch", "ada/llm"): "2.6.0+cu124",
        ("nccl", "ada/llm"): "2.21.5",
        ("cuda", "ada/llm"): "12.4.127",
        ("cuda_driver", "ada/llm"): "550.54.15",
    }


def test_what_differs_from_before_is_a_change_and_told_once(node: Node) -> None:
    collector = node.collector()
    collector.collect(NOW)
    assert list(collector.collect(NOW).happenings) == []
    write(node.folder, {"sys/class/infiniband/mlx5_0/fw_ver": "28.44.1000"})
    assert changes(collector.collect(NOW)) == [("nic_firmware", "mlx5_0", "28.43.2566", "28.44.1000")]
    assert list(collector.collect(NOW).happenings) == []


def test_a_change_over_a_restart_is_seen(node: Node) -> None:
    node.collector().collect(NOW)
    assert os.stat(node.state).st_mode & 0o777 == 0o600
    node.driver("575.51.03")
    seen = node.collector().collect(NOW)
    assert changes(seen) == [("nvidia_driver", "", "550.54.15", "575.51.03")]
    assert [happening.attributes["while_away"] for happening in seen.happenings] == [True]
    assert baseline(seen) == {}


def test_a_job_that_comes_back_with_other_software(node: Node) -> None:
    collector = node.collector()
    node.rank(50)
    collector.collect(NOW)
    node.end(50)
    assert list(collector.collect(NOW).happenings) == []  # a job that ends is no change
    node.packages(torch="2.7.1+cu126", nccl="2.26.2")
    node.rank(60)
    assert changes(collector.collect(NOW)) == [
        ("torch", "ada/llm", "2.6.0+cu124", "2.7.1+cu126"),
        ("nccl", "ada/llm", "2.21.5", "2.26.2"),
    ]


def test_another_job_is_compared_with_itself_only(node: Node) -> None:
    collector = node.collector()
    node.rank(50)
    collector.collect(NOW)
    node.end(50)
    node.packages(torch="2.4.0", nccl="2.20.5")
    node.rank(60, environ={**RANK, "SLURM_JOB_NAME": "other"})
    seen = collector.collect(NOW)
    assert changes(seen) == []
    assert baseline(seen)["torch", "ada/other"] == "2.4.0"


def test_ranks_of_one_job_that_differ(node: Node, tmp_path: Path) -> None:
    node.rank(50)
    second = Node(tmp_path / "second")
    second.packages(torch="2.6.0+cu124", nccl="2.20.5")
    process(node.folder / "proc", 51, {**RANK, "RANK": "1", "SLURM_PROCID": "1"}, maps=MAPS, root=second.root)
    found = baseline(node.collector().collect(NOW))
    assert found["nccl", "ada/llm"] == "2.20.5 | 2.21.5"
    assert found["torch", "ada/llm"] == "2.6.0+cu124"


def test_a_rank_that_is_a_shell_around_the_program(node: Node) -> None:
    process(node.folder / "proc", 50, RANK, maps=["/usr/bin/bash"], root=node.root)
    process(node.folder / "proc", 51, RANK, parent=50, maps=MAPS, root=node.root)
    assert baseline(node.collector().collect(NOW))["torch", "ada/llm"] == "2.6.0+cu124"


def test_the_image_of_a_container(node: Node) -> None:
    node.rank(environ={**RANK, "APPTAINER_CONTAINER": "/images/train-7.sif"})
    assert baseline(node.collector().collect(NOW))["container_image", "ada/llm"] == "/images/train-7.sif"


# --- the code's commit ------------------------------------------------------------------------------------------------


def code_of(node: Node) -> str:
    return baseline(node.collector().collect(NOW)).get(("code", "ada/llm"), "")


def test_a_commit_by_branch_packed_or_detached(node: Node) -> None:
    git = node.root / "code/.git"
    node.rank()
    write(git, {"HEAD": "ref: refs/heads/main", "refs/heads/main": COMMIT})
    assert code_of(node) == COMMIT
    (git / "refs/heads/main").unlink()
    node.state.unlink()
    write(
        git, {"packed-refs": f"# pack-refs with: peeled\n{OTHER} refs/heads/mai\n{COMMIT} refs/heads/main\n^{OTHER}\n"}
    )
    assert code_of(node) == COMMIT
    node.state.unlink()
    write(git, {"HEAD": OTHER})
    assert code_of(node) == OTHER


def test_a_commit_of_a_work_tree(node: Node) -> None:
    main = node.root / "repositories/main/.git"
    write(main, {"HEAD": "ref: refs/heads/main", "packed-refs": f"{COMMIT} refs/heads/side\n"})
    write(main, {"worktrees/side/HEAD": "ref: refs/heads/side", "worktrees/side/commondir": "../.."})
    write(node.root / "code", {".git": "gitdir: /repositories/main/.git/worktrees/side"})
    node.rank()
    assert code_of(node) == COMMIT


def test_what_git_itself_says(node: Node, tmp_path: Path) -> None:
    """A repository made by git, seen through a process that really runs there."""
    code = tmp_path / "really"
    code.mkdir()
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    author = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    try:
        subprocess.run(["git", "init", "-q", str(code)], check=True, env=environ)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git is not here")
    commit = ["git", "-C", str(code), *author, "commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(commit, check=True, env=environ)
    head = subprocess.run(["git", "-C", str(code), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    rank = {**environ, "RANK": "0", "LOCAL_RANK": "0", "JOB_NAME": "really"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=rank, cwd=code)
    try:
        deadline = time.monotonic() + 5
        while ("code", "really") not in (found := baseline(VersionsCollector().collect(NOW))):
            assert time.monotonic() < deadline
        assert found["code", "really"] == head.stdout.strip()
    finally:
        child.communicate(b"\n")


def test_a_commit_made_while_the_job_runs_is_not_what_it_runs(node: Node) -> None:
    git = node.root / "code/.git"
    write(git, {"HEAD": COMMIT})
    node.rank()
    collector = node.collector()
    assert baseline(collector.collect(NOW))["code", "ada/llm"] == COMMIT
    write(git, {"HEAD": OTHER})
    assert list(collector.collect(NOW).happenings) == []
    node.end()
    node.rank(60)
    assert changes(collector.collect(NOW)) == [("code", "ada/llm", COMMIT, OTHER)]


def test_a_reference_cannot_lead_out_of_the_repository() -> None:
    assert git_head("ref: refs/heads/main") == ("", "refs/heads/main")
    assert git_head("ref: refs/../../../etc/shadow") == ("", "")
    assert git_head("ref: /etc/shadow") == ("", "")
    assert git_head("not a commit") == ("", "")


# --- words ------------------------------------------------------------------------------------------------------------


def test_versions_in_names() -> None:
    assert version_in_name("/a/libnccl.so.2.21.5") == "2.21.5"
    assert version_in_name("/a/libnccl.so.2") == ""
    assert version_in_name("/a/libtorch_cpu.so") == ""
    names = ["nvidia_nccl_cu12-2.21.5.dist-info", "nvidia_nccl_cu12_extra-9.dist-info", "torch-2.6.0.dist-info"]
    assert version_in_distributions(names, "nvidia_nccl_cu") == "2.21.5"
    assert version_in_distributions(names, "torch") == "2.6.0"
    assert version_in_distributions(["nvidia-nccl-cu13"], "nvidia_nccl_cu") == ""
    assert torch_version("__version__ = '2.6.0a0+ecf3bae40a.nv25.01'") == "2.6.0a0+ecf3bae40a.nv25.01"


def test_drivers() -> None:
    assert nvidia_driver(DRIVER.format("535.161.08")) == "535.161.08"
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.51.03  Release Build  (dvs-builder)"
    assert nvidia_driver(line) == "575.51.03 (open)"
    assert nvidia_driver("") == ""


def test_a_library_that_was_replaced_under_the_process_is_still_named() -> None:
    (library,) = mapped_libraries("7f00-7f01 r-xp 0 103:02 9   /usr/lib/libnccl.so.2.20.5 (deleted)\n")
    assert (library.what, version_in_name(library.path)) == ("nccl", "2.20.5")


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read(text: str) -> None:
    mapped_libraries("7f00 /" + text)
    nvidia_driver("NVRM version: " + text)
    os_release(text)
    git_head("ref: " + text)
    packed_commit(text, "refs/heads/main")
    torch_version(text)
    version_in_distributions([text, text + ".dist-info"], "torch")


def test_garbage_in_every_file(node: Node) -> None:
    dice = random.Random(9)
    write(node.root / "code/.git", {"HEAD": "ref: refs/heads/main", "refs/heads/main": COMMIT})
    node.rank()
    files = [path for path in node.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    collector = node.collector()
    for round_ in range(60):
        for path in dice.sample(files, 6):
            path.write_bytes(
                dice.choice((b"", b"\0" * 50, dice.randbytes(300), b"x" * 1_000_000, b"ref: " + b"/" * 999))
            )
        if round_ % 10 == 0:
            collector = node.collector()
        collector.collect(NOW)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seen": 3}', "null", "[" * 99_999])
def test_a_state_file_of_somebody_else_is_one_line(node: Node, text: str) -> None:
    node.state.write_text(text)
    seen = node.collector().collect(NOW)
    assert [line.partition(": ")[0] for line in seen.problems] == [str(node.state)]
    assert baseline(seen)
    assert json.loads(node.state.read_text())["schema"] == 1


def test_a_state_file_that_cannot_be_written_is_one_line(node: Node) -> None:
    node.state = node.folder / "no/such/folder/state.json"
    (problem,) = node.collector().collect(NOW).problems
    assert "changes over a restart will not be seen" in problem


def test_this_machine() -> None:
    found = baseline(VersionsCollector().collect(NOW))
    assert found["kernel", ""] == os.uname().release
