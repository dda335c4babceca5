"""Ranks at the design's reference load: steps of two seconds, twenty collectives each over three groups.

Written by the real writer, one process per rank, with the irregularity of real steps; nothing computes. Used by
``people_telemetry`` and, with a clock of its own, ``stepped_node``; never part of the product.
"""

from __future__ import annotations

import random
import time
from multiprocessing.synchronize import Event

from whichrank.telemetry.vocabulary import Op, Phase

from .ring_load import Load, open_writer

STEP_S = 2.0
COLLECTIVES_PER_STEP = 20
#: Phase, its share of the step, and the collectives in it: (group, operation, bytes).
PHASES: tuple[tuple[Phase, float, tuple[tuple[int, Op, int], ...]], ...] = (
    (Phase.DATA, 0.05, ()),
    (Phase.FORWARD, 0.30, ((2, Op.ALL_REDUCE, 8 << 20),) * 6),
    (Phase.BACKWARD, 0.55, ((2, Op.ALL_REDUCE, 8 << 20),) * 6 + ((1, Op.REDUCE_SCATTER, 64 << 20),) * 6),
    (Phase.OPTIMIZER, 0.09, ((0, Op.ALL_REDUCE, 8), (1, Op.ALL_GATHER, 64 << 20))),
    (Phase.OTHER, 0.01, ()),
)
BFLOAT16 = 13
_BEAT_S = 0.05


def write_rank(directory: str, rank: int, load: Load, stop: Event, native: bool | None) -> None:
    """What a rank's process does until it is told to stop."""
    writer, groups = open_writer(directory, rank, load, native)
    chance = random.Random(rank)

    def spend(seconds: float) -> None:
        end_s = time.monotonic() + seconds * chance.lognormvariate(0.0, 0.05)
        while (left_s := end_s - time.monotonic()) > 0 and not stop.is_set():
            time.sleep(min(left_s, _BEAT_S))
            writer.beat()

    writer.define(2, 0, {"token": "reference"})
    while not stop.is_set():
        for phase, share, calls in PHASES:
            writer.set_phase(phase)
            for group, op, nbytes in calls:
                spend(0.8 * share * STEP_S / len(calls))
                seq = writer.enqueue(groups[group], op, nbytes, BFLOAT16, -1, 0)
                spend(0.2 * share * STEP_S / len(calls))
                writer.complete(groups[group], seq, 0, 0)
            if not calls:
                spend(share * STEP_S)
        writer.end_step(2.0 + chance.random(), 0.5 + chance.random(), 0)
    writer.record_exit(1)
    writer.close()
