"""On another ground, a job that lies under several leaves still sends over them."""

from __future__ import annotations

import pytest

from whichrank.simulator.program import Recipe
from whichrank.simulator.scenarios.grounds import HELD_OUT, Ground, moved
from whichrank.simulator.scenarios.layouts import crossing_jobs


@pytest.mark.parametrize("ground", HELD_OUT, ids=lambda ground: ground.name)
@pytest.mark.parametrize("ranks", [64, 512, 1024, 4096])
def test_some_ring_of_each_job_goes_over_its_leaves(ranks: int, ground: Ground) -> None:
    layout = crossing_jobs(ranks, Recipe())
    topology, jobs = moved(layout.topology, layout.jobs, ground, 100_031)
    for job in jobs:
        assert sorted(job.nodes) == sorted(set(job.nodes))
        leaves = [int(topology.leaf_of_node[node]) for node in job.nodes]
        per_stage = len(job.nodes) // job.mesh.pipeline
        if len(set(leaves)) == 1 or per_stage < 2:
            continue
        rings = [set(leaves[begin : begin + per_stage]) for begin in range(0, len(leaves), per_stage)]
        assert any(len(ring) > 1 for ring in rings), job.name
