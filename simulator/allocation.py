"""Who has which nodes: a job begins when all of its nodes are free, and takes them from jobs of less priority.

A job has its nodes from its launch until it has ended; one that is put back into the queue (``Launcher.requeues``)
gives them up after each attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from .running_job import RunningJob


class Allocation:
    def __init__(self, jobs: Sequence[RunningJob]) -> None:
        self._jobs = jobs

    def is_free(self, node: int, for_job: str) -> bool:
        """Whether no other job holds the node (its number in the cluster)."""
        return all(job.spec.name == for_job or not job.holds(node) for job in self._jobs)

    def make_room(self, begin_s: float, end_s: float) -> None:
        """Preempts jobs that hold nodes of a job of more priority that is due by ``end_s`` (seconds of the simulation).

        Who was pushed out gets the nodes back when they are free.
        """
        for job in self._jobs:
            if not job.is_due(end_s):
                continue
            wanted = set(job.spec.nodes)
            for other in self._jobs:
                if other.spec.priority < job.spec.priority and any(other.holds(node) for node in wanted):
                    other.preempt(max(begin_s, job.starts_s))
