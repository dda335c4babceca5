"""Which ranks of an attempt run on which node, for the nodes' collectors: kept as it is until something changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..telemetry.records import Identity
from .attempt_steps import AttemptSteps
from .clock import ns
from .held_ranks import RankHere
from .propagate import Stop
from .rank_processes import Processes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class RanksHere:
    """Which ranks of an attempt run on which node. identities: by node of the job. node_of_rank: place of its node in
    the job.
    """

    def __init__(self, identities: Sequence[Identity], node_of_rank: Ints, per_node: int) -> None:
        self._identities, self._node_of_rank, self._per_node = identities, node_of_rank, per_node
        self._here: dict[int, RankHere] = {}
        self._by_node: dict[int, dict[int, RankHere]] = {}
        #: By rank, at the last look: whether it was there, and whether it was held.
        self._seen = np.zeros(node_of_rank.size, bool), np.zeros(node_of_rank.size, bool)

    def look(
        self, at_s: float, gpus: Ints, nodes: NDArray[np.bool_], processes: Processes, steps: AttemptSteps
    ) -> dict[int, dict[int, RankHere]]:
        """By place of their node in the job, and pid: the ranks that run at ``at_s``. gpus: by rank.

        nodes: by node of the job, whether it counts. A node's ranks are the same object as at the last call, as long as
        nothing of them has changed.
        """
        there = (processes.started_s <= at_s) & (processes.ended_s > at_s) & nodes[self._node_of_rank]
        since = processes.stops[Stop.INPUT].since_s
        held = processes.in_kernel & (since <= at_s)
        if held.any():
            held &= steps.waits_for_input(np.full(held.size, ns(at_s)))
        in_driver = processes.in_driver_since_s <= at_s
        held, since = held | in_driver, np.where(in_driver, processes.in_driver_since_s, since)
        seen = there, there & held
        changed = self._node_of_rank[(seen[0] != self._seen[0]) | (seen[1] != self._seen[1])]
        self._seen = seen
        for node in np.unique(changed).tolist():
            ranks = np.flatnonzero(there & (self._node_of_rank == node)).tolist()
            looked_at = self._looked_at(ranks, processes.pid, held, since, in_driver, gpus)
            self._by_node[node] = {here.pid: here for here in looked_at}
        return self._by_node

    def _looked_at(
        self,
        ranks: list[int],
        pids: Ints,
        held: NDArray[np.bool_],
        since: Floats,
        in_driver: NDArray[np.bool_],
        gpus: Ints,
    ) -> Iterator[RankHere]:
        for rank in ranks:
            here = self._here.get(rank)
            if here is None or held[rank] != np.isfinite(here.held_since_s):
                node = int(self._node_of_rank[rank])
                here = self._here[rank] = RankHere(
                    pid=int(pids[rank]),
                    identity=replace(self._identities[node], rank=rank),
                    gpu=int(gpus[rank]),
                    local_rank=rank % self._per_node,
                    held_since_s=float(since[rank]) if held[rank] else np.inf,
                    in_driver=bool(in_driver[rank]),
                )
            yield here
