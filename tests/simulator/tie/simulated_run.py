"""The same job simulated: same mesh, same ranks on one node, gloo, and phases as the real one's healthy steps had them.

Leaves a folder as ``whichrank simulate --out`` does, so that it is read as a real run's is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from whichrank.commands.run_folder.run_description import RunDescription
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.evaluation.simulate.judge import CaptureBus, encoded
from whichrank.simulator.clock import START_UNIX_NS, generator, ns
from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.faults.catalogue import CATALOGUE
from whichrank.simulator.faults.fault import FaultSite, Planned
from whichrank.simulator.jobs import JobSpec
from whichrank.simulator.mesh import Mesh
from whichrank.simulator.resources import ParameterChange
from whichrank.simulator.world import World

from .healthy import Healthy
from .kinds import EVALUATION_S, GUILTY, RANKS, UNEVEN, Kind
from .observed import observe

JOB = "tied"
#: After the last step that counts; and so long is one watched that stands still or has ended.
TAIL_S, STANDS_S = 2.0, 30.0
START_S = 30.0


def run_simulated(kind: Kind, healthy: Healthy, *, into_step_s: float, seed: int, folder: Path) -> float:
    """into_step_s: the fault bites so long after its step has begun. Returns when that is, Unix seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    without = folder.with_name(f"{folder.name}-healthy")
    shutil.rmtree(without, ignore_errors=True)
    _simulate(
        kind, healthy, None, seed=seed, until_s=START_S + kind.steps_before * healthy.step_s + 5.0, folder=without
    )
    seen = observe(without).steps
    # The same draws: up to the fault the run with it is this one.
    last = int(np.flatnonzero(seen.steps == kind.steps_before - 1)[0])
    began_s = (int(seen.begin_ns[last]) + int(seen.duration_ns[last]) - START_UNIX_NS) / 1e9
    # What changes a rate acts on the steps that begin after it.
    with_a_step = kind.with_a_step or kind.adds > 0.0
    at_s = began_s - 0.5 * healthy.step_s if with_a_step else began_s + into_step_s
    planned = None if kind.is_clean else plan_fault(kind, healthy, at_s, seed)
    after_s = kind.steps_after * healthy.step_s * (1.0 + kind.adds) + kind.stands_s if kind.goes_on else STANDS_S
    _simulate(kind, healthy, planned, seed=seed, until_s=at_s + after_s + TAIL_S, folder=folder)
    shutil.rmtree(without)
    return START_UNIX_NS / 1e9 + (began_s if with_a_step else at_s)


def plan_fault(kind: Kind, healthy: Healthy, at_s: float, seed: int) -> Planned:
    """As the catalogue has it, at the rank and of the size of the real one."""
    topology, job = _cluster(), job_of(kind, healthy)
    site = SiteOfTie(topology=topology, jobs=(job,), random=generator(seed, kind.name), at_s=at_s)
    planned = CATALOGUE[kind.simulated].plan(site)
    return replace(planned, changes=tuple(_sized(change, kind, healthy) for change in planned.changes))


class SiteOfTie(FaultSite):
    def any_rank(self) -> int:
        return GUILTY


def _sized(change: ParameterChange, kind: Kind, healthy: Healthy) -> ParameterChange:
    """Of the real fault's seconds a step; what is up or down has no size. A rank that works faster adds less work."""
    added_s = kind.adds * healthy.step_s
    added_work_s = added_s * (1.0 - UNEVEN * np.arange(RANKS) / (RANKS - 1))
    match change.family, change.name:
        case "gpu", "speed":
            rank = change.places[0]
            kernels_s = float(healthy.kernels_s[rank])
            slower = kernels_s / (kernels_s + float(added_work_s[rank]))
            return replace(change, value=float(healthy.speed[rank]) * slower)
        case "program", "work":
            return replace(change, value=1.0 + float(np.median(added_work_s / healthy.kernels_s)))
        case ("host", "input") | ("process", "loader"):
            return replace(change, value=healthy.fetch_s / (healthy.fetch_s + added_s))
        case _:
            return change


def _cluster() -> Topology:
    return Topology(shape=ClusterShape(nodes=1, gpus_per_node=RANKS))


def job_of(kind: Kind, healthy: Healthy) -> JobSpec:
    return JobSpec(
        name=JOB,
        mesh=Mesh(data=RANKS),
        nodes=(0,),
        # Of the fastest rank, in seconds; it is the first one that evaluates.
        recipe=replace(healthy.recipe(), evaluation_s=EVALUATION_S * float(healthy.speed[0]), **kind.program),
        noise=healthy.noise_of_life(),
        ranks_per_node=RANKS,
    )


def _as_it_is(healthy: Healthy) -> Sequence[ParameterChange]:
    """How this node differs from a sound one of the simulator, all the time. Its loader looks up no files."""
    slower = [
        ParameterChange(at_s=0.0, family="gpu", name="speed", value=float(speed), places=(rank,))
        for rank, speed in enumerate(healthy.speed)
    ]
    return [*slower, ParameterChange(at_s=0.0, family="program", name="metadata_ops", value=0.0, job=JOB)]


def _simulate(
    kind: Kind, healthy: Healthy, planned: Planned | None, *, seed: int, until_s: float, folder: Path
) -> None:
    faults = [] if planned is None else [planned]
    world = World(
        _cluster(),
        (job_of(kind, healthy),),
        seed=seed,
        scenario="tie",
        changes=[*_as_it_is(healthy), *(change for fault in faults for change in fault.changes)],
        truths=[fault.truth for fault in faults],
    )
    directory = RunDirectory(folder)
    bus = CaptureBus(directory.capture, start_unix_ns=world.start_unix_ns)
    for end_s, sent in world.run(until_s):
        for message in sent:
            bus.advance(world.start_unix_ns + ns(message.at_s))
            for value in encoded(message):
                bus.append(message.topic, message.key, value)
        bus.advance(world.start_unix_ns + ns(end_s))
    bus.close()
    started_s = world.start_unix_ns / 1e9
    description = RunDescription(
        command=("whichrank", "simulate"), started=started_s, ended=started_s + until_s, listens=True, simulated=True
    )
    directory.write_run(description)
    (folder / "truth.json").write_text(json.dumps(world.settle().as_json(), indent=1) + "\n")
