"""What differs from step to step and rank to rank without anybody's fault: jitter, and pauses with a heavy tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .clock import generator
from .program import Does, StepProgram
from .propagate import Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much differs by chance. step: of a rank's kernels in a step, relative (standard deviation). operation: of
    each by itself.

    pauses: per rank and step; each takes ``pause_s`` times a Pareto number of this ``tail``, at most ``longest_s``.
    """

    step: float = 0.03
    operation: float = 0.01
    pauses: float = 2e-4
    pause_s: float = 0.05
    tail: float = 1.5
    longest_s: float = 3.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    pace: NDArray[np.float64]
    jitter: list[NDArray[np.float64]]
    pauses: list[Pause]
    loss: NDArray[np.float64]
    norm: NDArray[np.float64]


def draw(noise: Noise, program: StepProgram, step: int, *words: object) -> Draws:
    """Random jitter, pauses, losses and norm of one step: the same for the same words and step."""
    random = generator(*words, step)
    mesh = program.mesh
    pace = np.exp(noise.step * random.standard_normal(mesh.world_size))
    jitter = []
    for operations in program.stages:
        factors = np.ones((len(operations), mesh.stage_size))
        works = [place for place, operation in enumerate(operations) if operation.does is Does.COMPUTE]
        drawn = random.standard_normal((len(works), mesh.stage_size), np.float32)
        factors[works] = np.maximum(1.0 + noise.operation * drawn, 0.2)
        jitter.append(factors)
    count = int(random.poisson(noise.pauses * mesh.world_size))
    ranks = random.choice(mesh.world_size, min(count, mesh.world_size), replace=False)
    pauses = [
        Pause(
            rank=int(rank),
            place=int(random.integers(1, len(program.stages[rank // mesh.stage_size]))),
            seconds=min(noise.pause_s * (1.0 + float(random.pareto(noise.tail))), noise.longest_s),
        )
        for rank in ranks
    ]
    trend = 2.0 + 8.0 / (1.0 + 0.02 * step)
    loss = trend + 0.05 * random.standard_normal(mesh.world_size)
    norm = np.full(mesh.world_size, 0.5 * (1.0 + 0.05 * float(random.standard_normal())))
    return Draws(pace=pace, jitter=jitter, pauses=pauses, loss=loss, norm=norm)


def interpreter_pauses(share: float, program: StepProgram, *words: object) -> list[Pause]:
    """Random pauses of one step, the same for the same words: about ``share`` of the ranks stand for 0.1 to 0.5 s."""
    random = generator(*words, "interpreter")
    size = program.mesh.stage_size
    ranks = np.flatnonzero(random.random(program.mesh.world_size) < share)
    return [
        Pause(
            rank=rank,
            place=int(random.integers(1, len(program.stages[rank // size]))),
            seconds=float(random.uniform(0.1, 0.5)),
        )
        for rank in ranks.tolist()
    ]
