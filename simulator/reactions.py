"""What a change of a resource does to the processes that depend on it. Hardware says nothing here: see ``devices``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from . import errors
from .cluster_topology import Topology
from .fabric import links_down
from .propagate import Stop
from .rank_processes import SIGKILL, oom_at_s
from .resources import ParameterChange, Resources
from .running_job import RunningJob
from .simulated_attempt import SimulatedAttempt

Ints = NDArray[np.int64]
Reaction = Callable[[RunningJob, SimulatedAttempt, Ints, ParameterChange, Resources], None]
#: Of a rank's process in its usual state.
RANK_BYTES = 6e10
#: Of a GPU's memory, what a job leaves free. Of /dev/shm, from where on nobody gets more.
FREE_DEVICE_BYTES = 1.2e10
FULL = 0.98
#: From a GPU's own processor not answering until the driver keeps everybody waiting for it.
DRIVER_LOCKS_AFTER_S = 6.0
_BUS_ERROR = ("torch.AcceleratorError", "CUDA error: unspecified launch failure")
_ECC_ERROR = ("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered")


def react(job: RunningJob, change: ParameterChange, topology: Topology, resources: Resources) -> None:
    """Lets the job's processes meet a change of a resource: who depends on it stands, goes on, raises or ends.

    To be called once the change is made. Does nothing for other jobs' changes and for parameters without a reaction.
    """
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
    """Lets a new attempt meet what is down already: its ranks there stand from their begin. Nothing without an attempt.

    Its processes are new: what was wrong with the old ones is not.
    """
    attempt = job.attempt
    if attempt is None:
        return
    nodes = job.node_of_rank
    down = {
        Stop.KERNEL: resources.of("gpu", "kernels")[job.gpus] == 0,
        Stop.LINK: (resources.of("port", "up") * resources.of("port", "carries"))[job.gpus] == 0,
        Stop.NVLINK: resources.of("gpu", "nvlink_up")[job.gpus] == 0,
        Stop.INPUT: resources.of("host", "mount")[nodes] == 0,
    }
    attempt.processes.in_kernel[:] = resources.of("host", "mount")[nodes] == 0
    if not resources.of("program", "space", job.spec.name)[0]:
        attempt.no_space_since_s = attempt.began_s
    for kind, ranks in down.items():
        if ranks.any():
            attempt.processes.stand(kind, np.flatnonzero(ranks), attempt.began_s)


def is_usable(node: int, topology: Topology, resources: Resources) -> bool:
    """Whether a scheduler's check of the node passes: the node is up, and all of its GPUs answer."""
    per_node = topology.shape.gpus_per_node
    gpus = slice(node * per_node, (node + 1) * per_node)
    there = all(resources.of("gpu", name)[gpus].all() for name in ("on_bus", "memory", "firmware", "nvlink_up"))
    return bool(resources.of("host", "up")[node] and there)


def _ranks_of(job: RunningJob, change: ParameterChange, topology: Topology) -> Ints:
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


def _stands(kind: Stop) -> Reaction:
    """It stands still while the resource is down."""

    def handle(
        job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
    ) -> None:
        (attempt.go_on if change.value else attempt.stand)(kind, ranks, change.at_s)

    return handle


def _mount(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    attempt.processes.in_kernel[ranks] = not change.value
    (attempt.go_on if change.value else attempt.stand)(Stop.INPUT, ranks, change.at_s)


def _signalled(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    (attempt.resume if change.value else attempt.stop)(ranks, change.at_s)


def _killed(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    if not change.value:
        attempt.die(ranks, np.full(ranks.size, change.at_s), signal=SIGKILL)


def _raises(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    if change.value:
        errors.at_next_line(attempt, ranks, change.at_s)


def _bad_step(what: str) -> Reaction:
    """The next step is bad at these ranks, whenever it is made."""

    def handle(
        job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
    ) -> None:
        if change.value:
            factor = np.nan if change.name == "overflow" else change.value
            for rank in ranks.tolist():
                job.have_bad_step(rank, change.at_s, what, factor)

    return handle


def _firmware(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    """The driver takes the lock of all GPUs while it waits for one of them."""
    if change.value:
        return
    attempt.wait_in_driver(ranks, change.at_s)
    locked_s = change.at_s + DRIVER_LOCKS_AFTER_S
    neighbours = np.flatnonzero(np.isin(job.node_of_rank, job.node_of_rank[ranks]))
    attempt.at(locked_s, partial(attempt.wait_in_driver, neighbours))


def _shared_memory(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    if change.value >= FULL:
        errors.without_shared_memory(attempt, ranks, change.at_s)


def _space(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    attempt.no_space_since_s = np.inf if change.value else change.at_s


def _device_grows(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    at_s = oom_at_s(change.at_s, FREE_DEVICE_BYTES, change.value)
    if np.isfinite(at_s):
        attempt.at(at_s, partial(errors.without_device_memory, attempt, ranks))


def _lost(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    if not change.value:
        words = _BUS_ERROR if change.name == "on_bus" else _ECC_ERROR
        attempt.stand(Stop.DEVICE, ranks, change.at_s)
        errors.at_next_device_call(attempt, ranks, change.at_s, *words)


def _power(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    if not change.value:
        for node in np.unique(attempt.node_of_rank[ranks]).tolist():
            attempt.lose_node(node, change.at_s)


def _grows(
    job: RunningJob, attempt: SimulatedAttempt, ranks: Ints, change: ParameterChange, resources: Resources
) -> None:
    """Its node's kernel kills it when the node's memory is gone."""
    growth = resources.of("process", "grows_bytes_per_s", job.spec.name)
    for rank in ranks.tolist():
        node = job.node_of_rank[rank]
        same = job.node_of_rank == node
        free = float(resources.of("host", "memory_bytes")[node]) - RANK_BYTES * int(same.sum())
        at_s = oom_at_s(change.at_s, free, float(growth[same].sum()))
        if np.isfinite(at_s) and growth[rank] >= growth[same].max():
            attempt.kill_for_memory(rank, at_s)


_HANDLERS: dict[tuple[str, str], Reaction] = {
    ("process", "alive"): _killed,
    ("process", "runs"): _signalled,
    ("process", "input"): _stands(Stop.INPUT),
    ("process", "raises"): _raises,
    ("process", "bad_batch"): _bad_step("raises"),
    ("process", "bad_access"): _bad_step("access"),
    ("process", "overflow"): _bad_step("numbers"),
    ("process", "outlier"): _bad_step("numbers"),
    ("process", "device_bytes_per_s"): _device_grows,
    ("program", "space"): _space,
    ("gpu", "firmware"): _firmware,
    ("gpu", "nvlink_up"): _stands(Stop.NVLINK),
    ("host", "shared_memory"): _shared_memory,
    ("port", "carries"): _stands(Stop.LINK),
    ("process", "grows_bytes_per_s"): _grows,
    ("gpu", "on_bus"): _lost,
    ("gpu", "memory"): _lost,
    ("gpu", "kernels"): _stands(Stop.KERNEL),
    ("host", "up"): _power,
    ("host", "mount"): _mount,
    ("port", "up"): _stands(Stop.LINK),
    ("leaf", "up"): _stands(Stop.LINK),
}
