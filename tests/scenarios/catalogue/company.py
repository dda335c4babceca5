"""Jobs that are not alone under their name: another job at the same time, two worlds in one job, helper processes."""

from __future__ import annotations

from dataclasses import replace

from ..company import OneAfterTheOther, TwoWorlds, another_job
from ..plan import Ending, Scenario
from .truths import ANYWHERE, DDP, DIED, NOTHING, RAISED

_KILLED_IN_COMPANY = Scenario(
    name="",
    truth=DIED,
    ending=Ending.CRASHES,
    workloads=DDP,
    fault="kill",
    points=ANYWHERE,
    worlds=(2, 3),
    step_s=(0.1, 1.5),
)

COMPANY = (
    replace(_KILLED_IN_COMPANY, name="two jobs at once, SIGKILL in one", beside=another_job),
    replace(
        _KILLED_IN_COMPANY,
        name="two torchruns side by side in one command, an exception in one",
        truth=RAISED,
        fault="throw",
        points=ANYWHERE[:3],
        job=TwoWorlds,
    ),
    replace(
        _KILLED_IN_COMPANY,
        name="one torchrun after the other in one command, SIGKILL in the second",
        job=OneAfterTheOther,
    ),
    Scenario(
        name="clean: helper processes that inherit RANK and die",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=DDP,
        worlds=(2, 3),
        options={"helpers_every_s": 15.0},
        clean_s=95.0,
        alone=False,
        step_s=(0.3, 2.0),
        repeats=2,
    ),
)
