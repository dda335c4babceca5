"""Clusters and the jobs on them, before anything goes wrong: one job, several side by side, crossing, in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..cluster_topology import ClusterShape, Topology
from ..jobs import JobSpec, Launcher
from ..mesh import Mesh, mesh_for
from ..program import Recipe
from .histories import histories_of

#: When a service goes away that jobs need to start.
SERVICE_AT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ScenarioLayout:
    """topology and jobs of a scenario, before anything goes wrong."""

    topology: Topology
    jobs: tuple[JobSpec, ...]


def one_job(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """One job on all nodes but one, which is spare."""
    mesh = mesh_for(ranks)
    per_node = min(8, ranks)
    nodes = ranks // per_node
    topology = Topology(shape=ClusterShape(nodes=nodes + 1, gpus_per_node=per_node))
    job = JobSpec(
        name="pretrain-a",
        mesh=mesh,
        nodes=tuple(range(nodes)),
        spares=(nodes,),
        recipe=recipe,
        ranks_per_node=per_node,
    )
    return ScenarioLayout(topology=topology, jobs=(job,))


def four_jobs(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """Four equal jobs side by side. Raises ValueError for fewer than 4 nodes."""
    return _side_by_side(ranks, recipe, 4)


def saving_jobs(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``four_jobs``, with a checkpoint after every 12 steps, not all at the same time."""
    return _one_after_the_other(four_jobs(ranks, replace(recipe, saves_every=12)), 6.0)


