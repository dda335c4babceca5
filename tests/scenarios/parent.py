"""Two demands on the capture: it replays to the same bytes, and it survives ``kill -9`` of ``whichrank run``.

Killed parent: a real job, a real fault, and the watching process killed in the middle of it; afterwards ``whichrank
replay`` reads the capture and the rings that are left, and must tell the incident that an unkilled twin, the same plan
run to its end, told live.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .catalogue import SCENARIOS
from .draw import draw_plan
from .judge import APART, describe, evidence_problems, latest_by_id, suspect_ranks
from .plan import Blame, Ending, Pace, Plan, Scenario
from .runner import START_S, Job, Outcome, run_plan, whichrank_command

#: Faults of each way that a verdict comes about: waiting, state, death, own exception, mismatch, comparison.
KILLED_DURING = (
    "sleep in forward",
    "SIGSTOP",
    "SIGKILL",
    "exception",
    "wrong op",
    "compute straggler of 100 %",
    "GIL held in C",
    "SIGSEGV",
    "wrong size",
    "skipped collective",
)
#: The watcher dies at a moment drawn from before the onset to after the verdict of the twin.
BEFORE_ONSET_S = 1.0
AFTER_VERDICT_S = 5.0
#: A job that dies of its fault takes the watcher along: the kill comes this much before that at the latest.
BEFORE_END_S = 0.3
#: After the kill, the fault lasts longer than any verdict about it would take.
LASTS_S = 6.0
#: Comparison needs steps; long ones would only take time.
STEPS_S = (0.05, 1.0)
#: Between the two runs, each from the moment at which its own fault bit.
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


def killed_parent_plans(seed: int, count: int) -> Iterator[tuple[Scenario, Plan, random.Random]]:
    """Plans of their own: a seed of the killed parent draws other jobs than the same seed of the scenarios."""
    named = {scenario.name: scenario for scenario in SCENARIOS}
    for index in range(count):
        scenario = named[KILLED_DURING[index % len(KILLED_DURING)]]
        if scenario.truth.pace is Pace.STEPS:
            scenario = replace(scenario, step_s=STEPS_S)
        repeat = index // len(KILLED_DURING)
        drawn = random.Random(f"killed parent/{seed}/{scenario.name}/{repeat}")
        yield scenario, draw_plan(scenario, drawn.randrange(2**31), repeat), drawn


def killed_parent_problems(scenario: Scenario, plan: Plan, drawn: random.Random, folder: Path) -> tuple[list[str], str]:
    """Runs one plan twice, to its end and with its watcher killed in mid-fault, and compares what is said of the two.

    Returns what is wrong, and how it went. The twin lies in ``folder/twin``, the killed run in ``folder/killed``, its
    replay in ``folder/replay``.
    """
    moment = drawn.random()
    still_standing = drawn.random() < 0.5  # else somebody has ended the hung job before asking what it was
    (folder / "twin").mkdir(parents=True)
    (folder / "killed").mkdir()
    twin = run_plan(scenario, plan, folder / "twin")
    if twin.harness_error or not twin.onsets:
        return [f"harness: the unkilled twin: {twin.harness_error or 'the fault never bit'}"], "not killed"
    told = Told(twin.revisions, twin.onsets[0].realtime, twin.pids)
    kill_s = kill_moment_s(twin, moment)
    job = Job(scenario, plan, folder / "killed")
    try:
        how = _run_and_kill(scenario, job, kill_s, still_standing, max(kill_s, _verdict_after_s(twin)) + LASTS_S)
        replayed = replay(job.out, folder / "replay")
        job.tail.poll()
        again = Told(replayed.report["incidents"], job.onsets()[0].realtime, job.pids())
        return differences(scenario, plan, told, again, tuple(job.tail.seen)), how
    except Exception as failure:
        return [f"harness: {type(failure).__name__}: {failure}"], f"to be killed {kill_s:+.2f} s from the onset"
    finally:
        job.kill_what_is_left()


def kill_moment_s(twin: Outcome, moment: float) -> float:
    """Seconds from the onset at which to kill, for a number drawn from 0 to 1. Pure."""
    last = _verdict_after_s(twin) + AFTER_VERDICT_S
    if not twin.stopped_by_runner:
        last = min(last, twin.ended - twin.onsets[0].realtime - BEFORE_END_S)
    return -BEFORE_ONSET_S + moment * (last + BEFORE_ONSET_S)


def _verdict_after_s(twin: Outcome) -> float:
    first = min(twin.seen.values(), default=twin.ended)
    return max(0.0, first - twin.onsets[0].realtime)


def _run_and_kill(scenario: Scenario, job: Job, kill_s: float, still_standing: bool, lasts_s: float) -> str:
    """Kills the watcher that long after the onset (before it, if negative) and lets the fault last that long.

    Returns how it went, in words. Raises RuntimeError when the fault never bit.
    """
    plan = job.plan
    deadline = time.monotonic() + START_S + plan.onset_step * plan.step_s * 2.5
    while not job.onsets() and not (kill_s < 0.0 and _expected_onset_s(job, plan) <= -kill_s):
        if time.monotonic() > deadline or not job.running():
            raise RuntimeError("the fault never bit")
        time.sleep(0.005)
    launcher = job.launcher()
    if job.onsets():
        time.sleep(max(0.0, job.onsets()[0].realtime + kill_s - time.time()))
    if not job.running():
        return "the job had ended before the kill"
    os.kill(job.process.pid, signal.SIGKILL)
    killed = time.time()
    job.process.wait()
    while not job.onsets():
        if time.monotonic() > deadline or not launcher.is_running():
            raise RuntimeError("the fault never bit after the kill")
        time.sleep(0.05)
    # The job knows nothing of it; a hang must last as long as any verdict of it would need, a slow job to its end.
    onset = job.onsets()[0].realtime
    end = onset + max(lasts_s, 4.0 * plan.step_s, 60.0 if scenario.ending is Ending.RUNS else 0.0)
    while time.time() < end and launcher.is_running():
        time.sleep(0.05)
    if not still_standing and launcher.is_running():
        launcher.terminate()
        time.sleep(2.0)
    standing = "still standing" if launcher.is_running() else "ended"
    return f"killed {killed - onset:+.2f} s from the onset, job {standing}"


def _expected_onset_s(job: Job, plan: Plan) -> float:
    """Seconds until the fault bites, by the pace of the steps so far; far off while there is none."""
    try:
        ends = [float(line.split()[1]) for line in (job.truth / "steps-0.txt").read_text().splitlines()]
    except (FileNotFoundError, IndexError, ValueError):
        return math.inf  # not there yet, or a line half written
    if len(ends) < 2:
        return math.inf
    usual_s = statistics.median(late - early for early, late in itertools.pairwise(ends))
    return ends[-1] + (plan.onset_step - len(ends)) * usual_s - time.time()


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of one run. injected: Unix seconds at which the fault bit; pids: by rank."""

    revisions: Sequence[Mapping[str, Any]]
    injected: float
    pids: Mapping[int, int]

    def counted(self) -> list[Mapping[str, Any]]:
        return [document for document in latest_by_id(self.revisions) if document["bucket"] not in APART]


