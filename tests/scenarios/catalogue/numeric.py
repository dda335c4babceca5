"""Numbers that go bad: on one rank, on all, for good or for one step."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Blame, Ending, Scenario
from .truths import DDP, NAN, NOTHING

ALL = replace(NAN, kind="numeric_all", blame=Blame.NOBODY, scope="job")

NUMERIC = (
    Scenario(
        name="NaN on all ranks at once",
        truth=ALL,
        ending=Ending.RUNS,
        workloads=(*DDP, "fsdp2", "clipped"),
        fault="not_a_number",
        points=("batch",),
        everyone=True,
    ),
    Scenario(
        name="gradient explodes on one rank",
        truth=NAN,
        ending=Ending.RUNS,
        workloads=("clipped",),
        fault="explode",
        points=("loss",),
        options={"local_norm": (0, 1)},
        step_s=(0.05, 0.3),
        before_s=4.0,
        after_s=5.0,
    ),
    Scenario(
        name="gradient explodes on all ranks",
        truth=ALL,
        ending=Ending.RUNS,
        workloads=("clipped",),
        fault="explode",
        points=("loss",),
        options={"local_norm": (0, 1)},
        everyone=True,
        step_s=(0.05, 0.3),
        before_s=4.0,
        after_s=5.0,
    ),
    Scenario(
        name="loss spike that recovers",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=("clipped",),
        fault="spike",
        points=("batch",),
        options={"local_norm": (0, 1)},
        step_s=(0.05, 0.3),
        before_s=4.0,
        after_s=5.0,
    ),
    Scenario(
        name="mixed precision skips steps",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=("clipped",),
        options={"scaler": 1},
        clean_s=20.0,
        step_s=(0.05, 0.3),
        alone=False,
    ),
)
