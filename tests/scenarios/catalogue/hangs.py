"""Ways for a job to stand still, beside those of ``basics``."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Ending, Pace, Scenario
from .truths import DDP, DIED, NEVER_JOINED, NOT_ENTERED

_BY_DESIGN = replace(NOT_ENTERED, scope="application")

HANGS = (
    Scenario(
        name="sleep in a backward hook",
        truth=replace(NOT_ENTERED, phases=("backward",)),
        ending=Ending.HANGS,
        workloads=DDP,
        fault="sleep",
        points=("backward", "module_hook", "comm_hook"),
    ),
    Scenario(
        name="pipeline stage stalls",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("pipeline",),
        fault="sleep",
        points=("data", "forward"),
        worlds=(3, 4, 5, 6),
    ),
    Scenario(
        name="1F1B pipeline stage stalls",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("pipeline_1f1b",),
        fault="sleep",
        points=("forward", "backward"),
        worlds=(3, 4, 5, 6),
    ),
    Scenario(
        name="hang in pairs of stages",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("pairs_of_stages",),
        fault="sleep",
        points=("forward", "backward"),
        worlds=(4, 6),
    ),
    Scenario(
        name="rank 0 evaluates without end",
        truth=replace(_BY_DESIGN, phases=("eval",)),
        ending=Ending.HANGS,
        workloads=DDP,
        fault="sleep",
        points=("evaluate",),
        guilty_among=(0,),
        step_s=(0.05, 2.0),
        options={"evaluate_every": 2, "evaluate_s": (0.5, 1.0)},
    ),
    Scenario(
        name="rank 0 saves without end",
        truth=replace(_BY_DESIGN, phases=("checkpoint",)),
        ending=Ending.HANGS,
        workloads=DDP,
        fault="sleep",
        points=("save",),
        guilty_among=(0,),
        step_s=(0.05, 2.0),
        options={"checkpoint_every": 2, "checkpoint_s": (0.5, 1.0)},
    ),
    Scenario(
        name="first evaluation without end",
        truth=replace(_BY_DESIGN, phases=("eval",), pace=Pace.WITHIN, within_s=18.0),
        ending=Ending.EITHER,
        workloads=DDP,
        fault="sleep",
        points=("evaluate",),
        guilty_among=(0,),
        step_s=(0.05, 2.0),
        options={"evaluate_every": 1, "evaluate_s": 0.5, "first_at_onset": 1, "timeout_s": 20.0},
    ),
    Scenario(
        name="never joins",
        truth=replace(NEVER_JOINED, leaves_stack=True),
        ending=Ending.HANGS,
        workloads=("late_comer",),
        fault="sleep",
        points=("join",),
    ),
    Scenario(
        name="never joins, seen until the page",
        truth=replace(NEVER_JOINED, severities=("info", "page"), within_s=42.0),
        ending=Ending.EITHER,
        workloads=("late_comer",),
        fault="sleep",
        points=("join",),
        options={"timeout_s": 50.0},
    ),
    Scenario(
        name="never comes as far as torch",
        truth=NEVER_JOINED,
        ending=Ending.HANGS,
        workloads=("late_comer",),
        fault="blocked_read",
        points=("import",),
    ),
    Scenario(
        name="killed before it joins",
        truth=DIED,
        ending=Ending.CRASHES,
        workloads=("late_comer",),
        fault="kill",
        points=("join",),
    ),
    Scenario(
        name="waiting in shared memory",
        truth=replace(NOT_ENTERED, pace=Pace.WITHIN, within_s=16.0),
        ending=Ending.HANGS,
        workloads=("shared_memory",),
        fault="sleep",
        points=("data", "forward", "backward"),
        step_s=(0.05, 2.0),
    ),
    Scenario(
        name="fails before it imports torch",
        truth=replace(DIED, pace=Pace.UNTIMED),  # the launcher takes its time to say so
        ending=Ending.CRASHES,
        workloads=("late_comer",),
        fault="throw",
        points=("import",),
        options={"early_s": 20.0},
    ),
)
