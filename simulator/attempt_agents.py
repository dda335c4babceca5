"""The agents of an attempt's nodes: who reads which rings, and what their flushes bring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..telemetry.records import Block, Group, Identity
from .attempt_steps import AttemptSteps
from .clock import to_ns
from .jobs import JobSpec
from .node_agents import MOST_SLOTS, NodeAgents, NodeClocks
from .rank_processes import Processes

Ints = NDArray[np.int64]


class AttemptAgents:
    """The agents of all nodes of an attempt. identities, clocks: by node of the job.

    One reduction stands for the agents of several nodes: it is faster.
    """

    def __init__(
        self,
        spec: JobSpec,
        identities: Sequence[Identity],
        groups: Sequence[tuple[list[Group], Ints]],
        clocks: NodeClocks,
    ) -> None:
        mesh, self._per_node = spec.mesh, spec.ranks_per_node
        per_node = self._per_node
        self._node_of_rank = np.arange(mesh.world_size) // per_node
        self._per_reduction = max(MOST_SLOTS // per_node, 1) * per_node
        self._agents: list[NodeAgents] = []
        #: By node: times and ranks of exits that were told, whose rings are still open.
        self._exits_told: dict[int, list[tuple[float, int]]] = {}
        for first in range(0, mesh.world_size, self._per_reduction):
            count = min(self._per_reduction, mesh.world_size - first)
            nodes = slice(first // per_node, (first + count - 1) // per_node + 1)
            self._agents.append(
                NodeAgents(
                    mesh=mesh,
                    first=first,
                    count=count,
                    ranks_per_node=per_node,
                    identities=identities[nodes],
                    groups=groups,
                    clocks=NodeClocks(mono_ns=clocks.mono_ns[nodes], wall_ns=clocks.wall_ns[nodes]),
                )
            )

    def flush(
        self,
        moments: NDArray[np.float64],
        active: NDArray[np.bool_],
        progress: NDArray[np.bool_],
        steps: AttemptSteps,
        processes: Processes,
    ) -> dict[int, list[Block]]:
        """What agents of nodes read: blocks by place of the node in the job; a node that brings nothing is left out.

        By node: moments (seconds of the simulation), active (whether it flushes then), progress (whether its progress
        rows go with it). steps, processes: of the attempt, of all its ranks.
        """
        live = steps.recordings()
        blocks: dict[int, list[Block]] = {}
        if live:
            at = np.where(active, to_ns(np.where(active, moments, 0.0)), -1)
            waits = steps.waits_for_input(at[self._node_of_rank])
            for agents in self._agents:
                ranks = slice(agents.first, agents.first + agents.count)
                nodes = self._node_of_rank[ranks]
                if not active[nodes].any():
                    continue
                look_ns = at[nodes]
                look = processes.look(np.maximum(look_ns, 0), ranks, waits[ranks])
                for node, of_node in agents.flush(live, look_ns, with_progress=progress[nodes], processes=look):
                    blocks[node + int(nodes[0])] = of_node
        return blocks

    def read_until_ns(self) -> int:
        """Unix ns up to which agents have read every ring: what is older may be dropped. 0 without agents."""
        return min((agents.read_until_ns() for agents in self._agents), default=0)

    def forget_later(self, rank: int, at_s: float) -> None:
        """Notes that the rank's exit is told at ``at_s`` (seconds of the simulation); the next ``forget_ended`` after
        it closes its ring.
        """
        self._exits_told.setdefault(rank // self._per_node, []).append((at_s, rank))

    def forget_ended(self, node: int, until_s: float) -> None:
        """Closes rings of the node's ranks whose exit was told by ``until_s``. node: place in the job."""
        ended = self._exits_told.get(node, [])
        for at_s, rank in ended:
            if at_s <= until_s:
                agents = self._agents[rank // self._per_reduction]
                agents.forget(rank - agents.first)
        self._exits_told[node] = [(at_s, rank) for at_s, rank in ended if at_s > until_s]
