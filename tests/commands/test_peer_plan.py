"""Who judges, where, and why."""

from __future__ import annotations

import pytest

from whichrank.commands.multi_node.launcher import Rendezvous, find_rendezvous
from whichrank.commands.multi_node.peer_plan import (
    FIRST_PORT,
    PORT_COUNT,
    InstanceRole,
    PeerPlan,
    plan_peers,
    secret_of,
)

C10D = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=head:29400 train.py"


def plan(command: str, *, local: str = "", judge: str = "", job: str = "") -> PeerPlan:
    return plan_peers(find_rendezvous(command.split(), {}), judge=judge, job=job, is_local=lambda host: host == local)


def test_one_machine_opens_no_port() -> None:
    alone = plan("torchrun --nproc-per-node=8 train.py", local="head")
    assert (alone.role, alone.ports, alone.nodes) == (InstanceRole.ALONE, (), 1)


def test_the_instance_at_the_rendezvous_judges() -> None:
    here, there = plan(C10D, local="head"), plan(C10D, local="other")
    assert (here.role, there.role) == (InstanceRole.FIRST_COME, InstanceRole.FOLLOWER)
    assert (here.ports, here.key, here.nodes) == (there.ports, there.key, 2)
    assert "head" in here.why
    assert "this machine" in here.why
    assert "--rdzv-endpoint" in here.why


def test_a_fixed_number_beats_the_address() -> None:
    """The master's address may be a service that is no machine's own."""
    command = "torchrun --nnodes=2 --node-rank={} --master-addr=svc train.py"
    assert plan(command.format(0)).role is InstanceRole.JUDGE
    assert plan(command.format(1), local="svc").role is InstanceRole.FOLLOWER


def test_a_given_judge_beats_everything_and_may_fix_the_port() -> None:
    given = plan(C10D, local="head", judge="other:7777")
    assert (given.role, given.host, given.ports) == (InstanceRole.FOLLOWER, "other", (7777,))
    assert plan("bash start.sh", local="other", judge="other").role is InstanceRole.FIRST_COME
    with pytest.raises(ValueError, match="no address"):
        plan("bash start.sh", judge="other:port")


def test_two_jobs_at_one_address_have_different_keys_and_secrets() -> None:
    one, two = plan(C10D), plan(C10D.replace("train.py", "--rdzv-id=2 train.py"))
    same_key = plan(C10D, job="a")
    assert len({one.key, two.key, same_key.key}) == 3
    assert secret_of(one, "") == secret_of(plan(C10D), "")
    assert len({secret_of(one, ""), secret_of(two, ""), secret_of(one, "given")}) == 3


def test_ports_lie_in_the_documented_range() -> None:
    for number in range(300):
        found = Rendezvous(host="h", port=1, id=str(number), places=2, place=-1, source="")
        ports = plan_peers(found, judge="", job="", is_local=lambda host: False).ports
        assert len(ports) == 4
        assert all(FIRST_PORT <= port < FIRST_PORT + PORT_COUNT for port in ports)
