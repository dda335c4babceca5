"""Which condition of a node explains an incident; and the controls: which must not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.processors.cluster.conftest import START_S, Court, make_finding
from tests.processors.endings import raised_fact, row_of
from tests.processors.entity.node import Node
from whichrank.telemetry.evidence_facts import EvidenceFact, How
from whichrank.telemetry.vocabulary import Bucket, EventName, Kind


def the_incident(court: Court) -> Mapping[str, Any]:
    (document,) = court.pages
    return document


def node_of_four(court: Court) -> Node:
    node = Node(court=court)
    for rank in range(4):
        node.rank(rank, f"GPU-{rank}")
    return node


def hang(court: Court, rank: int = 2, onset: float = 0.0) -> None:
    court.hear(make_finding(Kind.RANK_NOT_ENTERED, rank, at=onset + 4.0, onset=onset))


@pytest.mark.parametrize("line_first", [True, False])
def test_a_hang_because_its_gpu_fell_off_the_bus(court: Court, *, line_first: bool) -> None:
    node = node_of_four(court)
    if line_first:
        node.xid(79, 2, at=-0.8)
        hang(court)
    else:  # the kernel's log was read late
        hang(court)
        node.xid(79, 2, at=-0.8)
    document = the_incident(court)
    assert (document["scope"], document["kind"]) == ("gpu", "rank_not_entered")
    assert document["cause"]["device"] == document["suspects"][0]["gpu"] == "GPU-2"
    assert document["advice"]["action"] == "restart_without_node"
    assert [row["signal"] for row in document["evidence"]] == ["kernel.xid_79", "rank.rank_not_entered"]
    assert "0.8 s before the onset" in document["evidence"][0]["shows"]
    assert document["confidence"] > 0.9
    assert len(court.revisions) == (1 if line_first else 2)


def test_the_job_dies_of_memory_that_the_kernel_took_back(court: Court) -> None:
    node = node_of_four(court)
    court.hear(make_finding(Kind.RANK_DIED, 1, at=0.3, onset=0.1))
    node.kernel("cgroup_oom_kill", at=0.0, device_kind="memory", domain="host", pid=101, text="Killed process 101")
    document = the_incident(court)
    assert (document["scope"], document["cause"]["condition"]) == ("application", "cgroup_oom_kill")
    assert document["advice"]["action"] == "raise_quota"


def test_somebody_else_was_killed(court: Court) -> None:
    node = node_of_four(court)
    node.kernel("oom_kill", at=-0.2, device_kind="memory", domain="host", pid=103, text="Killed process 103")
    court.hear(make_finding(Kind.RANK_DIED, 1, at=0.3, onset=0.1))
    assert "cause" not in the_incident(court)


def test_a_process_that_is_no_rank_was_killed(court: Court) -> None:
    node = node_of_four(court)
    node.kernel("oom_kill", at=-0.2, device_kind="memory", domain="host", pid=9999, text="Killed process 9999")
    court.hear(make_finding(Kind.RANK_DIED, 1, at=0.3, onset=0.1))
    assert "cause" not in the_incident(court)


def test_a_mount_that_stalls_explains_a_rank_that_does_not_come(court: Court) -> None:
    node = node_of_four(court)
    node.tell(EventName.PROBE_LATE, at=-1.0, mount="/data", operation="stat", age_s=0.5)
    hang(court)
    document = the_incident(court)
    assert (document["scope"], document["cause"]["device"]) == ("storage", "/data")


@pytest.mark.parametrize("mount_at", [3.0, 9.0])
def test_the_mount_is_the_cause_and_that_the_rank_waits_for_it_is_a_symptom(court: Court, mount_at: float) -> None:
    """Whichever look comes first: the state of the process is read more often than a mount is probed."""
    node = node_of_four(court)
    hang(court)
    found = {"pid": 102, "state": "D", "age_s": 1.0}
    node.tell(EventName.RANK_PROCESS, at=4.5, **found)
    assert the_incident(court)["cause"]["condition"] == "rank_in_disk_wait"
    node.tell(EventName.PROBE_LATE, at=mount_at + 4.0, mount="/data", operation="stat", age_s=4.0)
    document = the_incident(court)
    assert (document["scope"], document["cause"]["condition"]) == ("storage", "mount_stalls")
    assert {row["condition"] for row in document["evidence"] if "condition" in row} == {
        "mount_stalls",
        "rank_in_disk_wait",
    }


@pytest.mark.parametrize(
    ("kind", "grew"), [(Kind.COLLECTIVE_STALLED, ""), (Kind.SLOW_TOGETHER, "exchange"), (Kind.SLOW_TOGETHER, "")]
)
def test_a_mount_that_stalls_does_not_hold_what_devices_exchange(court: Court, kind: Kind, grew: str) -> None:
    node = node_of_four(court)
    node.tell(EventName.PROBE_LATE, at=-1.0, mount="/data", operation="stat", age_s=0.5)
    court.hear(make_finding(kind, at=4.0, onset=0.0, grew=grew))
    assert court.revisions
    assert not any("cause" in document for document in court.revisions)


@pytest.mark.parametrize(("bucket", "explained"), [(Bucket.CAPACITY, False), (Bucket.IMMEDIATE_CRASH, True)])
def test_a_mount_that_stalls_leaves_nobody_without_room(court: Court, bucket: Bucket, *, explained: bool) -> None:
    """Who is told that there is no room has had an answer; an error of reading may come of it."""
    node = node_of_four(court)
    node.tell(EventName.PROBE_LATE, at=-1.0, mount="/data", operation="stat", age_s=0.5)
    says = "I/O error" if explained else "[Errno 122] Disk quota exceeded"
    shown = row_of("rank.exception", "rank 2", START_S, raised_fact(f"OSError: {says}", rank=2))
    finding = make_finding(Kind.RANK_RAISED, 2, at=1.0, onset=0.0, evidence=[shown], bucket=bucket.value)
    court.hear(finding)
    assert ("cause" in the_incident(court)) is explained


@pytest.mark.parametrize(
    ("says", "explained"),
    [
        ("IndexError: index 50304 is out of bounds for dimension 0 with size 50304", False),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", False),
        ("ConnectionRefusedError: [Errno 111] Connection refused", False),
        ("OSError: I/O error", True),
        ("fsspec.exceptions.ReadFailed: [Errno 5] /data/shard-7", True),
    ],
)
def test_that_a_program_ends_with_an_exit_code_makes_no_mount_its_cause(
    court: Court, says: str, *, explained: bool
) -> None:
    """What it raised says what it was; the code of its exit is known some seconds later, and the same for all."""
    node = node_of_four(court)
    node.tell(EventName.PROBE_LATE, at=-1.0, mount="/data", operation="stat", age_s=0.5)
    rows = [
        row_of("rank.exception", "rank 2", START_S, raised_fact(says, rank=2)),
        row_of("rank.exit", "rank 2", START_S, EvidenceFact(how=How.EXIT, rank=2, exit_code=1)),
    ]
    court.hear(make_finding(Kind.RANK_RAISED, 2, at=1.0, onset=0.0, evidence=rows))
    assert ("cause" in the_incident(court)) is explained


def test_a_collective_that_nobody_can_tell_whose_is_of_the_rank_whose_gpu_is_gone(court: Court) -> None:
    node = node_of_four(court)
    node.xid(79, 3, at=-0.5)
    court.hear(make_finding(Kind.COLLECTIVE_STALLED, None, at=4.0, onset=0.0))
    (suspect,) = the_incident(court)["suspects"]
    assert (suspect["rank"], suspect["gpu"], suspect["node"]) == (3, "GPU-3", "n1")


# --- controls: each a real hang ---------------------------------------------------------------------------------------
def control(court: Court) -> Mapping[str, Any]:
    document = the_incident(court)
    assert "cause" not in document
    assert document["scope"] == "rank"
    assert [suspect["rank"] for suspect in document["suspects"]] == [2]
    assert not [row for row in document["evidence"] if "condition" in row]
    return document


def test_not_the_gpu_of_another_rank(court: Court) -> None:
    node_of_four(court).xid(79, 3, at=-0.8)
    hang(court)
    (row,) = control(court)["ruled_out"]
    assert row["who"] == "gpu GPU-3 of n1"
    assert "used by rank 3" in row["because"]


def test_not_another_node(court: Court) -> None:
    other = Node("n2", court)
    other.rank(7, "GPU-7")
    other.xid(79, 7, at=-0.8)
    hang(court)
    control(court)


def test_not_ten_minutes_earlier(court: Court) -> None:
    node_of_four(court).xid(79, 2, at=-600.0)
    hang(court)
    (row,) = control(court)["ruled_out"]
    assert "went on after it" in row["because"]


@pytest.mark.parametrize("later", [7.0, 60.0])
def test_not_after_the_hang(court: Court, later: float) -> None:
    node = node_of_four(court)
    hang(court)
    node.xid(79, 2, at=later)
    (row,) = control(court)["ruled_out"]
    assert "after the onset" in row["because"]


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_not_what_the_application_did_to_its_gpu(court: Court, code: int) -> None:
    node_of_four(court).xid(code, 2, at=-0.5, domain="application", severity="error", action="fix_code")
    hang(court)
    control(court)


def test_not_a_link_that_came_back(court: Court) -> None:
    node = node_of_four(court)
    node.kernel("nic_link_down", at=-1.0, device="mlx5_0", device_kind="nic", domain="network")
    node.kernel("nic_link_up", at=0.5, device="mlx5_0", device_kind="nic", domain="network")
    hang(court)
    control(court)


def test_a_link_that_stays_down_is_named(court: Court) -> None:
    node = node_of_four(court)
    node.kernel("nic_link_down", at=-1.0, device="mlx5_0", device_kind="nic", domain="network")
    hang(court)
    assert the_incident(court)["cause"]["condition"] == "link_down"


def test_not_memory_that_was_corrected(court: Court) -> None:
    node_of_four(court).kernel(
        "edac", at=-0.5, device="mc0", device_kind="memory", domain="hardware", severity="info", text="1 CE on DIMM_A1"
    )
    hang(court)
    control(court)


def test_a_link_that_came_back_is_taken_back_as_the_cause(court: Court) -> None:
    """It was down when we first spoke, and up again too soon to have done it."""
    node = node_of_four(court)
    node.kernel("nic_link_down", at=-1.0, device="mlx5_0", device_kind="nic", domain="network")
    hang(court)
    node.kernel("nic_link_up", at=5.0, device="mlx5_0", device_kind="nic", domain="network")
    control(court)


def test_what_is_found_out_is_the_same_whatever_comes_first(court: Court, new_court: type[Court]) -> None:
    """Kernel lines before or after the finding: the same last words, but for the revision."""
    node = node_of_four(court)
    node.xid(79, 2, at=-0.8)
    node.xid(31, 1, at=-0.7, domain="application", severity="error")
    hang(court)
    late = new_court()
    second = node_of_four(late)
    hang(late)
    second.xid(31, 1, at=-0.7, domain="application", severity="error")
    second.xid(79, 2, at=-0.8)
    leave = {"revision", "change"}
    first_words, late_words = (
        {name: value for name, value in the_incident(each).items() if name not in leave} for each in (court, late)
    )
    assert first_words == late_words
    assert first_words["times"]["onset"] == START_S


# --- what went wrong once ---------------------------------------------------------------------------------------------
def test_the_second_process_that_the_kernel_kills_is_the_rank(court: Court) -> None:
    node = node_of_four(court)
    node.log("Out of memory: Killed process 9999 (convert) total-vm:9kB, anon-rss:9kB, file-rss:0kB", at=-300.0)
    node.log("Out of memory: Killed process 101 (python3) total-vm:9kB, anon-rss:9kB, file-rss:0kB", at=-0.1)
    court.hear(make_finding(Kind.RANK_DIED, 1, at=0.3, onset=0.1))
    assert the_incident(court)["cause"]["condition"] == "oom_kill"


@pytest.mark.parametrize("line_first", [True, False])
def test_an_error_that_did_no_harm_once_does_harm_when_it_comes_again(court: Court, *, line_first: bool) -> None:
    node = node_of_four(court)
    node.xid(94, 2, at=-600.0, severity="error")
    if line_first:
        node.xid(94, 2, at=-0.5, severity="error")
    hang(court)
    if not line_first:
        node.xid(94, 2, at=-0.5, severity="error")
    document = the_incident(court)
    assert document["cause"]["since"] == START_S - 0.5
    assert not [row for row in document["ruled_out"] if "condition" in row]


def test_what_comes_again_later_takes_no_earlier_cause_back(court: Court) -> None:
    node = node_of_four(court)
    node.xid(79, 2, at=-0.5)
    node.kernel("nic_link_down", at=-0.4, device="mlx5_0", device_kind="nic", domain="network")
    node.kernel("nic_link_up", at=14.0, device="mlx5_0", device_kind="nic", domain="network")
    hang(court)
    before = the_incident(court)
    node.xid(79, 2, at=1000.0)
    node.kernel("nic_link_down", at=1000.0, device="mlx5_0", device_kind="nic", domain="network")
    after = the_incident(court)
    assert after["cause"] == before["cause"]
    shown = [{row["condition"] for row in each["evidence"] if "condition" in row} for each in (before, after)]
    assert shown == [{"xid_79", "link_down"}] * 2


def test_a_stall_without_a_suspect_is_not_of_another_jobs_gpu(court: Court) -> None:
    node = node_of_four(court)
    node.kernel("soft_lockup", at=-500.0, device="cpu3", device_kind="cpu", domain="host")  # so it is known to be here
    node.rank(0, "GPU-6", job="k", pid=900)
    node.kernel("xid", at=-0.5, code="79", device="0000:10:00", device_kind="gpu", severity="fatal")
    court.hear(make_finding(Kind.COLLECTIVE_STALLED, None, at=4.0, onset=0.0))
    document = the_incident(court)
    assert (document.get("cause"), document["suspects"]) == (None, [])


def test_a_node_that_is_slow_is_its_devices_and_no_mounts_that_nobody_needs(court: Court) -> None:
    node = node_of_four(court)
    node.tell(EventName.PROBE_LATE, at=-1.2, mount="/home", operation="stat", age_s=0.5)
    told = {"whichrank.gpu.reason": "hw_power_brake_slowdown"}
    node.measure_where("whichrank.gpu.throttled", {f"GPU-{rank}": 1.0 for rank in range(4)}, told, at=-1.0)
    suspect = {"scope": "node", "id": "n1", "rank": None, "ranks": "0-3", "node": "n1", "probability": 0.95}
    court.hear(make_finding(Kind.RANK_SLOW, 0, at=9.0, onset=0.0, scope="node", suspects=[suspect]))
    assert court.revisions[-1]["cause"]["condition"] == "gpu_power_brake"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_is_slow_as_a_whole_is_no_single_nodes_doing_where_several_tell_the_same(
    court: Court, nodes: int
) -> None:
    """A power supply that holds down all of its nodes is told by one of them first, and none of them is to go."""
    for number in range(nodes):
        node = Node(f"n{number}", court)
        for rank in (2 * number, 2 * number + 1):
            node.rank(rank, f"GPU-{rank}")
        told = {"whichrank.gpu.reason": "hw_power_brake_slowdown"}
        node.measure_where("whichrank.gpu.throttled", {f"GPU-{2 * number}": 1.0}, told, at=-1.0 + 0.1 * number)
    court.hear(make_finding(Kind.SLOW_TOGETHER, None, at=9.0, onset=0.0, grew="own", scope="job"))
    document = court.revisions[-1]
    assert document["cause"]["condition"] == "gpu_power_brake"
    assert len([row for row in document["evidence"] if row.get("condition")]) == nodes
    if nodes == 1:
        assert (document["scope"], [suspect["node"] for suspect in document["suspects"]]) == ("node", ["n0"])
        return
    assert (document["scope"], document["suspects"]) == ("job", [])
    assert document["advice"]["action"] not in ("drain_after_job", "restart_without_node")


def test_the_suspects_node_is_heard_among_many_with_troubles_of_their_own(court: Court) -> None:
    for number in range(40):
        other = Node(f"other-{number}", court)
        other.rank(100 + number, f"GPU-of-{number}")
        other.kernel("mce", at=-0.1, device="cpu3", device_kind="cpu", domain="hardware", severity="error")
    node_of_four(court).xid(79, 2, at=-0.8)
    hang(court)
    assert the_incident(court)["cause"]["condition"] == "xid_79"


def test_after_a_restart_a_gpu_is_of_the_rank_that_uses_it_now(court: Court) -> None:
    """Rank 2 had GPU-2 in the first attempt; in the second it is rank 3's."""
    node = node_of_four(court)
    for rank, gpu in ((2, 3), (3, 2)):
        node.rank(rank, f"GPU-{gpu}", at=-50.0, pid=200 + rank, attempt="a2")
    node.kernel("xid", at=-0.5, code="79", device="0000:0c:00", device_kind="gpu", severity="fatal")
    court.hear(make_finding(Kind.RANK_NOT_ENTERED, 2, at=4.0, onset=0.0, attempt="a2"))
    (row,) = control(court)["ruled_out"]
    assert "used by rank 3" in row["because"]
    court.hear(make_finding(Kind.RANK_NOT_ENTERED, 3, at=4.0, onset=0.0, attempt="a3"))
    assert court.pages[-1]["cause"]["device"] == "GPU-2"


@pytest.mark.parametrize("rank", [2, 3])
def test_a_rank_that_the_kernel_holds_is_itself_what_stands_still(court: Court, rank: int) -> None:
    node = node_of_four(court)
    found = {"pid": 100 + rank, "device": str(100 + rank), "device_kind": "process", "state": "D", "age_s": 12.0}
    node.tell(EventName.RANK_PROCESS, at=11.0, **found)
    node.log(f"INFO: task python3:{100 + rank} blocked for more than 122 seconds.", at=122.0)
    hang(court)
    if rank == 2:
        assert the_incident(court)["cause"]["condition"] in ("hung_task", "rank_in_disk_wait")
    else:
        control(court)
