"""Slow ranks and slow jobs: stragglers of all sizes and phases, a change of the whole job's pace."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Blame, Ending, Pace, Scenario, Truth
from .truths import DDP, SLOW

FOUND_AT_ITS_STEP = replace(SLOW, onset_within=1)
#: The forward pass of a module that no wrapper of torch.distributed holds cannot be seen as one.
BARE = ("forward", "other")
TOGETHER = Truth(bucket="speed_regression", kind="slow_together", blame=Blame.NOBODY, onset_within=1)

SPEED = (
    Scenario(
        name="compute straggler of 10 %",
        truth=SLOW,
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        options={"slow_by": 0.1},
    ),
    Scenario(
        name="compute straggler of 100 %",
        truth=FOUND_AT_ITS_STEP,
        ending=Ending.RUNS,
        workloads=(*DDP, "accumulate", "fsdp2"),
        fault="slow",
        options={"slow_by": 1.0},
    ),
    Scenario(
        name="data straggler of 10 %",
        truth=replace(SLOW, phases=("data",)),
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        points=("data",),
        options={"slow_by": 0.1},
    ),
    Scenario(
        name="straggler that recovers",
        truth=replace(FOUND_AT_ITS_STEP, resolves=True),
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        options={"slow_by": (0.2, 0.5, 1.0), "slow_steps": (25, 35)},
        step_s=(0.05, 1.5),
        after_s=25.0,
    ),
    Scenario(
        name="straggler inside a TP group",
        truth=replace(FOUND_AT_ITS_STEP, phases=BARE),
        ending=Ending.RUNS,
        workloads=("tensor_parallel",),
        fault="slow",
        worlds=(4, 6),
        options={"slow_by": (0.2, 0.5)},
    ),
    Scenario(
        name="straggling pipeline stage",
        truth=replace(SLOW, phases=BARE),
        ending=Ending.RUNS,
        workloads=("pipeline",),
        fault="slow",
        worlds=(2, 3, 4, 5),
        options={"slow_by": (0.3, 1.0)},
    ),
    Scenario(
        name="slow checkpoint writer",
        truth=replace(SLOW, phases=("checkpoint",), pace=Pace.UNTIMED),
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        points=("checkpoint",),
        options={"slow_by": 1.0, "save_every": (3, 4, 5), "save_s": (0.1, 0.3), "save_slow_s": (0.8, 1.5)},
        step_s=(0.05, 1.0),
        after_s=15.0,
    ),
    Scenario(
        name="slower together",
        truth=TOGETHER,
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        everyone=True,
        options={"slow_by": (0.1, 0.2, 0.3)},
        step_s=(0.1, 0.5),
        before_s=25.0,
        after_s=45.0,
    ),
    Scenario(
        name="data slower together",
        truth=TOGETHER,
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        everyone=True,
        points=("data",),
        options={"slow_by": (0.15, 0.3)},
        step_s=(0.1, 0.5),
        before_s=25.0,
        after_s=45.0,
    ),
)
