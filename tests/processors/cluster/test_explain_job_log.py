"""A line of a rank's own log explains its incident; and the controls: which lines must not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.processors.cluster.conftest import Court, make_finding
from tests.processors.entity.node import Node
from whichrank.telemetry.vocabulary import Kind

FULL = "OSError: [Errno 28] No space left on device: '/ckpt/step_500.pt'"


def node_of_four(court: Court, name: str = "n1") -> Node:
    node = Node(name, court)
    for rank in range(4):
        node.rank(rank, f"GPU-{rank}")
    return node


def crash(court: Court, rank: int | None = 2, kind: Kind = Kind.RANK_RAISED) -> None:
    court.hear(make_finding(kind, rank, at=1.0, onset=0.0))


def the_incident(court: Court) -> Mapping[str, Any]:
    (document,) = court.pages
    return document


def cause_of(court: Court) -> tuple[str, str, str]:
    document = the_incident(court)
    return document["cause"]["condition"], document["cause"]["device"], document["scope"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_full_disk_is_why_a_rank_raised(court: Court, is_late: bool) -> None:
    node = node_of_four(court)
    if is_late:
        crash(court)
    node.job_log("disk_full", at=-0.2 if not is_late else 1.5, rank=2, text=FULL)
    if not is_late:
        crash(court)
    document = the_incident(court)
    assert cause_of(court) == ("disk_full", "102", "storage")
    assert document["advice"]["action"] == "raise_quota"
    assert [suspect["rank"] for suspect in document["suspects"]] == [2]
    (row,) = [row for row in document["evidence"] if row.get("condition") == "disk_full"]
    assert (row["signal"], FULL in row["shows"]) == ("job_log.disk_full", True)


def test_a_port_is_why_a_collective_of_its_rank_stalls(court: Court) -> None:
    node = node_of_four(court)
    node.job_log("network_link", at=-3.0, rank=2, port="mlx5_2:1", text="Got async event : port error")
    crash(court, kind=Kind.COLLECTIVE_STALLED)
    assert cause_of(court) == ("network_link", "102", "link")
    assert [row["trust"] for row in the_incident(court)["evidence"] if "mlx5_2:1" in row["shows"]] == ["user"]


def test_the_peer_that_a_user_buffer_waited_for(court: Court) -> None:
    node = node_of_four(court)
    crash(court, kind=Kind.RANK_NOT_ENTERED)
    node.job_log("user_buffer_timeout", at=30.0, rank=0, peer=2, text="expecting 5", warning="do not trust numbers")
    assert cause_of(court)[:2] == ("user_buffer_timeout", "102")
    assert any("do not trust numbers" in row["shows"] for row in the_incident(court)["evidence"])


def test_a_user_buffers_stale_data_is_why_numbers_went_wrong(court: Court) -> None:
    node = node_of_four(court)
    node.job_log("user_buffer_timeout", at=-20.0, rank=2, peer=0, text="expecting 5", warning="do not trust numbers")
    crash(court, kind=Kind.NUMERIC_FIRST_RANK)
    assert cause_of(court)[0] == "user_buffer_stale_data"


def test_a_preemption_is_of_the_whole_job_wherever_it_was_read(court: Court) -> None:
    node_of_four(court)
    batch = Node("n7", court)
    batch.rank(7)
    batch.job_log("preempted", at=-30.0, rank=7, text="CANCELLED DUE TO PREEMPTION")
    crash(court, kind=Kind.RANK_DIED)
    assert cause_of(court) == ("preempted", "j", "job")


def test_the_kernel_knows_better(court: Court) -> None:
    node = node_of_four(court)
    node.job_log("gpu_lost", at=-0.5, rank=2)
    node.xid(79, 2, at=-0.4, severity="error")
    crash(court, kind=Kind.RANK_DIED)
    assert cause_of(court)[0] == "xid_79"


# --- controls ---------------------------------------------------------------------------------------------------------
def control(court: Court) -> Mapping[str, Any]:
    document = the_incident(court)
    assert "cause" not in document
    assert document["scope"] == "rank"
    assert not [row for row in document["evidence"] if "condition" in row]
    return document


@pytest.mark.parametrize("role", ["cascade", "teardown", "confirmation", "context"])
def test_not_what_follows_from_something_else(court: Court, role: str) -> None:
    node_of_four(court).job_log("disk_full", at=-0.2, rank=2, role=role, text=FULL)
    crash(court)
    assert control(court)["ruled_out"] == []


def test_not_the_line_of_another_rank(court: Court) -> None:
    node_of_four(court).job_log("disk_full", at=-0.2, rank=3, text=FULL)
    crash(court)
    (row,) = control(court)["ruled_out"]
    assert (row["who"], "it is rank 3, not" in row["because"]) == ("process 103 of n1", True)


def test_not_long_before(court: Court) -> None:
    node_of_four(court).job_log("disk_full", at=-300.0, rank=2, text=FULL)
    crash(court)
    (row,) = control(court)["ruled_out"]
    assert "went on after it" in row["because"]


def test_not_after(court: Court) -> None:
    node = node_of_four(court)
    crash(court)
    node.job_log("disk_full", at=20.0, rank=2, text=FULL)
    (row,) = control(court)["ruled_out"]
    assert "after the onset" in row["because"]


def test_not_of_another_attempt_or_before_the_agent(court: Court) -> None:
    node_of_four(court).job_log("disk_full", at=-0.2, rank=2, text=FULL, before_start=True)
    crash(court)
    control(court)


def test_not_what_makes_nothing_slow(court: Court) -> None:
    node_of_four(court).job_log("disk_full", at=-0.2, rank=2, text=FULL)
    crash(court, kind=Kind.RANK_SLOW)
    control(court)


def test_not_the_preemption_of_another_job(court: Court) -> None:
    node = node_of_four(court)
    node.rank(0, pid=900, job="other")
    node.job_log("preempted", at=-5.0, rank=0, job="other", pid=900)
    crash(court, kind=Kind.RANK_DIED)
    control(court)


def test_not_a_preemption_of_what_a_rank_raised_by_itself(court: Court) -> None:
    node_of_four(court).job_log("preempted", at=-30.0, rank=1)
    crash(court, kind=Kind.RANK_RAISED)
    control(court)


def test_not_a_time_limit_that_came_over_a_crashed_job(court: Court) -> None:
    node = node_of_four(court)
    crash(court, kind=Kind.RANK_DIED)
    node.job_log("time_limit", at=20.0, rank=1)
    control(court)


def test_not_the_eviction_of_another_node(court: Court) -> None:
    node_of_four(court)
    other = Node("n7", court)
    other.rank(7)
    other.job_log("evicted", at=-5.0, rank=7)
    crash(court, kind=Kind.RANK_DIED)
    control(court)


def test_not_the_writer_of_a_user_buffers_time_out(court: Court) -> None:
    node_of_four(court).job_log("user_buffer_timeout", at=5.0, rank=2, peer=0)
    crash(court, kind=Kind.RANK_NOT_ENTERED)
    control(court)
