"""What the rules about slow ranks do on thousands of jobs that never ran: false alarms by habit, delays by size.

Every step of every job is looked at, which is more often than the operator looks. Step length 0.05 to 4 s, 2 to 6
ranks and 3 to 6 % jitter are drawn; nothing is left out. Run: ``python -m benchmarks.detectors [--jobs N]``.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, field

import numpy as np

from benchmarks.detector_looks import draw_job, first_late_device
from benchmarks.detector_paces import HABITS, Fault, draw_pace, first_pace_change, first_straggler
from benchmarks.report import Report
from whichrank.telemetry.vocabulary import Phase

#: Slow steps within which a straggler is to be named, and for how many of the jobs.
STEPS_ASKED = 10
SHARE_ASKED = {
    (0.1, Phase.FORWARD): 0.75,
    (0.1, Phase.DATA): 0.98,
    (0.2, Phase.FORWARD): 0.95,
    (0.3, Phase.FORWARD): 0.98,
    (1.0, Phase.FORWARD): 0.98,
}
#: By how much all ranks become slower together.
TOGETHER_SHARES = (0.1, 0.3)
#: What is true of the steps of jobs on devices where no device is late; hosts, not devices, lack CPUs.
DEVICE_TRUTHS = ("all", "network", "")
DEVICE_HABITS = tuple(habit for habit in HABITS if habit != "crowded")
#: Seconds within which a device that is late by 30 % is to be named, and in how many of the jobs.
DEVICE_S, DEVICE_SHARE = 20.0, 0.9
#: Per 1,000 healthy jobs of 100 to 1,000 steps with each habit.
FALSE_ASKED = 10


@dataclass(slots=True)
class Delays:
    """Of jobs with a straggler: the number of slow steps before it was named, and all that went wrong."""

    steps: list[int] = field(default_factory=list)
    onset_right: int = 0
    missed: int = 0
    early: int = 0
    wrong_rank: int = 0

    def within(self, steps: int) -> int:
        return sum(count <= steps for count in self.steps)


def draw_settings(chance: np.random.Generator) -> tuple[int, float, float]:
    """Ranks, length of a step in seconds, jitter."""
    step_s = float(np.exp(chance.uniform(np.log(0.05), np.log(4.0))))
    return int(chance.integers(2, 7)), step_s, float(chance.uniform(0.03, 0.06))


def false_alarms(habit: str, jobs: int, seed: int, most_steps: int = 1000) -> int:
    """How many of the healthy jobs have a rank named, or are called slower, in any of their steps."""
    count = 0
    for number in range(jobs):
        chance = np.random.default_rng([seed, HABITS.index(habit), number])
        steps = int(np.exp(chance.uniform(np.log(100), np.log(most_steps))))
        ranks, step_s, jitter = draw_settings(chance)
        pace = draw_pace(chance, habit=habit, ranks=ranks, steps=steps, step_s=step_s, jitter=jitter)
        count += first_straggler(pace) is not None or first_pace_change(pace) is not None
    return count


def delays(share: float, jobs: int, seed: int, phase: Phase = Phase.FORWARD) -> Delays:
    """Jobs of which one rank becomes slower by this share of a step, in this phase."""
    seen = Delays()
    for number in range(jobs):
        chance = np.random.default_rng([seed, int(share * 100), number])
        ranks, step_s, jitter = draw_settings(chance)
        guilty, first = int(chance.integers(0, ranks)), int(chance.integers(12, 60))
        fault = Fault(rank=guilty, first=first, share=share, phase=phase)
        steps = first + 40
        pace = draw_pace(chance, habit="even", ranks=ranks, steps=steps, step_s=step_s, jitter=jitter, fault=fault)
        found = first_straggler(pace)
        if found is None:
            seen.missed += 1
        elif found[0] <= first:
            seen.early += 1
        elif found[1].rank != guilty:
            seen.wrong_rank += 1
        else:
            seen.steps.append(found[0] - first)
            seen.onset_right += abs(found[1].onset_step - pace.first_step - first) <= 1
    return seen


def together(share: float, jobs: int, seed: int) -> tuple[int, int]:
    """Of jobs that all ranks slow down together for 45 s: how many are told, and at the right step."""
    told = right = 0
    for number in range(jobs):
        chance = np.random.default_rng([seed, int(share * 1000), number])
        ranks, _, jitter = draw_settings(chance)
        step_s = float(np.exp(chance.uniform(np.log(0.1), np.log(1.0))))
        first = max(60, math.ceil(25.0 / step_s))
        steps = first + max(50, math.ceil(45.0 / step_s))
        fault = Fault(rank=-1, first=first, share=share)
        pace = draw_pace(chance, habit="even", ranks=ranks, steps=steps, step_s=step_s, jitter=jitter, fault=fault)
        found = first_pace_change(pace)
        told += found is not None
        right += found is not None and abs(found[1].step - pace.first_step - first) <= 1
    return told, right


def late_devices(jobs: int, seed: int, step_s: float = 0.0) -> tuple[list[float], int, int]:
    """Jobs of which one device becomes late by 30 %: seconds until it was named, right onsets, wrong names."""
    late_s: list[float] = []
    right = wrong = 0
    for number in range(jobs):
        chance = np.random.default_rng([seed, number, round(step_s * 1000)])
        job = draw_job(chance, habit="even", fault="rank", share=0.3, step_s=step_s)
        told = first_late_device(chance, job)
        if told.found is None:
            continue
        if told.found.rank != job.guilty or told.steps <= 0:
            wrong += 1
            continue
        late_s.append(told.late_s)
        right += abs(told.found.onset_step - job.pace.first_step - job.first) <= 1
    return late_s, right, wrong


def devices_accused(habit: str, truth: str, jobs: int, seed: int) -> int:
    """Of jobs of which no device is late: how many have one named."""
    count = 0
    for number in range(jobs):
        chance = np.random.default_rng([seed, HABITS.index(habit), len(truth), number])
        job = draw_job(chance, habit=habit, fault=truth, share=0.3)
        count += first_late_device(chance, job).found is not None
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = Report(f"rules about slow ranks on drawn paces, {options.jobs} jobs a row")
    for (share, phase), asked in SHARE_ASKED.items():
        seen = delays(share, options.jobs, options.seed, phase)
        within = seen.within(STEPS_ASKED)
        who = f"straggler of {share:.0%} in {phase.name.lower()}"
        name = f"{who}: named within {STEPS_ASKED} slow steps"
        report.at_least(name, asked, within / options.jobs, k=within, n=options.jobs)
        report.all_of(f"{who}: nobody else named", options.jobs - seen.wrong_rank, options.jobs)
        told = len(seen.steps)
        report.shown(
            f"{who}: slow steps, onset",
            f"p50 {np.median(seen.steps):.0f}, p95 {np.quantile(seen.steps, 0.95):.0f}, {seen.missed} missed, "
            f"{seen.early} named before; onset within a step {seen.onset_right} of {told}",
        )
    for share in TOGETHER_SHARES:
        told, right = together(share, options.jobs, options.seed)
        report.at_least(f"all slower by {share:.0%}: told", 0.98, told / options.jobs, k=told, n=options.jobs)
        report.shown(f"all slower by {share:.0%}: onset within a step", f"{right} of {told}")
    for habit in HABITS:
        alarms = false_alarms(habit, options.jobs, options.seed)
        report.at_most(f"healthy, {habit}: jobs with a false alarm", FALSE_ASKED * options.jobs / 1000, alarms)
    late_s, right, wrong = late_devices(options.jobs, options.seed)
    within = sum(seconds <= DEVICE_S for seconds in late_s)
    name = f"late device, 30 %: named within {DEVICE_S:.0f} s"
    report.at_least(name, DEVICE_SHARE, within / options.jobs, k=within, n=options.jobs)
    report.all_of("late device: nobody else named", options.jobs - wrong, options.jobs)
    report.shown(
        "late device: seconds, onset",
        f"p50 {np.median(late_s):.1f}, p95 {np.quantile(late_s, 0.95):.1f}, "
        f"{options.jobs - len(late_s) - wrong} missed; onset within a step {right} of {len(late_s)}",
    )
    for truth in DEVICE_TRUTHS:
        accused = sum(devices_accused(habit, truth, options.jobs // 4, options.seed) for habit in DEVICE_HABITS)
        count = len(DEVICE_HABITS) * (options.jobs // 4)
        name = f"devices, {truth or 'nobody'} slower: jobs of which one is named"
        report.at_most(name, math.ceil(count / 1000), accused)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
