"""The ledger books no second twice: a slow GPU's steps and evaluations are what they would have been, and its loss."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.ground_truth import TimeUse
from whichrank.simulator.jobs import JobSpec
from whichrank.simulator.mesh import Mesh
from whichrank.simulator.program import Recipe
from whichrank.simulator.resources import ParameterChange
from whichrank.simulator.world import World

JOB, STEPS, EVALUATIONS = "pretrain-a", 18, 3


def sums_s(*changes: ParameterChange) -> Mapping[TimeUse, float]:
    """Of a job of so many steps on four ranks, an evaluation before each fifth."""
    recipe = Recipe(step_s=2.0, backend="gloo", evaluates_every=5, evaluation_s=6.0)
    spec = JobSpec(name=JOB, mesh=Mesh(data=4), nodes=(0, 1), ranks_per_node=2, recipe=recipe, steps=STEPS)
    world = World(Topology(shape=ClusterShape(nodes=2, gpus_per_node=2)), [spec], seed=3, changes=changes, senses=False)
    for _ in world.run(150.0):
        pass
    ledger = world.settle()
    assert sum(ledger.sums_ns(JOB).values()) == (ledger.reach_ns(JOB) or 0) - ledger.begin_ns(JOB)
    return {bucket: ns / 1e9 for bucket, ns in ledger.sums_ns(JOB).items()}


def test_work_and_evaluations_are_as_long_as_without_the_slow_gpu_and_the_rest_is_its_loss() -> None:
    even = sums_s()
    slow = sums_s(ParameterChange(at_s=20.0, family="gpu", name="speed", value=0.75, places=(1,)))
    assert even[TimeUse.EVALUATION] > EVALUATIONS * 5.0
    assert slow[TimeUse.EVALUATION] == pytest.approx(even[TimeUse.EVALUATION], abs=0.05)
    assert slow[TimeUse.PRODUCTIVE] == pytest.approx(even[TimeUse.PRODUCTIVE], abs=0.2)
    assert TimeUse.STRAGGLER not in even
    a_third_of_all = (slow[TimeUse.PRODUCTIVE] + slow[TimeUse.EVALUATION]) / 3.0
    assert 0.5 * a_third_of_all < slow[TimeUse.STRAGGLER] < a_third_of_all
