"""What a fault is, and what it may know: where things and jobs are, when it begins, and its share of chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..cluster_topology import Topology
from ..ground_truth import Truth
from ..jobs import JobSpec
from ..resources import ParameterChange


@dataclass(frozen=True, kw_only=True, eq=False)
class FaultSite:
    """What a fault may know when it is planned. at_s: when it begins. job: the one that it strikes (the first).

    node: of the cluster, where it has to be there; -1: the kind of fault chooses.
    """

    topology: Topology
    jobs: tuple[JobSpec, ...]
    random: np.random.Generator
    at_s: float
    node: int = -1

    @property
    def job(self) -> JobSpec:
        """The job that the fault strikes: the first."""
        return self.jobs[0]

    def any_rank(self) -> int:
        """A random rank of the job; never rank 0, which is special to many programs. Raises ValueError for a job of one
        rank.
        """
        return int(self.random.integers(1, self.job.mesh.world_size))

    def any_rank_of_the_first_stage(self) -> int:
        """A random rank of pipeline stage 0 but its first. Raises ValueError for a stage of one rank.

        Its exchange comes last, so that all wait for it: later stages have time to spare.
        """
        stage = self.job.mesh.stage(0)
        return int(self.random.integers(stage.start + 1, stage.stop))

    def any_node(self) -> int:
        """Place of a random node in the job, from 0."""
        return int(self.random.integers(0, len(self.job.nodes)))

    def gpu(self, rank: int) -> int:
        """The cluster-wide number of the GPU that the job's ``rank`` runs on."""
        return int(self.job.gpus(self.topology)[rank])

    def ranks_on(self, place: int) -> tuple[int, ...]:
        """Ranks on the job's node at ``place``, ascending."""
        per_node = self.job.ranks_per_node
        return tuple(range(place * per_node, (place + 1) * per_node))

    def truth(self, fault: FaultKind, scope: str, kinds: tuple[str, ...], **more: object) -> Truth:
        """What is known of the fault, at ``at_s``; ``more`` are further fields of ``Truth``."""
        base = Truth(fault=fault.name, number=fault.number, scope=scope, at_s=self.at_s, job=self.job.name, kinds=kinds)
        return replace(base, **more)  # type: ignore[arg-type]

    def of_rank(self, fault: FaultKind, scope: str, kinds: tuple[str, ...], rank: int, **more: object) -> Truth:
        """The truth of a fault at one rank, with its node, and its GPU where ``scope`` is "gpu"; ``more`` as in
        ``truth``.
        """
        gpu = self.gpu(rank)
        return self.truth(
            fault,
            scope,
            kinds,
            ranks=(rank,),
            nodes=(self.topology.node_name(self.topology.node_of_gpu(gpu)),),
            devices=(self.topology.gpu_uuid(gpu),) if scope == "gpu" else (),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    changes: tuple[ParameterChange, ...]
    truth: Truth


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. number: of the catalogue of faults. plan: what changes where, and the truth about it."""

    name: str
    number: str
    sentence: str
    make: Callable[[FaultSite, FaultKind], Planned]

    def plan(self, site: FaultSite) -> Planned:
        """The fault's changes and truth at this site. Raises ValueError where the site has nothing that it could
        strike.
        """
        return self.make(site, self)
