"""One real job: torchrun under ``whichrank run``, by the runner of the scenarios, with nothing beside it."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from tests.scenarios.runner import Job, Outcome, run_plan, torchrun_command

from .kinds import Kind

#: torch >= 2.15 keeps the launcher's store over restarts, and gloo then fails.
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class JobOfThisPython(Job):
    """A console script may have been installed for another environment's Python."""

    def job_command(self) -> list[str]:
        return [sys.executable, *torchrun_command(self.scenario, self.plan, self.logs)]


def run_real(kind: Kind, repeat: int, seed: int, folder: Path) -> Outcome:
    """Blocks until the job is over, some seconds to minutes. Whatever lies in the folder is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scenario = replace(kind.scenario(), job=JobOfThisPython, environment=ENVIRONMENT)
    return run_plan(scenario, kind.plan(repeat, seed), folder)
