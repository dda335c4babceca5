"""What went wrong once on other meshes and topologies than the first that operators were tuned on."""

from __future__ import annotations

import json

import pytest

from tests.long_runs import LONG
from whichrank.evaluation.bench.matrix import score_lines
from whichrank.evaluation.bench.one_run import AskedRun, run
from whichrank.evaluation.simulate.judge import Judge
from whichrank.simulator.scenarios.grounds import SEEN, SEEN_SEED, Ground, ground_of
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.scoring.run_score import score_run


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        # Who works for the late stage stands out with it, and is no part of it.
        pytest.param("loaders_starve", True, marks=LONG),
        ("cores_taken", True),  # those of the other stage lose as much, or nearly
        ("pcie_narrow", False),  # what is wrong says a collector, which may not watch
        pytest.param("slow_gpu_tenth", True, marks=LONG),  # in two stages, its steps are longer by three percent
    ],
)
def test_a_rank_that_is_slow_within_a_pipeline_is_named(name: str, scope: bool) -> None:
    seed = next(seed for seed in range(SEEN_SEED, SEEN_SEED + len(SEEN)) if ground_of(name, seed).pipeline > 1)
    measured = run(AskedRun(scenario=name, ranks=64, seed=seed, is_plain=scope))
    score = score_lines(measured, measured.revisions)
    assert score.wrong_nodes == ()
    assert [(fault.said, fault.top_1) for fault in score.faults] == [("rank_slow", True)]
    assert not scope or score.faults[0].scope


def test_no_node_is_lost_whose_agent_restarts_during_a_deadlock() -> None:
    measured = run(AskedRun(scenario="opposite_order", ranks=64, seed=21))
    assert measured.truth is not None
    assert "agent_restarts" in {fault.fault for fault in measured.truth.faults}
    assert {str(json.loads(line)["kind"]) for line in measured.revisions} == {"deadlock"}


def test_peers_are_those_who_work_together_and_not_those_who_send_to_each_other() -> None:
    """Four stages are the smaller groups; in them nobody waits in a collective for the late rank."""
    ground = Ground(name="four stages", tensor=8, pipeline=4)
    world = SCENARIOS["slow_gpu"].build(64, 3, ground=ground, company=False)
    judge = Judge(start_unix_ns=world.start_unix_ns)
    for until_s, sent in world.run(210.0):
        judge.take(until_s, sent)
    judge.close()
    (fault,) = score_run(world.settle().as_json(), [each.document for each in judge.revisions]).faults
    assert (fault.said, fault.top_1, fault.scope) == ("rank_slow", True, True)
