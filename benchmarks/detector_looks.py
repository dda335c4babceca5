"""What the rule about late devices does on jobs that never ran: paces as in ``detector_paces``, looked at ten times a
second by each rank's own watchdog, whose phase and small delays are drawn. Only numbers, as there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.detector_paces import Fault, Pace, draw_pace
from whichrank.processors.job.detectors.slow.device_straggler.occupancy import (
    FEWEST_BLOCKS,
    LENGTH,
    LOOK_NS,
    LateDevice,
    find_late_device,
    no_looks,
    with_looks,
)

#: In longer steps than these each single one tells (``straggler``), which is not drawn here.
LONGEST_STEP_S = 0.8
#: Seconds before a fault and, at least, after it.
BEFORE_S, AFTER_S = (5.0, 15.0), 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """late_s, steps: since the fault began, until it was named; None: it was not."""

    found: LateDevice | None
    late_s: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A job on devices. exchange: what its collectives take themselves, and from the fault on more, in steps."""

    pace: Pace
    exchange: float
    exchange_later: float
    first: int
    guilty: int


def draw_job(chance: np.random.Generator, *, habit: str, fault: str, share: float, step_s: float = 0.0) -> Drawn:
    """fault: "rank", "all", "network" or "", by ``share`` of a step. step_s: 0 draws it."""
    step_s = step_s or float(np.exp(chance.uniform(np.log(0.05), np.log(LONGEST_STEP_S))))
    ranks, jitter = int(chance.integers(2, 7)), float(chance.uniform(0.03, 0.06))
    guilty = int(chance.integers(0, ranks))
    first = max(12, math.ceil(chance.uniform(*BEFORE_S) / step_s))
    steps = first + max(30, math.ceil(AFTER_S / step_s))
    slow = Fault(rank=guilty if fault == "rank" else -1, first=first, share=share)
    pace = draw_pace(
        chance,
        habit=habit,
        ranks=ranks,
        steps=steps,
        step_s=step_s,
        jitter=jitter,
        fault=slow if fault in ("rank", "all") else None,
    )
    exchange = float(np.exp(chance.uniform(np.log(0.01), np.log(0.2))))
    later = exchange + (share if fault == "network" else 0.0)
    return Drawn(pace=pace, exchange=exchange * step_s, exchange_later=later * step_s, first=first, guilty=guilty)


def looked_at(chance: np.random.Generator, job: Drawn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin and duration of each step in ns, and how long each rank was found waiting in it."""
    comes_s = job.pace.own_s.sum(axis=2)
    count, ranks = comes_s.shape
    exchange_s = np.where(np.arange(count) >= job.first, job.exchange_later, job.exchange)
    duration_s = comes_s.max(axis=1) + exchange_s * chance.uniform(0.8, 1.2, count)
    end_s = np.cumsum(duration_s)
    waited = np.zeros((count, ranks))
    delay_s = float(np.exp(chance.uniform(np.log(1e-4), np.log(5e-3))))
    look_s = LOOK_NS / 1e9
    for rank in range(ranks):
        gaps = look_s + chance.exponential(delay_s, int(end_s[-1] / look_s) + 1)
        at_s = np.cumsum(gaps) - chance.uniform(0.0, look_s)
        at_s = at_s[(at_s >= 0.0) & (at_s < end_s[-1])]
        step = np.searchsorted(end_s, at_s, side="right")
        waits = at_s > (end_s - duration_s)[step] + comes_s[step, rank]
        waited[:, rank] = np.bincount(step[waits], minlength=count) * LOOK_NS
    return ((end_s - duration_s) * 1e9).astype(np.int64), (duration_s * 1e9).astype(np.int64), waited


def first_late_device(chance: np.random.Generator, job: Drawn) -> Told:
    """The first rank to be named, judged whenever a block of looks is full."""
    begin_ns, duration_ns, waited_ns = looked_at(chance, job)
    steps = np.arange(begin_ns.size) + job.pace.first_step
    ranks = np.arange(waited_ns.shape[1])
    every = max(1, round(500_000_000 / float(np.median(duration_ns))))
    blocks = no_looks(ranks.size)
    for place in range(0, steps.size, every):
        new = slice(place, place + every)
        blocks = with_looks(
            blocks,
            steps=steps[new],
            begin_ns=begin_ns[new],
            duration_ns=duration_ns[new],
            lead_ns=np.zeros(steps[new].size),
            waited_ns=waited_ns[new],
        )
        if len(blocks) < 2 * FEWEST_BLOCKS or blocks[-1, LENGTH] <= 0:
            continue
        upto = slice(max(0, place + every - 160), place + every)
        found = find_late_device(blocks, ranks, steps[upto], begin_ns[upto], duration_ns[upto])
        if found is not None:
            seen = min(place + every, steps.size) - 1
            return Told(
                found=found,
                late_s=float(begin_ns[seen] + duration_ns[seen] - begin_ns[job.first]) / 1e9,
                steps=seen + 1 - job.first,
            )
    return Told(found=None)
