"""A job as its owner asked for it, and its way through the cluster: waiting, starting, running, restarting, ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .cluster_topology import Topology
from .mesh import Mesh
from .noise import Noise
from .program import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How a launcher behaves. notices_s: until it sees a dead rank of its node and ends that node's others.

    kills_all_s: until those of the other nodes do. lost_node_s: until they give up a node that says nothing any more.
    restart_s: from the last end to the next launch. peers_hear: share of the ranks that hear of a closed connection
    before they are ended (NCCL). moves: the scheduler gives it other nodes, or the same in another order, each time.
    requeues: between two launches its nodes are given to others.
    """

    notices_s: float = 0.15
    kills_all_s: float = 2.5
    restart_s: float = 15.0
    most_restarts: int = 3
    peers_hear: float = 0.3
    lost_node_s: float = 20.0
    moves: bool = False
    requeues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as its owner asked for it. nodes: where it runs, in the order of its ranks. spares: nodes that take the
    place of broken ones at a restart.

    steps: after so many it is done; 0: it goes on. priority: jobs of less have to make room for it. steps_only: its
    agents send one row per rank and step, and events.
    """

    name: str
    mesh: Mesh
    nodes: tuple[int, ...]
    spares: tuple[int, ...] = ()
    recipe: Recipe = field(default_factory=Recipe)
    noise: Noise = field(default_factory=Noise)
    launcher: Launcher = field(default_factory=Launcher)
    asked_s: float = 0.0
    start_s: float = 0.0
    steps: int = 0
    priority: int = 0
    restore_s: float = 8.0
    run: str = ""
    owner: str = "team-a"
    ranks_per_node: int = 8
    steps_only: bool = False

    def __post_init__(self) -> None:
        if len(self.nodes) * self.ranks_per_node != self.mesh.world_size:
            raise ValueError(
                f"{self.name}: {self.mesh.world_size} ranks do not fill "
                f"{len(self.nodes)} nodes of {self.ranks_per_node}"
            )

    def gpus(self, topology: Topology) -> NDArray[np.int64]:
        """By rank, the GPU's number in the cluster."""
        per_node = topology.shape.gpus_per_node
        return (np.array(self.nodes)[:, None] * per_node + np.arange(self.ranks_per_node)).reshape(-1)


class State(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDED = "ended"
