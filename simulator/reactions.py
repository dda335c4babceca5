"""What a change of a resource does to the processes that depend on it. Hardware says nothing here: see ``devices``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .attempt import Attempt
from .fabric import links_down
from .processes import SIGKILL, oom_at_s
from .propagate import Stop
from .resources import Change, Resources
from .running_job import RunningJob
from .topology import Topology

Ints = NDArray[np.int64]
#: Of a rank's process in its usual state.
RANK_BYTES = 6e10
_BUS_ERROR = ("torch.AcceleratorError", "CUDA error: unspecified launch failure")
_ECC_ERROR = ("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered")


def react(job: RunningJob, change: Change, topology: Topology, resources: Resources) -> None:
    """To be called once the change is made."""
    if change.family == "program" and change.name == "granted" and change.job == job.spec.name:
        job.grant(bool(change.value), change.at_s)
        return
    handler = _HANDLERS.get((change.family, change.name))
    if handler is None or job.attempt is None or (change.job and change.job != job.spec.name):
        return
    ranks = _ranks_of(job, change, topology)
    if change.family == "leaf":  # a port of it may be down by itself
        down = links_down(job.gpus[ranks], resources, topology)
        ranks = ranks[~down if change.value else down]
    if ranks.size:
        handler(job, job.attempt, ranks, change, resources)


def begin(job: RunningJob, resources: Resources) -> None:
    """A new attempt meets what is down already. Its processes are new: what was wrong with the old ones is not."""
    attempt = job.attempt
    if attempt is None:
        return
    nodes = job.node_of_rank
    down = {
        Stop.KERNEL: resources.of("gpu", "kernels")[job.gpus] == 0,
        Stop.LINK: resources.of("port", "up")[job.gpus] == 0,
        Stop.INPUT: resources.of("host", "mount")[nodes] == 0,
    }
    attempt.processes.in_kernel[:] = resources.of("host", "mount")[nodes] == 0
    for kind, ranks in down.items():
        if ranks.any():
            attempt.processes.stand(kind, np.flatnonzero(ranks), attempt.began_s)


def is_usable(node: int, topology: Topology, resources: Resources) -> bool:
    """What a scheduler's own check of a node sees: whether it is there, and all of its GPUs are."""
    per_node = topology.shape.gpus_per_node
    gpus = slice(node * per_node, (node + 1) * per_node)
    there = resources.of("gpu", "on_bus")[gpus].all() and resources.of("gpu", "memory")[gpus].all()
    return bool(resources.of("host", "up")[node] and there)


def _ranks_of(job: RunningJob, change: Change, topology: Topology) -> Ints:
    """Of the job, those that use what has changed."""
    if not change.places:
        return np.arange(job.gpus.size)
    if change.family in ("gpu", "port"):
        return np.flatnonzero(np.isin(job.gpus, change.places))
    if change.family == "host":
        return np.flatnonzero(np.isin(job.node_of_rank, change.places))
    if change.family == "leaf":
        return np.flatnonzero(np.isin(topology.leaf_of_node[job.node_of_rank], change.places))
    return np.array(change.places)


def _stands(kind: Stop) -> Callable[[RunningJob, Attempt, Ints, Change, Resources], None]:
    """It stands still while the resource is down."""

    def handle(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
        (attempt.go_on if change.value else attempt.stand)(kind, ranks, change.at_s)

    return handle


def _mount(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    attempt.processes.in_kernel[ranks] = not change.value
    (attempt.go_on if change.value else attempt.stand)(Stop.INPUT, ranks, change.at_s)


def _signalled(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    (attempt.resume if change.value else attempt.stop)(ranks, change.at_s)


def _killed(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    if not change.value:
        attempt.die(ranks, np.full(ranks.size, change.at_s), signal=SIGKILL)


def _raises(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    if change.value:
        attempt.raises_at_next_line(ranks, change.at_s)


def _bad_batch(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    if change.value:
        for rank in ranks.tolist():
            job.read_bad_batch(rank, change.at_s)


def _lost(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    if not change.value:
        words = _BUS_ERROR if change.name == "on_bus" else _ECC_ERROR
        attempt.stand(Stop.DEVICE, ranks, change.at_s)
        attempt.error_at_next_call(ranks, change.at_s, *words)


def _power(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    if not change.value:
        for node in np.unique(attempt.node_of_rank[ranks]).tolist():
            attempt.lose_node(node, change.at_s)


def _grows(job: RunningJob, attempt: Attempt, ranks: Ints, change: Change, resources: Resources) -> None:
    """Its node's kernel kills it when the node's memory is gone."""
    growth = resources.of("process", "grows_bytes_per_s", job.spec.name)
    for rank in ranks.tolist():
        node = job.node_of_rank[rank]
        same = job.node_of_rank == node
        free = float(resources.of("host", "memory_bytes")[node]) - RANK_BYTES * int(same.sum())
        at_s = oom_at_s(change.at_s, free, float(growth[same].sum()))
        if np.isfinite(at_s) and growth[rank] >= growth[same].max():
            attempt.kill_for_memory(rank, at_s)


_HANDLERS: dict[tuple[str, str], Callable[[RunningJob, Attempt, Ints, Change, Resources], None]] = {
    ("process", "alive"): _killed,
    ("process", "runs"): _signalled,
    ("process", "input"): _stands(Stop.INPUT),
    ("process", "raises"): _raises,
    ("process", "bad_batch"): _bad_batch,
    ("process", "grows_bytes_per_s"): _grows,
    ("gpu", "on_bus"): _lost,
    ("gpu", "memory"): _lost,
    ("gpu", "kernels"): _stands(Stop.KERNEL),
    ("host", "up"): _power,
    ("host", "mount"): _mount,
    ("port", "up"): _stands(Stop.LINK),
    ("leaf", "up"): _stands(Stop.LINK),
}
