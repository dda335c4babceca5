"""How fast the simulator is: ranks x steps per CPU second, with the nodes' collectors and without.

``python -m benchmarks.simulator_speed [RANKS ...]``; by default 1,024, 16,384 and 131,072 ranks (two jobs).
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.jobs import JobSpec
from whichrank.simulator.mesh import Mesh, mesh_for
from whichrank.simulator.program import Recipe
from whichrank.simulator.propagate import StepGiven, propagate
from whichrank.simulator.world import World

#: The jobs have begun their second step by then; so long it is measured.
WARM_S, MEASURED_S = 14.0, 12.0
#: An agent refuses member lists of more than 64 KiB: larger clusters hold several jobs.
LARGEST_JOB = 65_536
#: With more ranks than this the nodes' collectors are left out: their looks alone take minutes.
MOST_SENSED = 16_384


def propagation_s(mesh: Mesh) -> float:
    """CPU seconds of the times of one step."""
    program, one = Recipe().program(mesh), np.ones(mesh.world_size)
    given = StepGiven(
        host_s=one,
        device_s=one,
        kernel_pace=one,
        launch_pace=one,
        input_s=0.1 * one,
        save_s=one,
        rate=dict.fromkeys(mesh.dimensions, 5e10 * one),
        latency_s=dict.fromkeys(mesh.dimensions, 1e-5),
    )
    propagate(program, given)
    began_s = time.process_time()
    for _ in range(5):
        propagate(program, given)
    return (time.process_time() - began_s) / 5


def measure(ranks: int, *, sensed: bool) -> str:
    jobs = -(-ranks // LARGEST_JOB)
    nodes = ranks // 8 // jobs
    specs = [
        JobSpec(
            name=f"job-{number}", mesh=mesh_for(8 * nodes), nodes=tuple(range(number * nodes, (number + 1) * nodes))
        )
        for number in range(jobs)
    ]
    world = World(Topology(shape=ClusterShape(nodes=nodes * jobs)), specs, seed=1, senses=sensed)

    def steps() -> int:
        return sum(job.attempt.steps.live[-1].step for job in world.jobs if job.attempt is not None)

    began_s, before = 0.0, 0
    for end_s, _ in world.run(WARM_S + MEASURED_S):
        if end_s == WARM_S:
            began_s, before = time.process_time(), steps()
    cpu_s = time.process_time() - began_s
    rank_steps = (steps() - before) * 8 * nodes
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return (
        f"{ranks:>7} ranks, {jobs} job{'s' if jobs > 1 else ''}, {'with' if sensed else 'without'} collectors: "
        f"{rank_steps / cpu_s:,.0f} ranks x steps per CPU second, {MEASURED_S / cpu_s:.1f} x real time, "
        f"{gigabytes:.2f} GB at most so far"
    )


def main() -> None:
    for ranks in [int(word) for word in sys.argv[1:]] or [1024, 16_384, 131_072]:
        mesh = mesh_for(min(ranks, LARGEST_JOB))
        print(f"{mesh.world_size:>7} ranks: the times of a step in {propagation_s(mesh) * 1e3:.1f} ms", flush=True)
        for sensed in (False, True) if ranks <= MOST_SENSED else (False,):
            print(measure(ranks, sensed=sensed), flush=True)


if __name__ == "__main__":
    main()
