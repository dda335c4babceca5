"""Faults within one job through the real operators: NVLink, firmware, hosts, the program, numbers."""

from __future__ import annotations

import pytest

from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.scoring.run_score import FaultScore, score_run

from .judged import Judged, judge, suspects


def judged_scenario(name: str, *, ranks: int = 16, at_s: float = 30.0, until_s: float = 60.0) -> Judged:
    """With the recipe of the scenario."""
    return judge(name, ranks=ranks, at_s=at_s, until_s=until_s, recipe=SCENARIOS[name].recipe)


def score_of(judged: Judged) -> FaultScore:
    score = score_run(judged.ledger.as_json(), judged.incidents)
    assert score.wrong_nodes == ()
    assert score.pages_too_many <= 0
    (fault,) = score.faults
    return fault


@pytest.mark.parametrize(
    ("name", "at_s", "until_s"),
    [
        ("gpu_out_of_memory", 30.0, 50.0),
        ("checkpoint_straggler", 50.0, 110.0),
        ("opposite_order", 30.0, 55.0),
        ("long_evaluation", 40.0, 90.0),
        ("flipped_bit", 60.0, 75.0),
        ("node_never_joins", 1.0, 60.0),
    ],
)
def test_the_right_rank_or_nobody_is_named(name: str, at_s: float, until_s: float) -> None:
    fault = score_of(judged_scenario(name, at_s=at_s, until_s=until_s))
    assert (fault.said, fault.top_1) == (fault.said, True)


@pytest.mark.parametrize(
    ("name", "scope", "condition"),
    [
        ("nvlink_down", "gpu", "xid_74"),
        ("gpu_firmware_hangs", "gpu", "xid_119"),
        ("shared_memory_full", "node", "shared_memory_full"),
        ("illegal_access", "application", "xid_31"),
        ("black_hole", "link", "port_loses_packets"),
    ],
)
def test_what_the_node_knows_is_the_cause(name: str, scope: str, condition: str) -> None:
    judged = judged_scenario(name, until_s=70.0)
    assert score_of(judged).top_1
    assert (judged.only["scope"], judged.only["cause"]["condition"]) == (scope, condition)


def test_a_node_that_writes_its_part_of_each_checkpoint_slowly_is_named_with_it() -> None:
    judged = judged_scenario("checkpoint_straggler", at_s=50.0, until_s=110.0)
    assert score_of(judged).scope
    assert judged.only["advice"]["action"] == "drain_after_job"
    assert "file system" in judged.only["advice"]["text"]


def test_who_evaluates_while_the_others_wait_does_what_its_script_says() -> None:
    judged = judged_scenario("long_evaluation", at_s=40.0, until_s=90.0)
    assert (judged.only["scope"], judged.only["severity"]) == ("application", "info")
    assert judged.only["advice"]["action"] == "wait"


def test_nobody_is_told_to_leave_for_what_a_program_did() -> None:
    assert judged_scenario("illegal_access").only["advice"]["action"] == "fix_code"


def test_a_guard_that_ends_the_run_only_tells_of_the_rank_whose_numbers_were_bad() -> None:
    judged = judged_scenario("nan_abort", at_s=60.0, until_s=75.0)
    assert judged.only["kind"] == "numeric_first_rank"
    assert suspects(judged.only) == set(judged.truth.ranks) != {0}


def test_a_bad_batch_is_found_though_its_loss_is_bad_only_once() -> None:
    judged = judged_scenario("bad_numbers", at_s=100.0, until_s=120.0)
    assert judged.only["kind"] == "numeric_first_rank"
    assert suspects(judged.only) == set(judged.truth.ranks)


def test_wrong_results_are_found_once_one_of_them_is_no_number() -> None:
    judged = judged_scenario("wrong_results", at_s=60.0, until_s=130.0)
    assert score_of(judged).top_1


def test_a_stage_that_stalls_is_the_one_that_does_not_wait() -> None:
    judged = judged_scenario("pipeline_stalls", ranks=32)
    assert judged.only["kind"] == "rank_not_entered"
    assert suspects(judged.only) == set(judged.truth.ranks)


def test_ranks_that_came_to_other_nodes_bring_nothing_with_them() -> None:
    judged = judge("process_killed+ranks_relabelled", ranks=24, at_s=30.0, until_s=80.0)
    assert judged.only["kind"] == "rank_died"
    job = judged.world.jobs[0]
    assert job.attempt is not None
    assert job.attempt.number == 1
    assert job.spec.nodes != (0, 1, 2)


def test_an_error_is_found_without_the_kernels_lines() -> None:
    judged = judge("gpu_memory_error+kernel_lines_lost", at_s=30.0, until_s=50.0)
    assert score_of(judged).top_1


@pytest.mark.parametrize("name", ["interpreter_pauses", "ranks_relabelled", "kernel_lines_lost"])
def test_nobody_is_paged_for_what_names_nobody(name: str) -> None:
    judged = judge(name, at_s=60.0, until_s=120.0)
    assert score_run(judged.ledger.as_json(), judged.incidents).pages == 0


def test_a_quota_that_is_full_is_no_ranks_doing() -> None:
    judged = judged_scenario("checkpoint_no_space")
    assert score_of(judged).top_1
    assert judged.only["advice"]["action"] == "raise_quota"


@pytest.mark.parametrize(
    "ranks",
    [
        64,
        pytest.param(
            16,
            marks=pytest.mark.xfail(
                strict=True,
                reason="among few ranks one is slowest often enough to be named for some steps, before it is told that "
                "the work is uneven",
            ),
        ),
    ],
)
def test_texts_of_uneven_lengths_make_all_slower(ranks: int) -> None:
    fault = score_of(judged_scenario("uneven_lengths", ranks=ranks, at_s=125.0, until_s=245.0))
    assert (fault.top_1, fault.scope) == (True, True)


def test_where_nobody_tells_when_receives_end_more_work_may_be_that_of_one_stage() -> None:
    judged = judged_scenario("heavy_stage", ranks=32, at_s=125.0, until_s=185.0)
    (last,) = {document["id"]: document for document in judged.revisions}.values()
    assert last["kind"] == "slow_together"
    assert any("or that of one pipeline stage" in row["shows"] for row in last["evidence"])


def test_a_stage_that_has_more_to_do_is_named() -> None:
    judged = judged_scenario("heavy_stage", ranks=128, at_s=125.0, until_s=165.0)
    fault = score_of(judged)
    assert (fault.top_1, fault.scope) == (True, True)
    (last,) = {document["id"]: document for document in judged.revisions}.values()
    assert any("first pass through pipeline stage 3" in row["shows"] for row in last["evidence"])
