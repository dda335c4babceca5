"""A job on devices whose ranks wait for each other in small groups many times a step, as looks see it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.telemetry.vocabulary import Phase

LOOK_NS, CHANGE, PEERS = 100_000_000, 60, 8
#: Work before each call of a small group; after the last, all ranks wait for each other.
WORK_NS = tuple(1_000_000 * each for each in (80, 95, 110, 125, 140, 155, 170, 185, 200, 215, 230, 95))


def seen(
    late: Callable[[int], np.ndarray],
    *,
    ranks: int = 64,
    seed: int = 1,
    jitter: float = 0.02,
    transfer_ns: Callable[[int], float] = lambda step: 20e6,
    pauses: float = 0.0,
    after: int = 8,
) -> tuple[StepTimes, np.ndarray]:
    """A job on devices; late: by step, the pace of each rank. Looks come ten times a second. after: steps since CHANGE.

    transfer_ns: by step, of what all exchange at its end. pauses: their chance at each call.
    """
    random = np.random.default_rng(seed)
    offset = random.integers(0, LOOK_NS, ranks)

    def look(at_ns: np.ndarray) -> np.ndarray:
        return np.asarray(-(-(at_ns - offset) // LOOK_NS) * LOOK_NS + offset)

    steps = CHANGE + after
    now_ns = np.zeros(ranks)
    begins, inner, stood = np.zeros(steps), np.zeros((steps, ranks)), np.zeros((steps, ranks))
    for step in range(steps):
        begins[step] = now_ns[0]
        pace = late(step) * np.exp(jitter * random.standard_normal(ranks))
        for work_ns in WORK_NS:
            began_ns = now_ns + work_ns * pace * (1.0 + 0.5 * jitter * random.standard_normal(ranks))
            if random.random() < pauses:
                began_ns[random.integers(ranks)] += 400e6 * (1.0 + random.pareto(1.5))
            now_ns = began_ns.reshape(-1, PEERS).max(axis=1).repeat(PEERS) + 1e6
            inner[step] += look(now_ns) - look(began_ns)
        ended_ns = np.full(ranks, now_ns.max() + transfer_ns(step))
        stood[step] = inner[step] + look(ended_ns) - look(now_ns)
        now_ns = ended_ns
    duration_ns = np.diff(np.append(begins, now_ns[0])).astype(np.int64)
    times = StepTimes(
        ranks=np.arange(ranks),
        steps=np.arange(steps),
        begin_ns=begins.astype(np.int64),
        duration_ns=duration_ns,
        self_ns=np.maximum(0, duration_ns[:, None] - stood).astype(np.int64),
        starved_ns=np.zeros((steps, ranks), np.int64),
        phase_self_ns=np.zeros((0, ranks, len(Phase)), np.int64),
    )
    return times, np.column_stack([times.steps, inner.astype(np.int64)])


def slower(share: float, *who: int, ranks: int = 64) -> Callable[[int], np.ndarray]:
    late = np.isin(np.arange(ranks), who)
    return lambda step: np.where(late & (step >= CHANGE), 1.0 + share, 1.0)
