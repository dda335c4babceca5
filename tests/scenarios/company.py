"""What else runs beside a job under test: another watched job, another torchrun of the same script, helper processes.

The other job is healthy and has a plan and a truth folder of its own; what whichrank says of it is checked at the end.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

from .plan import Plan, Scenario
from .runner import START_S, IncidentTail, Job, torchrun_command, whichrank_command

#: The other job is to see the fault, and what follows from it.
_STEPS_AFTER_S = 15.0


class NotSilent(Exception):
    """Whichrank said something of a job to which nothing had happened."""


def healthy_plan(plan: Plan) -> Plan:
    """The same job without its fault, going on for longer."""
    steps = plan.steps + round(_STEPS_AFTER_S / plan.step_s)
    return replace(plan, guilty=(), fault="", onset_step=-1, steps=steps, jitter_seed=plan.jitter_seed + 1)


def write_other(scenario: Scenario, plan: Plan, folder: Path) -> tuple[Path, list[str]]:
    """The other job's plan file and its torchrun."""
    other = folder / "other"
    (other / "truth").mkdir(parents=True)
    (other / "logs").mkdir()
    document = {name: getattr(plan, name) for name in Plan.__dataclass_fields__} | {"truth": str(other / "truth")}
    (other / "plan.json").write_text(json.dumps(document))
    return other / "plan.json", torchrun_command(scenario, plan, other / "logs")


def another_job(job: Job, over: threading.Event) -> None:
    """A second ``whichrank run`` of the same script, started at the same time. Raises NotSilent."""
    plan = healthy_plan(job.plan)
    path, command = write_other(job.scenario, plan, job.folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")}
    environment |= {"SCENARIO_PLAN": str(path), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    out = path.parent / "out"
    with (path.parent / "console.txt").open("wb") as console:
        process = subprocess.Popen(
            [*whichrank_command(), "run", "--out", str(out), "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        over.wait(START_S)
        if process.poll() is None:
            process.terminate()
        process.wait(15.0)
    finally:
        process.kill()
        process.wait()
    tail = IncidentTail(out / "incidents.jsonl")
    tail.poll()
    steps = path.parent / "truth" / "steps-0.txt"
    if not steps.exists() or not steps.read_text():
        raise NotSilent("the other job did no step, so its silence proves nothing")
    if tail.verdict():
        kinds = sorted({str(document["kind"]) for document in tail.revisions})
        raise NotSilent(f"the healthy job beside it is said to have {', '.join(kinds)}")


class TwoWorlds(Job):
    """One command that starts two torchruns side by side; the second one is healthy."""

    def job_command(self) -> list[str]:
        path, other = write_other(self.scenario, healthy_plan(self.plan), self.folder)
        beside = f"SCENARIO_PLAN={shlex.quote(str(path))} {shlex.join(other)}"
        return ["bash", "-c", f"{beside} & {shlex.join(super().job_command())}; code=$?; wait; exit $code"]


class OneAfterTheOther(Job):
    """One command that starts a healthy torchrun, and after it the one with the fault."""

    def job_command(self) -> list[str]:
        plan = replace(healthy_plan(self.plan), steps=max(5, self.plan.onset_step))
        path, other = write_other(self.scenario, plan, self.folder)
        before = f"SCENARIO_PLAN={shlex.quote(str(path))} {shlex.join(other)}"
        return ["bash", "-c", f"{before} && exec {shlex.join(super().job_command())}"]
