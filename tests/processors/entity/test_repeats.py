"""Repeats of a node's signals become conditions, live: from lines of its log, and across restarts of the operator."""

from __future__ import annotations

from typing import Any

from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.entity.node import Node
from whichrank.diagnosis.kernel_log.recurrence import parameters
from whichrank.processors.entity.conditions import MAX_SIGHTINGS, EntityState
from whichrank.processors.entity.rules import load_rules
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName, Kind

HOUR_S = 3600.0
GPU = ("GPU-0", "GPU-1")
#: Of repeats, more than ``bursts.gap_s`` apart.
APART_S = 600.0
REPEATED_31, LINK_74 = "repeated_mmu_fault_on_gpu", "nvlink_parity_error"


def xid_31(rank: int, pid: int) -> str:
    return (
        f"NVRM: Xid (PCI:0000:{10 + rank:02x}:00): 31, pid={pid}, name=python, Ch 00000010, intr 00000000. "
        "MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_3 faulted @ 0x7f01_cc000000. "
        "Fault is of type FAULT_PDE ACCESS_TYPE_READ"
    )


def xid_74(rank: int, link: int, register: int) -> str:
    """One bit of the first register is set."""
    numbers = ", ".join([f"0x{1 << register:08x}", *["0x00000000"] * 6])
    return (
        f"NVRM: Xid (PCI:0000:{10 + rank:02x}:00): 74, pid='<unknown>', name=<unknown>, "
        f"NVLink: fatal error detected on link {link}({numbers})"
    )


def with_jobs(*jobs: str) -> Node:
    """Each had ranks 0 and 1 on the node's GPUs, an hour after the other."""
    node = Node()
    for number, job in enumerate(jobs):
        for rank, gpu in enumerate(GPU):
            node.rank(rank, gpu, at=number * HOUR_S - 100.0, job=job, pid=pid_of(number, rank))
    return node


def pid_of(job: int, rank: int) -> int:
    return 1000 * (job + 1) + rank


def drained(at: float, **found: bool) -> Event:
    """As the scheduler tells it of the node."""
    attributes = {"scheduler": "slurm", "what": "node_state", "name": "drain", **found}
    who = Identity(cluster="local", node="n1")
    return Event(name=EventName.SCHEDULER, identity=who, time_ns=round((START_S + at) * 1e9), attributes=attributes)


def names(node: Node) -> set[str]:
    return {body["name"] for body in node.open.values()}


def test_a_fault_that_two_jobs_meet_on_one_gpu_is_the_gpus() -> None:
    node = with_jobs("first", "second")
    node.log(xid_31(0, pid_of(0, 0)), at=10.0)
    assert REPEATED_31 not in names(node)
    node.log(xid_31(0, pid_of(1, 0)), at=HOUR_S + 10.0)
    told = node.open[f"{REPEATED_31}/GPU-0"]
    assert (told["domain"], told["scope"], told["action"]) == ("hardware", "gpu", "restart_without_node")
    assert told["text"] == "repeated mmu fault on gpu: Xid 31, 2 times"


def test_a_program_that_is_started_again_does_it_again() -> None:
    node = Node()
    for number in range(6):
        at = number * APART_S
        node.rank(0, GPU[0], at=at - 60.0, attempt=f"a{number}", pid=pid_of(number, 0))
        node.log(xid_31(0, pid_of(number, 0)), at=at)
    assert names(node) == {"xid_31"}


def test_two_jobs_that_meet_it_on_several_gpus_have_the_same_bug() -> None:
    node = with_jobs("first", "second")
    for number, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        node.log(xid_31(rank, pid_of(number, rank)), at=number * HOUR_S + 10.0 + rank * APART_S)
    assert names(node) == {"xid_31"}


def test_whose_process_it_was_need_not_be_known_for_a_fault_of_the_link() -> None:
    node = Node()
    node.log(xid_74(0, 4, 5), at=0.0)
    assert names(node) == {"xid_74"}
    node.log(xid_74(0, 4, 5), at=APART_S)
    assert node.open[f"{LINK_74}/0000:0a:00"]["action"] == "replace_link"


def test_another_link_of_the_gpu_is_another_place() -> None:
    node = Node()
    node.log(xid_74(0, 4, 5), at=0.0)
    node.log(xid_74(0, 5, 5), at=APART_S)
    assert names(node) == {"xid_74"}


