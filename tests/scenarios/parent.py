"""Two demands on the capture: it replays to the same bytes, and it survives ``kill -9`` of ``whichrank run``.

Killed parent: a real job, a real fault, and the watching process killed in the middle of it; afterwards ``whichrank
replay`` reads the capture and the rings that are left, and must name what the truth names, once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .catalogue import SCENARIOS
from .draw import draw_plan
from .judge import APART, describe, suspect_ranks
from .plan import Ending, Plan, Scenario
from .runner import START_S, Job, whichrank_command

#: One fault of each way that a verdict comes about: waiting, state, death, own exception, mismatch.
KILLED_DURING = ("sleep in forward", "SIGSTOP", "SIGKILL", "exception", "wrong op")
#: The parent dies this long after the onset: before or around the verdict.
KILL_AFTER_S = (0.05, 2.5)
ONSET_TOLERANCE_S = 1.0
REPLAY_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One ``whichrank replay``. ``lines``: the bytes of the incidents.jsonl that it wrote."""

    report: dict[str, Any]
    lines: bytes


def replay(run_folder: Path, into: Path) -> Replayed:
    """Raises RuntimeError when the command fails for another reason than a difference."""
    done = subprocess.run(
        [*whichrank_command(), "replay", str(run_folder), "--json", "--out", str(into)],
        capture_output=True,
        text=True,
        timeout=REPLAY_S,
        check=False,
    )
    try:
        report = json.loads(done.stdout)
        return Replayed(report=report, lines=Path(report["written"]).read_bytes())
    except (ValueError, KeyError, OSError) as error:
        raise RuntimeError(f"replay ended with {done.returncode}: {done.stderr.strip()[-300:]}") from error


def replay_problems(run_folder: Path, scratch: Path) -> list[str]:
    """Ways in which two replays of one finished run differ from each other or from the live run; empty is right."""
    live = run_folder / "incidents.jsonl"
    try:
        first, second = (replay(run_folder, scratch / name) for name in ("first", "second"))
    except (RuntimeError, subprocess.TimeoutExpired) as failure:
        return [str(failure)]
    problems = []
    if first.lines != second.lines:
        problems.append("two replays differ")
    if first.lines != (live.read_bytes() if live.exists() else b""):
        problems.append(f"differs from the live run at line {first.report.get('differs_at')}")
    return problems


def killed_parent_plans(seed: int, repeats: int) -> Iterator[tuple[Scenario, Plan, random.Random]]:
    """Plans of their own: a seed of the killed parent draws other jobs than the same seed of the scenarios."""
    for scenario in SCENARIOS:
        if scenario.name in KILLED_DURING:
            for repeat in range(repeats):
                drawn = random.Random(f"killed parent/{seed}/{scenario.name}/{repeat}")
                yield scenario, draw_plan(scenario, drawn.randrange(2**31), repeat), drawn


def killed_parent_problems(scenario: Scenario, plan: Plan, drawn: random.Random, folder: Path) -> list[str]:
    """Runs one job, kills its watcher in the middle of the fault, and judges what replay makes of the rest."""
    kill_after_s = drawn.uniform(*KILL_AFTER_S)
    still_standing = drawn.random() < 0.5  # else somebody has ended the hung job before asking what it was
    job = Job(plan, folder)
    try:
        deadline = time.monotonic() + START_S + plan.onset_step * plan.step_s * 2.5
        while not job.onsets():
            if time.monotonic() > deadline or not job.running():
                return ["harness: the fault never bit"]
            time.sleep(0.01)
        onset = job.onsets()[0].realtime
        launcher = job.launcher()
        time.sleep(max(0.0, onset + kill_after_s - time.time()))
        if not job.running():
            return _compare(plan, scenario, onset, job, folder, "the job had ended before the kill")
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        # The job knows nothing of it; a hang must last as long as any verdict of it would need.
        end = time.monotonic() + max(6.0, 4.0 * plan.step_s)
        while time.monotonic() < end and launcher.is_running():
            time.sleep(0.05)
        if scenario.ending is Ending.HANGS and not still_standing and launcher.is_running():
            launcher.terminate()
            time.sleep(2.0)
        how = "still standing" if still_standing else "ended"
        return _compare(plan, scenario, onset, job, folder, f"killed {kill_after_s:.2f} s after the onset, job {how}")
    except Exception as failure:
        return [f"harness: {type(failure).__name__}: {failure}"]
    finally:
        job.kill_what_is_left()


def _compare(plan: Plan, scenario: Scenario, onset: float, job: Job, folder: Path, how: str) -> list[str]:
    truth = scenario.truth
    replayed = replay(job.out, folder / "replay")
    counted = [document for document in replayed.report["incidents"] if document["bucket"] not in APART]
    counted = [document for document in counted if document["state"] != "merged"]
    if len(counted) != 1:
        return [f"{len(counted)} incidents ({'; '.join(describe(item) for item in counted)}); {how}"]
    incident = counted[0]
    problems = []
    if incident["kind"] != truth.kind:
        problems.append(f"kind {incident['kind']} instead of {truth.kind}; {how}")
    named = suspect_ranks(incident)
    if named != list(plan.guilty) and not (scenario.truth.kind == "desync" and sorted(named) == [0, 1]):
        problems.append(f"names {named} instead of {list(plan.guilty)}; {how}")
    said = incident["times"]["onset"]
    if said is None or abs(said - onset) > ONSET_TOLERANCE_S:
        problems.append(f"onset off by {'nothing said' if said is None else f'{said - onset:+.2f} s'}; {how}")
    job.tail.poll()
    if job.tail.seen and incident["id"] not in job.tail.seen:
        problems.append(f"another id than the killed run wrote; {how}")
    return problems


def describe_plan(plan: Plan) -> str:
    return (
        f"{plan.workload} ranks={plan.world_size} guilty={list(plan.guilty)} step={plan.onset_step} of {plan.step_s} s"
    )


def finished_runs(results: Path, seed: int) -> Sequence[Path]:
    """The first repeat of every scenario that has ended."""
    return sorted(path.parent / "out" for path in (results / f"seed-{seed}").glob("*/0/result.json"))
