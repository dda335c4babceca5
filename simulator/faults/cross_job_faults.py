"""Faults that no single job tells: they show over many jobs that held the same nodes, or the same software."""

from __future__ import annotations

from ..resources import ParameterChange
from .fault import FaultKind, FaultSite, Planned


def lemon_node(site: FaultSite, kind: FaultKind) -> Planned:
    """A random node's memory and one of its GPUs are weak from ``at_s`` on: each job that has it may
    fail, differently.
    """
    per_node = site.topology.shape.gpus_per_node
    node = int(site.random.integers(0, site.topology.nodes))
    gpu = node * per_node + int(site.random.integers(0, per_node))
    changes = (
        ParameterChange(at_s=site.at_s, family="host", name="memory_faults", value=150.0, places=(node,)),
        ParameterChange(at_s=site.at_s, family="gpu", name="failures", value=75.0, places=(gpu,)),
    )
    truth = site.truth(
        kind,
        "node",
        ("lemon_node",),
        job="",
        nodes=(site.topology.node_name(node),),
        signs=("rank_died", "rank_raised"),
    )
    return Planned(changes=changes, truth=truth)


def bad_rollout(site: FaultSite, kind: FaultKind) -> Planned:
    """A new driver goes out to a random half of the nodes, each between two of its jobs; kernels fail under it now and
    then.
    """
    per_node = site.topology.shape.gpus_per_node
    nodes = sorted(site.random.permutation(site.topology.nodes)[: site.topology.nodes // 2].tolist())
    changes: list[ParameterChange] = []
    for node in nodes:
        free_s = [job.start_s - 1.5 for job in site.jobs if node in job.nodes and job.start_s - 1.5 > site.at_s]
        at_s = sorted(free_s)[int(site.random.integers(0, 2))]
        gpus = tuple(range(node * per_node, (node + 1) * per_node))
        changes += [
            ParameterChange(at_s=at_s, family="host", name="release", value=1.0, places=(node,)),
            ParameterChange(at_s=at_s, family="gpu", name="failures", value=12.0, places=gpus),
        ]
    truth = site.truth(
        kind,
        "cluster",
        ("rollout_fault",),
        job="",
        devices=(site.topology.driver_release(1),),
        signs=("rank_raised",),
    )
    return Planned(changes=tuple(changes), truth=truth)


def corrupts_jobs(site: FaultSite, kind: FaultKind) -> Planned:
    """A random GPU of the cluster computes wrongly now and then: the numbers of whichever job has it go bad."""
    gpu = int(site.random.integers(0, site.topology.gpus))
    change = ParameterChange(at_s=site.at_s, family="gpu", name="wrong_results", value=0.5, places=(gpu,))
    node = site.topology.node_of_gpu(gpu)
    truth = site.truth(
        kind,
        "node",
        ("silent_corruption",),
        job="",
        nodes=(site.topology.node_name(node),),
        devices=(site.topology.gpu_uuid(gpu),),
        signs=("numeric_first_rank", "numeric_all"),
    )
    return Planned(changes=(change,), truth=truth)


KINDS = (
    FaultKind("lemon_node", "J3", "jobs of several people fail on one node, in other words each time", lemon_node),
    FaultKind("bad_rollout", "J8", "a driver with a defect goes out to half of the nodes", bad_rollout),
    FaultKind("corrupts_jobs", "J9", "one GPU computes wrongly now and then, whichever job has it", corrupts_jobs),
)
