"""What a job's next step meets: its ranks' GPUs, hosts and links as they are now, and what its program asks of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .clock import generator
from .heat import Heat
from .live_steps import Conditions
from .resources import Resources
from .running_job import RunningJob
from .shared_storage import IN_FLIGHT, StorageState

Floats = NDArray[np.float64]
#: A batch that was fetched while the last one was worked on costs this much to be taken.
HANDOVER_S = 0.03
#: Of an exponent: a wrong result is one with one of its bits flipped, and the highest of them makes it no number.
_EXPONENT_BITS = 8


def conditions_of(
    job: RunningJob,
    step: int,
    *,
    seed: int,
    resources: Resources,
    heat: Heat,
    storage: StorageState,
    read_s: float,
    save_s: float,
    rates: Mapping[str, Floats],
) -> Conditions:
    """What the job's next step meets, by the resources as they are now. step: of the attempt.

    read_s, save_s: that a rank needs for its batch and its part of a checkpoint, on a sound node. rates: bytes per
    second that each rank's group gets, by dimension.
    """
    name, recipe = job.spec.name, job.spec.recipe
    gpus, nodes = job.gpus, job.node_of_rank

    def program(parameter: str) -> float:
        return float(resources.of("program", parameter, name)[0])

    def flag(parameter: str) -> NDArray[np.bool_] | None:
        values = resources.of("process", parameter, name) > 0
        return values if values.any() else None

    speed = resources.of("gpu", "speed") * resources.of("gpu", "clock_limit") * heat.speed
    work = program("work") * resources.of("process", "work", name)
    if program("spread"):
        random = generator(seed, name, step, "lengths")
        work = work * np.exp(program("spread") * random.standard_normal(gpus.size))
    cpu = np.maximum(resources.of("host", "cpu")[nodes], 1e-3)
    loader = resources.of("host", "input")[nodes] * resources.of("process", "loader", name)
    fetch_s = recipe.input_s / np.maximum(cpu * loader, 1e-3)
    ops = program("metadata_ops")
    fetch_s = fetch_s + ops / min(max(ops, 1.0), IN_FLIGHT) * storage.metadata_s
    fetch_s = fetch_s + read_s
    lanes = np.maximum(resources.of("gpu", "lanes")[gpus], 1e-3)
    writes = np.maximum(resources.of("host", "writes")[nodes], 1e-3)
    evaluates = np.ones(gpus.size)
    if recipe.first_evaluates:
        evaluates[1:] = 0.0
    return Conditions(
        kernel_pace=work / np.maximum(speed[gpus], 1e-3),
        launch_pace=1.0 / cpu,
        input_s=HANDOVER_S / lanes + np.maximum(fetch_s - recipe.step_s, 0.0) if recipe.prefetches else fetch_s,
        save_s=save_s / writes,
        rate={dimension: rate / program("bytes") for dimension, rate in rates.items()},
        differs=flag("other_branch"),
        swaps=flag("other_order"),
        evaluation=program("evaluation") * evaluates,
        loss=_loss(job, step, seed, resources),
        pauses=program("pauses"),
    )


def _loss(job: RunningJob, step: int, seed: int, resources: Resources) -> Floats | None:
    """By rank, by that of a usual batch computed rightly; None: all are."""
    loss = job.loss_of_batches(step)
    wrong = resources.of("gpu", "wrong_results")[job.gpus]
    if wrong.any():
        random = generator(seed, job.spec.name, step, "wrong")
        hit = random.random(loss.size) < wrong
        bit = random.integers(0, _EXPONENT_BITS, loss.size)
        factor = np.where(bit == _EXPONENT_BITS - 1, np.nan, 2.0 ** (2.0 ** np.minimum(bit, _EXPONENT_BITS - 2)))
        loss[hit] *= factor[hit]
    loss[resources.of("gpu", "flipped")[job.gpus] > 0] = np.nan
    return None if (loss == 1.0).all() else loss
