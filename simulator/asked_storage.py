"""What ranks have asked of the shared file system: as their nodes' clients count it, and as its servers do by job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from .live_steps import saving_ranks
from .resources import Resources
from .running_job import RunningJob
from .shared_storage import TRANSFER_BYTES, StorageState

OPERATIONS = ("metadata", "read", "write")


class AskedStorage:
    """by_job: by the job's name, by kind, operations so far. metadata_time_s: that the metadata server has spent on
    operations so far, with those that waited in its queue.
    """

    def __init__(self, nodes: int) -> None:
        self._by_node = {kind: np.zeros(nodes) for kind in OPERATIONS}
        self.by_job: dict[str, dict[str, float]] = {}
        self.metadata_time_s = 0.0

    def of_node(self, node: int) -> Mapping[str, Callable[[], float]]:
        """By kind, what gives the operations that a node has asked so far."""
        return {kind: partial(asked.item, node) for kind, asked in self._by_node.items()}

    def ask(
        self, jobs: Iterable[RunningJob], resources: Resources, storage: StorageState, now_s: float, seconds: float
    ) -> None:
        """Lets the ranks of all jobs ask for ``seconds``. storage: as it is now."""
        for job in jobs:
            if job.attempt is None:
                continue
            ops, background = (
                float(resources.of("program", name, job.spec.name)[0]) for name in ("metadata_ops", "background_ops")
            )
            recipe, nodes = job.spec.recipe, job.node_of_rank
            running = job.attempt.processes.alive & (job.attempt.processes.started_s < now_s)
            saving = running & saving_ranks(job.attempt.steps.live, now_s)
            metadata = ops / recipe.step_s + background / storage.metadata_s
            each = {
                "metadata": (running, metadata),
                "read": (running, recipe.input_bytes / recipe.step_s / TRANSFER_BYTES),
                "write": (saving, storage.save_bytes_per_s / TRANSFER_BYTES),
            }
            asked = self.by_job.setdefault(job.spec.name, dict.fromkeys(OPERATIONS, 0.0))
            for kind, (ranks, rate) in each.items():
                np.add.at(self._by_node[kind], nodes[ranks], rate * seconds)
                asked[kind] += int(ranks.sum()) * rate * seconds
            self.metadata_time_s += int(running.sum()) * metadata * seconds * storage.metadata_s
