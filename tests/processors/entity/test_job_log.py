"""What lines of ranks' logs signal: of whom, and which are none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processors.entity.node import Node
from whichrank.diagnosis.job_log.taxonomy import failure_classes
from whichrank.processors.entity.condition_rules import EventRule
from whichrank.processors.entity.rules import load_rules
from whichrank.telemetry.vocabulary import EventName, Scope

OF_JOB_LOG = [rule for rule in load_rules().events if rule.source is EventName.JOB_LOG]


@pytest.mark.parametrize("rule", OF_JOB_LOG, ids=lambda rule: "-".join(sorted(rule.words)))
def test_the_words_are_classes_and_scopes_are_theirs(rule: EventRule) -> None:
    for word in rule.words - {"user_buffer_stale_data"}:  # of our own: the other side of a time-out
        found = failure_classes()[word]
        assert found.scope is rule.effect.scope
        assert found.scope is not Scope.APPLICATION, "the rank's own exception tells it"


def test_each_class_has_one_rule() -> None:
    words = [word for rule in OF_JOB_LOG for word in rule.words]
    assert len(words) == len(set(words)) > 15


def node_of_four() -> Node:
    node = Node()
    for rank in range(4):
        node.rank(rank)
    return node


def line(told: Node, word: str, at: float = 0.0, *, rank: int | None = 2, job: str = "j", **more: Any) -> None:
    told.job_log(word, at=at, rank=rank, job=job, **more)


def test_a_full_disk_is_a_condition_of_the_process_that_met_it() -> None:
    node = node_of_four()
    line(node, "disk_full", text="No space left on device")
    condition = node.open["disk_full/102"]
    assert [rank["rank"] for rank in condition["ranks"]] == [2]
    assert (condition["device_kind"], condition["pid"], condition["of_process"]) == ("process", 102, True)
    assert (condition["scope"], condition["domain"], condition["action"]) == ("storage", "storage", "raise_quota")


def test_two_ranks_are_two_conditions() -> None:
    node = node_of_four()
    line(node, "disk_full", rank=1)
    line(node, "disk_full", rank=3)
    assert {key: body["ranks"][0]["rank"] for key, body in node.open.items()} == {
        "disk_full/101": 1,
        "disk_full/103": 3,
    }


@pytest.mark.parametrize(
    "more",
    [
        {"role": "cascade"},
        {"role": "teardown"},
        {"role": "confirmation"},
        {"role": ""},
        {"before_start": True},
        {"node": "n9"},
        {"rank": None},
        {"severity": "warning"},
    ],
    ids=str,
)
def test_what_is_no_signal(more: dict[str, Any]) -> None:
    node = node_of_four()
    line(node, "disk_full", **more)
    assert node.findings == []


@pytest.mark.parametrize(
    "word", ["cuda_out_of_memory", "permission_denied", "assertion", "collective_timeout", "peer_lost", "error_message"]
)
def test_what_the_rank_tells_itself_is_no_condition(word: str) -> None:
    node = node_of_four()
    line(node, word)
    assert node.findings == []


def test_the_own_port_is_told() -> None:
    node = node_of_four()
    line(node, "network_link", text="Got async event : port error", port="mlx5_2:1")
    assert "local port mlx5_2:1" in node.open["network_link/102"]["text"]


def test_a_user_buffers_time_out_is_of_the_peer_and_its_numbers_of_the_writer() -> None:
    node = node_of_four()
    line(node, "user_buffer_timeout", peer=0, text="expecting 5, observed 4", warning="do not trust numbers")
    assert [rank["rank"] for rank in node.open["user_buffer_timeout/100"]["ranks"]] == [0]
    stale = node.open["user_buffer_stale_data/102"]
    assert "do not trust numbers" in stale["text"]
    assert stale["explains"] == ["numeric_all", "numeric_first_rank"]


@pytest.mark.parametrize("peer", [None, 77])
def test_a_peer_that_is_not_named_or_not_here_is_nobody(peer: int | None) -> None:
    node = node_of_four()
    line(node, "user_buffer_timeout", peer=peer)
    assert list(node.open) == ["user_buffer_stale_data/102"]


def test_a_preemption_concerns_all_ranks_of_its_job_and_no_other() -> None:
    node = node_of_four()
    node.rank(0, pid=900, job="other")
    line(node, "preempted", rank=0, job="other", pid=900)
    condition = node.open["preempted/other"]
    assert [(rank["job"], rank["rank"]) for rank in condition["ranks"]] == [("other", 0)]


def test_whose_a_preemption_is_must_be_known() -> None:
    node = node_of_four()
    line(node, "preempted", rank=None, job="")
    assert len(node.open["preempted/j"]["ranks"]) == 4  # one job runs here
    node = node_of_four()
    node.rank(0, pid=900, job="other")
    line(node, "preempted", rank=None, job="")
    assert node.findings == []
