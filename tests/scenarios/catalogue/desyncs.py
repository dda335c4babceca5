"""Ranks that do not do the same thing, beside those of ``basics``."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Ending, Pace, Scenario
from .truths import DDP, DIVERGED

DESYNCS = (
    Scenario(
        name="fewer batches, then the end",
        truth=replace(DIVERGED, pace=Pace.HANG),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="runs_out",
        points=("loop",),
        options={"ends_by": (0, 2)},
    ),
    Scenario(
        name="fewer batches, then a barrier",
        # The others make their next call a step later: before that nobody has done anything wrong.
        truth=replace(DIVERGED, pace=Pace.HANG),
        ending=Ending.EITHER,
        workloads=DDP,
        fault="runs_out",
        points=("loop",),
        options={"ends_by": 1},
    ),
)
