"""Many short jobs one after the other on the same nodes: what shows only over days, in minutes.

A life of weeks is told by its jobs, not by the hours between them: each job here stands for one that ran for days, and
rates of failure are as many times higher. Who gets which nodes is the scheduler's, drawn anew in each round.
"""

from __future__ import annotations

from dataclasses import replace

from ..clock import generator
from ..cluster_topology import ClusterShape, Topology
from ..jobs import JobSpec, Launcher
from ..mesh import mesh_for
from ..program import Recipe

ROUNDS, ROUND_S = 8, 48.0
#: Steps of one second; with start and first step a job takes some 38 s.
_STEP_S, _STEPS = 1.0, 24
#: Jobs side by side, at most.
_MOST_SLOTS = 16
_NODES_PER_JOB = 2
_TEAMS = ("team-a", "team-b", "team-c", "team-d", "team-e", "team-f")


def histories_of(ranks: int, recipe: Recipe) -> tuple[Topology, tuple[JobSpec, ...]]:
    """A cluster, and jobs in ROUNDS rounds on changing nodes of it. Raises ValueError for what is no multiple of 32
    ranks.
    """
    nodes = ranks // 8
    if ranks % 32:
        raise ValueError(f"{ranks} ranks do not make jobs of {_NODES_PER_JOB} nodes side by side")
    slots = min(_MOST_SLOTS, nodes // _NODES_PER_JOB)
    each = nodes // slots
    topology = Topology(shape=ClusterShape(nodes=nodes))
    random = generator("histories", ranks)
    jobs = []
    for number in range(ROUNDS):
        order = random.permutation(nodes).tolist()
        for slot in range(slots):
            jobs.append(
                JobSpec(
                    name=f"train-{number * slots + slot:03d}",
                    mesh=mesh_for(8 * each),
                    nodes=tuple(order[slot * each : (slot + 1) * each]),
                    recipe=replace(recipe, step_s=_STEP_S, input_s=0.2),
                    launcher=Launcher(most_restarts=0),
                    start_s=ROUND_S * number + float(random.uniform(0.0, 4.0)),
                    asked_s=ROUND_S * number,
                    steps=_STEPS,
                    owner=_TEAMS[int(random.integers(0, len(_TEAMS)))],
                )
            )
    return topology, tuple(jobs)
