"""Other grounds for the same scenario: smaller nodes, scattered placement, other meshes.

A scenario's layout says who shares what with whom (leaves, racks, nodes); a ground keeps that, and changes how large
nodes are, in which order ranks lie on them, and how a job's ranks are split into groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..clock import generator
from ..cluster_topology import Topology
from ..jobs import JobSpec
from ..mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """How nodes, placement and meshes differ. tensor: at most so many ranks of a node share a layer; 1: data parallel
    only.

    pipeline: stages, where they fit. gpus_per_node: at most. is_scattered: a job's nodes do not follow each other.
    spines: 0 as the layout has it.
    """

    name: str
    tensor: int
    pipeline: int = 1
    gpus_per_node: int = 8
    is_scattered: bool = False
    spines: int = 0

    def in_words(self) -> str:
        """For a table of results: name, mesh, nodes and fabric."""
        mesh = "dp" if self.tensor == 1 else f"tp{self.tensor} x dp"
        mesh = mesh.replace(" x dp", f" x pp{self.pipeline} x dp") if self.pipeline > 1 else mesh
        placed = ", nodes scattered" if self.is_scattered else ""
        spines = f", {self.spines} spines" if self.spines else ""
        return f"{self.name}: {mesh}, {self.gpus_per_node} GPUs per node{placed}{spines}"


#: What the operators were tuned on at first, and what they were measured on, so that its failures were learned from.
TUNING = Ground(name="tuning", tensor=8)
SEEN = (
    Ground(name="small-nodes", tensor=4, gpus_per_node=4, spines=4),
    Ground(name="small-nodes-dp", tensor=1, gpus_per_node=4, spines=4),
    Ground(name="scattered-dp", tensor=1, is_scattered=True, spines=16),
    Ground(name="scattered-pp", tensor=4, pipeline=2, is_scattered=True, spines=16),
)
#: What they were not: two topologies, each with two meshes.
HELD_OUT = (
    Ground(name="scattered-small-tp2", tensor=2, gpus_per_node=4, is_scattered=True, spines=6),
    Ground(name="scattered-small-pp", tensor=4, pipeline=2, gpus_per_node=4, is_scattered=True, spines=6),
    Ground(name="many-spines-tp2", tensor=2, spines=12),
    Ground(name="many-spines-pp4", tensor=8, pipeline=4, spines=12),
)
#: Seeds of runs on these begin here; smaller ones are used for tuning.
SEEN_SEED, HELD_OUT_SEED = 50_000, 100_000


def ground_of(scenario: str, seed: int) -> Ground:
    """Which ground a run stands on: TUNING, SEEN or HELD_OUT by the range of its seed.

    Of seeds that follow each other, each ground is met by one of four.
    """
    if seed < SEEN_SEED:
        return TUNING
    grounds = SEEN if seed < HELD_OUT_SEED else HELD_OUT
    first = int(generator(0, "ground", scenario).integers(len(grounds)))
    return grounds[(first + seed) % len(grounds)]


def moved(
    topology: Topology, jobs: Sequence[JobSpec], ground: Ground, seed: int
) -> tuple[Topology, tuple[JobSpec, ...]]:
    """The same cluster and jobs on another ground; as they are for ``TUNING``. What does not fit the layout is left as
    it is.
    """
    if ground == TUNING:
        return topology, tuple(jobs)
    shape, jobs = topology.shape, tuple(jobs)
    if not shape.has_static_routes:  # there, who sends how much over which spine is what the layout is about
        if ground.spines:
            shape = replace(shape, spines=ground.spines)
        jobs = tuple(replace(job, mesh=_mesh(job, ground)) for job in jobs)
    if ground.is_scattered:
        jobs = tuple(replace(job, nodes=_scattered(job, seed)) for job in jobs)
    parts = shape.gpus_per_node // ground.gpus_per_node
    if parts > 1 and all(job.ranks_per_node == shape.gpus_per_node for job in jobs):
        shape = replace(
            shape,
            nodes=shape.nodes * parts,
            gpus_per_node=ground.gpus_per_node,
            nodes_per_leaf=shape.nodes_per_leaf * parts,
            nodes_per_rack=shape.nodes_per_rack * parts,
        )
        jobs = tuple(_split(job, parts, ground.gpus_per_node) for job in jobs)
    if len(jobs) > 1:
        jobs = tuple(_across_leaves(job, shape.nodes_per_leaf) for job in jobs)
    return replace(topology, shape=shape), tuple(jobs)


def _across_leaves(job: JobSpec, nodes_per_leaf: int) -> JobSpec:
    """Where a job lies under several leaves and each of its stages under one, no ring goes over what the layout is
    about, and a leaf without uplinks would harm nobody (1,024 ranks, four stages): each stage gets nodes of all."""
    stages = job.mesh.pipeline
    per_stage = len(job.nodes) // stages
    if stages == 1 or per_stage < 2:
        return job
    leaves = [node // nodes_per_leaf for node in job.nodes]
    rings = [set(leaves[stage * per_stage : (stage + 1) * per_stage]) for stage in range(stages)]
    if len(set(leaves)) == 1 or any(len(ring) > 1 for ring in rings):
        return job
    return replace(job, nodes=tuple(node for stage in range(stages) for node in job.nodes[stage::stages]))


def _mesh(job: JobSpec, ground: Ground) -> Mesh:
    """Of as many ranks. Where stages do not fit, without; a mesh with experts keeps what it is."""
    mesh, ranks = job.mesh, job.mesh.world_size
    if mesh.experts > 1 or mesh.pipeline > 1:
        return mesh
    tensor = min(ground.tensor, mesh.tensor)
    pipeline = ground.pipeline if ranks % (tensor * ground.pipeline) == 0 else 1
    if (
        ranks // pipeline <= job.ranks_per_node
    ):  # gradients would stay within nodes, and no fault of a fabric would show
        pipeline = 1
    return Mesh(tensor=tensor, data=ranks // (tensor * pipeline), pipeline=pipeline)


def _scattered(job: JobSpec, seed: int) -> tuple[int, ...]:
    order = generator(seed, "scattered", job.name).permutation(len(job.nodes))
    return tuple(job.nodes[place] for place in order.tolist())


def _split(job: JobSpec, parts: int, ranks_per_node: int) -> JobSpec:
    def of(nodes: Sequence[int]) -> tuple[int, ...]:
        return tuple(node * parts + part for node in nodes for part in range(parts))

    return replace(job, nodes=of(job.nodes), spares=of(job.spares), ranks_per_node=ranks_per_node)
