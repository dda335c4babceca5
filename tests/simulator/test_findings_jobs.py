"""Faults between jobs through the real operators: they tell what the fault says of itself, and no node is blamed.

Histories of many jobs take a while each.
"""

from __future__ import annotations

import pytest

from tests.long_runs import LONG
from whichrank.simulator.scoring.run_score import RunScore, score_run

from .judged import Judged, judge

pytestmark = LONG


def scored(judged: Judged) -> RunScore:
    return score_run(judged.ledger.as_json(), judged.incidents)


def assert_right(judged: Judged) -> None:
    score = scored(judged)
    assert [(fault.said, fault.top_1, fault.scope) for fault in score.faults] == [
        (judged.truth.kinds[0], True, True)
    ], [(each["kind"], each["scope"]) for each in judged.incidents]
    assert score.wrong_nodes == ()


@pytest.mark.parametrize("name", ["filesystem_full", "quota_used_up"])
def test_no_room_is_the_file_system_s_and_stays_one_incident_over_restarts(name: str) -> None:
    judged = judge(name, ranks=64, at_s=40.0, until_s=135.0)
    assert_right(judged)
    assert len([each for each in judged.incidents if each["state"] != "merged"]) == 1


def test_jobs_that_cannot_start_wait_for_a_service() -> None:
    judged = judge("service_away", ranks=64, at_s=60.0, until_s=165.0)
    assert_right(judged)
    (leader,) = [each for each in judged.incidents if each["state"] != "merged"]
    assert {row["id"] for row in leader["jobs"]} == {"job-c", "job-d"}


def test_whoever_is_pushed_out_is_charged_to_the_job_that_comes_again_and_again() -> None:
    judged = judge("requeued_again", ranks=64, at_s=45.0, until_s=240.0)
    assert_right(judged)
    (cascade,) = [each for each in judged.incidents if each["kind"] == "preemption_cascade"]
    assert {row["id"] for row in cascade["jobs"] if row["role"] == "victim"} == {"job-b", "job-c"}


def test_stalls_that_follow_each_burst_are_the_writer_s() -> None:
    assert_right(judge("checkpoint_burst", ranks=64, at_s=100.0, until_s=240.0))


def test_two_jobs_over_one_spine_need_no_broken_switch() -> None:
    assert_right(judge("one_spine", ranks=64, at_s=330.0, until_s=450.0))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("lemon_node", "lemon_node"), ("bad_rollout", "rollout_fault"), ("corrupts_jobs", "silent_corruption")],
)
def test_what_shows_only_over_many_jobs(name: str, kind: str) -> None:
    judged = judge(name, ranks=64, at_s=48.0, until_s=384.0)
    assert judged.truth.kinds == (kind,)
    assert_right(judged)
