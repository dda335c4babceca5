"""Jobs that are started again: by their launcher after a rank has died, and by their own script, which is healthy."""

from __future__ import annotations

import shlex
from dataclasses import replace

from ..plan import Ending, Scenario, Truth
from ..runner import Job
from .truths import DIED, INSIDE, NOTHING, RAISED

#: Torch's launcher keeps its store over restarts, with the addresses of the ranks that are gone: gloo then connects to
#: those and fails (torch 2.15, 2 of 3 restarts without whichrank). With a store per attempt it works.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Shifts(Job):
    """A job whose own script starts torchrun ``shifts`` times, as one does that may run for an hour at a time; each
    goes on where the one before has saved."""

    def job_command(self) -> list[str]:
        once = shlex.join(super().job_command())
        return ["bash", "-c", "; ".join(["set -e", *[once] * int(self.plan.options["shifts"])])]


def _restarted(name: str, fault: str, truth: Truth, **options: float | tuple[float, ...]) -> Scenario:
    return Scenario(
        name=name,
        truth=replace(truth, resolves=True),
        ending=Ending.RUNS,
        workloads=("resuming",),
        worlds=(2, 3, 4),
        step_s=(0.05, 1.5),
        fault=fault,
        points=INSIDE,
        options={"save_each": (3, 5, 8), **options},
        restarts=2,
        environment=OWN_STORE,
    )


RESTARTS = (
    _restarted("SIGKILL, then restarted", "kill", DIED),
    _restarted("segmentation fault, then restarted", "segfault", DIED),
    _restarted("exception, then restarted", "throw", RAISED),
    _restarted("dies again at the same step after a restart", "kill", replace(DIED, incidents=2), bites=2.0),
    Scenario(
        name="clean: restart from a checkpoint",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=("resuming",),
        worlds=(2, 3, 4),
        options={"save_each": (3, 5, 8), "shift": (40.0, 60.0), "shifts": 3.0},
        clean_s=95.0,
        alone=False,
        step_s=(0.3, 1.0),
        repeats=2,
        job=Shifts,
    ),
)
