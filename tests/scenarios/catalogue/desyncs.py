"""Ranks that do not do the same thing, beside those of ``basics``."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Ending, Pace, Scenario
from .truths import DDP, DIVERGED

DESYNCS = (
    Scenario(
        name="fewer batches, then the end",
        truth=replace(DIVERGED, pace=Pace.UNTIMED),
        ending=Ending.EITHER,
        workloads=DDP,
        fault="runs_out",
        points=("loop",),
        options={"ends_by": (0, 2)},
    ),
    Scenario(
        name="fewer batches, then a barrier",
        truth=DIVERGED,
        ending=Ending.EITHER,
        workloads=DDP,
        fault="runs_out",
        points=("loop",),
        options={"ends_by": 1},
    ),
)
