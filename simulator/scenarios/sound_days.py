"""Days without a fault, and with everything that looks like one: what nobody may be woken for.

Checkpoints, evaluations, slow first steps; the scheduler takes the job's nodes for maintenance, or starts it again;
agents restart, collectors and messages fail for a while, links of the job go down for a moment, and harmless
anomalies of the catalogue (``faults.harmless``) stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..clock import generator
from ..cluster_topology import ClusterShape, Topology
from ..faults.catalogue import CATALOGUE
from ..faults.fault import FaultKind, FaultSite
from ..ground_truth import Truth
from ..jobs import JobSpec
from ..mesh import mesh_for
from ..program import Recipe
from ..resources import ParameterChange
from ..simulated_attempt import FLUSH_S
from ..world import World
from .grounds import HELD_OUT, HELD_OUT_SEED, moved

#: Harmless kinds bear numbers of this kind in the catalogue.
_HARMLESS = "h"
#: Agents in reduced mode send once a minute.
REDUCED_FLUSH_S = 60.0
#: Beside the spare ones so many nodes of the job have collectors then: looks of all would cost more than all the rest.
SEEN_NODES = 2
#: A collective library rides out what is shorter.
_FLAP_S = (0.3, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundDayMode:
    """How a day without faults is run. step_s: length of a step. steps_only: agents send one row per rank and step.

    flush_s: time between two flushes. around_s: each kind of happening comes about once in such a time. gateway_s: see
    ``World``.
    """

    name: str
    step_s: float
    steps_only: bool
    flush_s: float
    around_s: float
    gateway_s: float = 0.0


#: The design's reference load: steps of 2 s, and all records.
REFERENCE = SoundDayMode(name="reference", step_s=2.0, steps_only=False, flush_s=FLUSH_S, around_s=1800.0)
REDUCED = SoundDayMode(
    name="reduced",
    step_s=20.0,
    steps_only=True,
    flush_s=REDUCED_FLUSH_S,
    around_s=12 * 3600.0,
    gateway_s=1.0,
)
MODES = (REFERENCE, REDUCED)


def sound_world(mode: SoundDayMode, ranks: int, seed: int, seconds: float) -> World:
    """A world of ``seconds`` without a fault, with all that looks like one: one job on all nodes but two, which are
    spare.

    Its mesh and placement follow from the seed.
    """
    nodes = ranks // 8
    recipe = Recipe(
        step_s=mode.step_s,
        input_s=0.2 * mode.step_s,
        saves_every=100,
        evaluates_every=150,
        evaluation_s=15.0 * mode.step_s,
    )
    topology = Topology(shape=ClusterShape(nodes=nodes + 2))
    job = JobSpec(
        name="pretrain-a",
        mesh=mesh_for(ranks),
        nodes=tuple(range(nodes)),
        spares=(nodes, nodes + 1),
        recipe=recipe,
        steps_only=mode.steps_only,
    )
    if seed >= HELD_OUT_SEED:
        topology, (job,) = moved(topology, (job,), HELD_OUT[seed % len(HELD_OUT)], seed)
    random = generator(seed, "sound", mode.name)
    changes, truths = [], []
    seen = job.nodes if not mode.steps_only else tuple(random.choice(job.nodes, min(SEEN_NODES, nodes), replace=False))
    for at_s in _moments(random, mode, seconds):
        changes += _agents_and_links(random, topology, job, seen, at_s)
    for at_s in _moments(random, mode, seconds):
        kind = _any_harmless(random)
        planned = kind.plan(FaultSite(topology=topology, jobs=(job,), random=random, at_s=at_s))
        changes += planned.changes
        truths.append(planned.truth)
    for at_s in _moments(random, replace(mode, around_s=4 * mode.around_s), seconds):
        changes += _taken_away(random, job, at_s)
    changes = _in_time(changes, seconds)
    return World(
        topology,
        (job,),
        seed=seed,
        scenario=f"sound_days_{mode.name}",
        changes=changes,
        truths=_nothing_to_tell(truths),
        senses={*map(int, seen), *job.spares} if mode.steps_only else True,
        window_s=mode.flush_s,
        gateway_s=mode.gateway_s,
    )


def _moments(random: np.random.Generator, mode: SoundDayMode, seconds: float) -> Iterator[float]:
    """Once the job has made some steps, and while there is time left for what follows."""
    first_s, last_s = 60.0 * mode.step_s, seconds - 60.0 * mode.step_s
    count = random.poisson(max(0.0, last_s - first_s) / mode.around_s)
    yield from sorted(random.uniform(first_s, max(first_s, last_s), count).tolist())


def _agents_and_links(
    random: np.random.Generator, topology: Topology, job: JobSpec, nodes: Sequence[int], at_s: float
) -> list[ParameterChange]:
    """One of each in turn: an agent that restarts, a collector and messages that fail, a link that flaps."""
    changes: list[ParameterChange] = []

    def for_a_while(
        family: str, name: str, place: int, seconds: float, bad: float, good: float, after_s: float
    ) -> None:
        begins_s = at_s + after_s
        for moment_s, value in ((begins_s, bad), (begins_s + seconds, good)):
            changes.append(ParameterChange(at_s=moment_s, family=family, name=name, value=value, places=(place,)))

    def any_node() -> int:
        return int(random.choice(nodes))

    ends = str(random.choice(["up", "wanted"]))  # it is killed, or told to end
    for_a_while("agent", ends, any_node(), float(random.uniform(3.0, 20.0)), 0.0, 1.0, 0.0)
    collector = str(random.choice(["gpu", "network", "kernel_log", "storage", "host", "processes"]))
    for_a_while("agent", collector, any_node(), float(random.uniform(60.0, 600.0)), 0.0, 1.0, 40.0)
    for_a_while("agent", "loss", any_node(), float(random.uniform(5.0, 40.0)), 1.0, 0.0, 90.0)
    port = any_node() * topology.shape.gpus_per_node + int(random.integers(job.ranks_per_node))
    for_a_while("port", "up", port, float(random.uniform(*_FLAP_S)), 0.0, 1.0, 150.0)
    return changes


def _taken_away(random: np.random.Generator, job: JobSpec, at_s: float) -> list[ParameterChange]:
    """Maintenance of some minutes, or a restart at once."""
    seconds = float(random.choice([5.0, 600.0]))
    return [
        ParameterChange(at_s=moment_s, family="program", name="granted", value=value, job=job.name)
        for moment_s, value in ((at_s, 0.0), (at_s + seconds, 1.0))
    ]


def _any_harmless(random: np.random.Generator) -> FaultKind:
    kinds = [kind for kind in CATALOGUE.values() if kind.number.startswith(_HARMLESS)]
    return kinds[int(random.integers(len(kinds)))]


def _in_time(changes: Sequence[ParameterChange], seconds: float) -> list[ParameterChange]:
    return sorted((change for change in changes if change.at_s < seconds), key=lambda change: change.at_s)


def _nothing_to_tell(truths: Sequence[Truth]) -> list[Truth]:
    """Raises ValueError for a kind that somebody should be told of."""
    if any(truth.kinds for truth in truths):
        raise ValueError("a harmless kind must ask for no verdict")
    return list(truths)