def differences(scenario: Scenario, plan: Plan, twin: Told, killed: Told, written: Collection[str] = ()) -> list[str]:
    """Ways in which the killed run's incident is not its twin's, or the twin's is none; empty is right. Pure.

    written: ids of the incidents that the killed run had written down itself.
    """
    ours, theirs = killed.counted(), twin.counted()
    problems = [
        f"{name}: {len(items)} incidents ({'; '.join(describe(item) for item in items)})"
        for name, items in (("twin", theirs), ("killed", ours))
        if len(items) != 1
    ]
    if problems:
        return problems
    incident, model = ours[0], theirs[0]
    truth, guilty = scenario.truth, plan.guilty
    for key, true in (("bucket", truth.bucket), ("kind", truth.kind)):
        if model[key] != true:
            problems.append(f"twin: {key} {model[key]} instead of {true}")
        if incident[key] != model[key]:
            problems.append(f"{key} {incident[key]} instead of {model[key]}")
    # With two ranks a mismatch has no majority: both are named.
    right = [list(guilty), [0, 1]] if truth.blame is Blame.DIVERGING and plan.world_size == 2 else [list(guilty)]
    named, named_by_twin = sorted(suspect_ranks(incident)), sorted(suspect_ranks(model))
    if named_by_twin not in right:
        problems.append(f"twin: names {named_by_twin} instead of {list(guilty)}")
    if named != named_by_twin:
        problems.append(f"names {named} instead of {named_by_twin}")
    said, said_by_twin = _after_injection_s(incident, killed), _after_injection_s(model, twin)
    if said is None or said_by_twin is None or abs(said - said_by_twin) > ONSET_TOLERANCE_S:
        problems.append(f"onset {_seconds(said)} after the fault bit instead of {_seconds(said_by_twin)}")
    for name, document, of in (("twin: ", model, twin), ("", incident, killed)):
        problems += [f"{name}{problem}" for problem in evidence_problems(document, guilty[0], of.pids.get(guilty[0]))]
    if written and incident["id"] not in written:
        problems.append("another id than the killed run wrote")
    return problems


def _after_injection_s(incident: Mapping[str, Any], told: Told) -> float | None:
    onset = incident["times"]["onset"]
    return None if onset is None else float(onset) - told.injected


def _seconds(value: float | None) -> str:
    return "not told" if value is None else f"{value:+.2f} s"


def describe_plan(plan: Plan) -> str:
    return (
        f"{plan.workload} ranks={plan.world_size} guilty={list(plan.guilty)} step={plan.onset_step} of {plan.step_s} s"
    )


def finished_runs(results: Path, seed: int) -> Sequence[Path]:
    """The first repeat of every scenario that has ended."""
    return sorted(path.parent / "out" for path in (results / f"seed-{seed}").glob("*/0/result.json"))