def test_the_driver_and_the_kernel_tell_of_one_fault() -> None:
    """Whichever is first, and whatever they call the device."""
    for driver_s in (-1.0, 1.0):
        node = Node()
        node.rank(0, GPU[0])
        for at in (0.0, APART_S):
            told: dict[str, Any] = {"event": "xid", "code": "74", "gpu_uuid": GPU[0], "pci_bus": "00000000:0A:00.0"}
            if driver_s < 0:
                node.tell(EventName.DEVICE_EVENT, at=at + driver_s, **told)
            node.log(xid_74(0, 4, 5), at=at)
            if driver_s > 0:
                node.tell(EventName.DEVICE_EVENT, at=at + driver_s, **told)
            assert (LINK_74 in names(node)) == (at > 0)
        assert f"{LINK_74}/GPU-0" in node.open


def test_the_same_line_again_is_no_repeat() -> None:
    node = Node()
    line = xid_74(0, 4, 5)
    for _ in range(3):
        node.log(line, at=0.0)
    assert names(node) == {"xid_74"}


def test_a_port_that_loses_its_link_three_times_in_an_hour_flaps() -> None:
    node = Node()
    for number in range(3):
        assert "nic_link_flaps/0000:5e:00.1" not in node.open
        node.log("mlx5_core 0000:5e:00.1 eth1: Link down", at=number * 30.0)
        node.log("mlx5_core 0000:5e:00.1 eth1: Link up", at=number * 30.0 + 5.0)
        node.log("mlx5_core 0000:5e:00.0 eth0: Link up", at=number * 30.0 + 6.0)
    assert node.open["nic_link_flaps/0000:5e:00.1"]["action"] == "replace_link"


def test_two_ports_of_one_board_are_two() -> None:
    node = Node()
    for number, port in enumerate((0, 1, 0, 1)):
        node.log(f"mlx5_core 0000:5e:00.{port} eth{port}: Link down", at=number * 30.0)
    assert not any(name.startswith("nic_link_flaps") for name in node.open)


def test_a_node_that_was_taken_away_five_times_is_to_be_replaced() -> None:
    node = Node()
    for number in range(5):
        at = number * 6 * HOUR_S
        node.take(drained(at))
        node.take(drained(at + HOUR_S, over=True))
    assert "repeated_repairs" not in names(node)
    node.log(
        "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", at=30 * HOUR_S
    )
    assert node.open["repeated_repairs/"]["action"] == "restart_without_node"


def test_a_log_that_any_user_can_write_tells_no_repeats() -> None:
    node = Node()
    for at in (0.0, APART_S):
        node.xid(74, 0, at=at, link="4", registers="0x20", trust="user")
    assert names(node) == {"xid_74"}


def test_what_came_late_counts_where_it_belongs() -> None:
    node = Node()
    late = node.read(xid_74(0, 4, 5), at=0.0)
    node.log(xid_74(0, 4, 5), at=APART_S)
    for event in late:
        node.take(event)
    assert LINK_74 not in names(node), "of the older one nothing follows"
    node.log(xid_74(0, 4, 5), at=2 * APART_S)
    assert node.open[f"{LINK_74}/0000:0a:00"]["text"].endswith("3 times")


def test_the_history_is_bounded() -> None:
    node = Node()
    for number in range(MAX_SIGHTINGS + 20):
        node.xid(1000 + number, 0, at=float(number), severity="error")
    row = node.context.state.table("entity")
    state = EntityState.unpack(row.get("state") or b"", row.get("still"))
    assert [each.code for each in state.sightings][:1] == ["1020"]
    assert len(state.sightings) == MAX_SIGHTINGS


def test_every_rule_of_repeats_has_an_effect_or_is_of_the_program() -> None:
    for rule in parameters().rules:
        found = load_rules().of_event(EventName.KERNEL_EVENT, rule.name, "", rule.domain.value, "error")
        assert (found is None) == (rule.domain.value == "application"), rule.name


def test_the_gpu_is_the_cause_of_the_second_jobs_end() -> None:
    """Of the first it is the program's, as far as anybody can know."""
    court = Court()
    node = Node(court=court)
    node.rank(2, "GPU-2", job="other", at=-2 * HOUR_S, pid=pid_of(7, 2))
    node.log(xid_31(2, pid_of(7, 2)), at=-HOUR_S)
    for rank in range(4):
        node.rank(rank, f"GPU-{rank}")
    node.log(xid_31(2, 102), at=-0.2)
    court.hear(make_finding(Kind.RANK_RAISED, 2, at=0.3, onset=0.0))
    (document,) = court.pages
    assert (document["scope"], document["cause"]["condition"]) == ("gpu", REPEATED_31)
    assert document["advice"]["action"] == "restart_without_node"
