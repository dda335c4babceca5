"""Before the command starts: which machine is ours, who comes first, and what a job on one machine does not do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whichrank.commands.multi_node.peer_plan import InstanceRole
from whichrank.commands.multi_node.peer_setup import PeerSetup, is_this_machine, set_up_peers
from whichrank.commands.multi_node.peers import NoPeers, join_peers

C10D = ["torchrun", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id", str(os.getpid())]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a user who has set no secret gets his own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def made() -> Iterator[list[PeerSetup]]:
    setups: list[PeerSetup] = []
    yield setups
    for setup in setups:
        for held in (setup.listener, setup.claim):
            if held is not None:
                held.close()


def set_up(command: list[str], judge: str = "") -> PeerSetup:
    return set_up_peers(command, judge=judge, secret="", script="train.py", report=print)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.0.1.1", socket.gethostname(), socket.gethostname().upper()]
)
def test_what_is_this_machine(host: str) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "no-such-host.invalid", ""])
def test_what_is_another_or_none(host: str) -> None:
    assert not is_this_machine(host)


def test_a_job_on_one_machine_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "socket")
    setup = set_up(["torchrun", "--nproc-per-node=8", "train.py"])
    assert (setup.role, setup.listener, setup.claim, setup.several) == (InstanceRole.ALONE, None, None, False)
    assert isinstance(join_peers(setup, "job", print), NoPeers)


def test_who_comes_first_judges_and_gives_the_place_back(
    made: list[PeerSetup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHICHRANK_JOB_ID", raising=False)
    command = [*C10D, "--rdzv-endpoint=localhost:29400", "train.py"]
    made += [set_up(command), set_up(command), set_up([*C10D[:-1], "other", *command[-2:]])]
    first, second, other_job = made
    assert [setup.role for setup in made] == [InstanceRole.JUDGE, InstanceRole.FOLLOWER, InstanceRole.JUDGE]
    assert first.job == second.job != other_job.job
    assert first.secret == second.secret != other_job.secret
    assert second.node == f"{first.node}~{os.getpid()}"
    assert first.claim is not None
    assert first.listener is not None
    assert first.listener.getsockname()[1] in second.plan.ports
    first.claim.close()
    first.listener.close()
    made.append(set_up(command))
    assert made[-1].role is InstanceRole.JUDGE


def test_a_judge_that_is_no_address_leaves_the_node_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert set_up([*C10D, "train.py"], judge="host:port").role is InstanceRole.ALONE
    assert "watched alone" in capsys.readouterr().out


def test_print_config_says_who_would_judge() -> None:
    command = [*C10D, "--rdzv-endpoint=192.0.2.1:29400", "train.py"]
    argv = [sys.executable, "-m", "whichrank.commands.main", "run", "--print-config", "--", *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "# 2 nodes meet at 192.0.2.1 (torchrun --rdzv-endpoint), which is another machine: follower" in done.stdout