def reading_jobs(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``four_jobs``; they read half of what the file servers can give, and the last one saves now and then."""
    layout = four_jobs(ranks, replace(recipe, input_bytes=400_000_000))
    *readers, last = layout.jobs
    return replace(layout, jobs=(*readers, replace(last, recipe=replace(last.recipe, saves_every=15))))


def starting_jobs(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``four_jobs``; the first two run, the others are launched while a service is away (from SERVICE_AT_S on)."""
    layout = four_jobs(ranks, recipe)
    starts_s = (0.0, 10.0, SERVICE_AT_S + 10.0, SERVICE_AT_S + 25.0)
    return replace(
        layout, jobs=tuple(replace(job, start_s=at_s) for job, at_s in zip(layout.jobs, starts_s, strict=True))
    )


def _one_after_the_other(layout: ScenarioLayout, apart_s: float) -> ScenarioLayout:
    return replace(layout, jobs=tuple(replace(job, start_s=apart_s * place) for place, job in enumerate(layout.jobs)))


def histories(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """Jobs of some nodes each, one after the other on all nodes, as ``histories_of`` makes them."""
    topology, jobs = histories_of(ranks, recipe)
    return ScenarioLayout(topology=topology, jobs=jobs)


def jobs_over_spines(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """Three jobs that exchange much, each under two leaf switches of its own: two send over one spine, one over
    another.

    Raises ValueError for what is no multiple of 64 ranks.
    """
    nodes = ranks // 8
    if ranks % 64:
        raise ValueError(f"{ranks} ranks do not make 4 jobs under two leaf switches each")
    each = nodes // 8
    shape = ClusterShape(nodes=nodes, nodes_per_leaf=each, spines=2, flows_per_spine=6.0, has_static_routes=True)
    heavy = replace(recipe, data_bytes=3 * recipe.data_bytes)
    pairs = {"a": (0, 2), "c": (4, 6), "b": (1, 3), "d": (5, 7)}
    jobs = tuple(
        _job(name, tuple(range(one * each, (one + 1) * each)) + tuple(range(two * each, (two + 1) * each)), heavy)
        for name, (one, two) in pairs.items()
    )
    # The fourth would be as much too many for the other spine.
    return ScenarioLayout(topology=Topology(shape=shape), jobs=jobs[:3])


def preempting_jobs(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """One job on half of the nodes that goes before all others, two that may have these while it does not run, and one
    that nobody disturbs. Raises ValueError for what is not a multiple of 32 ranks.
    """
    nodes = ranks // 8
    if ranks % 32:
        raise ValueError(f"{ranks} ranks do not make jobs on a half and two quarters of the nodes")
    half, quarter = nodes // 2, nodes // 4
    first = _job("a", tuple(range(half)), replace(recipe, saves_every=8))
    again = Launcher(requeues=True, restart_s=45.0, most_restarts=20)
    filling = Launcher(restart_s=5.0, most_restarts=20)
    jobs = (
        replace(first, priority=1, launcher=again),
        replace(_job("b", tuple(range(quarter)), recipe), start_s=5.0, launcher=filling),
        replace(_job("c", tuple(range(quarter, half)), recipe), start_s=5.0, launcher=filling),
        _job("d", tuple(range(half, nodes)), recipe),
    )
    return ScenarioLayout(topology=Topology(shape=ClusterShape(nodes=nodes)), jobs=jobs)


def moving_job(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``one_job``; every launch of the job has other nodes for its ranks."""
    layout = one_job(ranks, recipe)
    job = replace(layout.jobs[0], launcher=Launcher(moves=True))
    return ScenarioLayout(topology=layout.topology, jobs=(job,))


def late_job(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``one_job``; the job starts after 10 s."""
    layout = one_job(ranks, recipe)
    return ScenarioLayout(topology=layout.topology, jobs=(replace(layout.jobs[0], start_s=10.0),))


def pipelined_job(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``one_job``, in four pipeline stages. Raises ValueError for fewer than 4 nodes."""
    return _with_mesh(one_job(ranks, recipe), mesh_for(ranks, pipeline=4))


def experts_job(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``one_job``, with two shards of tensors and eight experts. Raises ValueError for fewer than 2 nodes."""
    return _with_mesh(one_job(ranks, recipe), Mesh(tensor=2, data=ranks // 2, experts=8))


def _with_mesh(layout: ScenarioLayout, mesh: Mesh) -> ScenarioLayout:
    return ScenarioLayout(topology=layout.topology, jobs=(replace(layout.jobs[0], mesh=mesh),))


def two_jobs(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """Two equal jobs side by side. Raises ValueError for fewer than 2 nodes."""
    return _side_by_side(ranks, recipe, 2)


def crossing_jobs(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """Four jobs; three of them share each leaf switch that they use with another one, and the fourth has one for
    itself.

    Raises ValueError for what is no multiple of 64 ranks.
    """
    return _crossing(ranks, recipe, leaves=4, racks=2, racks_per_supply=1)


def jobs_over_racks(ranks: int, recipe: Recipe) -> ScenarioLayout:
    """As ``crossing_jobs``, all under one leaf switch; a quarter of the nodes hangs on each power supply, in two racks.

    Raises ValueError for what is no multiple of 64 ranks.
    """
    return _crossing(ranks, recipe, leaves=1, racks=8, racks_per_supply=2)


def _crossing(ranks: int, recipe: Recipe, *, leaves: int, racks: int, racks_per_supply: int) -> ScenarioLayout:
    """Quarters of the nodes: a has one half of the first and of the second, c the other one of the first and one of
    the third, b what is left of these two, d the fourth. Raises ValueError for what is not a multiple of 8 nodes."""
    nodes = ranks // 8
    if ranks % 64:
        raise ValueError(f"{ranks} ranks do not make 4 jobs of two halves each")
    quarter, half = nodes // 4, nodes // 8
    shape = ClusterShape(
        nodes=nodes,
        nodes_per_leaf=nodes // leaves,
        nodes_per_rack=max(1, nodes // racks),
        racks_per_supply=racks_per_supply,
    )

    def half_of(number: int, which: int) -> tuple[int, ...]:
        begin = number * quarter + which * half
        return tuple(range(begin, begin + half))

    places = {
        "a": half_of(0, 0) + half_of(1, 0),
        "b": half_of(1, 1) + half_of(2, 1),
        "c": half_of(0, 1) + half_of(2, 0),
        "d": half_of(3, 0) + half_of(3, 1),
    }
    return ScenarioLayout(
        topology=Topology(shape=shape), jobs=tuple(_job(name, at, recipe) for name, at in places.items())
    )


def _job(letter: str, nodes: tuple[int, ...], recipe: Recipe) -> JobSpec:
    mesh = mesh_for(8 * len(nodes))
    return JobSpec(name=f"job-{letter}", mesh=mesh, nodes=nodes, recipe=recipe, owner=f"team-{letter}")


def _side_by_side(ranks: int, recipe: Recipe, count: int) -> ScenarioLayout:
    nodes = ranks // 8
    if nodes < count or ranks % (8 * count):
        raise ValueError(f"{ranks} ranks do not make {count} jobs of whole nodes")
    each = nodes // count
    jobs = tuple(_job("abcd"[place], tuple(range(place * each, (place + 1) * each)), recipe) for place in range(count))
    return ScenarioLayout(topology=Topology(shape=ClusterShape(nodes=nodes)), jobs=jobs)
