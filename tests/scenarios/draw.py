"""Draws the plan of each run from a seed: the same seed gives the same plans on every machine and Python."""

from __future__ import annotations

import math
import random

from .plan import Blame, Ending, Pace, Plan, Scenario

#: Least and most steps of history before a fault; between them, about ``HISTORY_S`` seconds of it.
STEPS_BEFORE = (3, 40)
HISTORY_S = (4.0, 12.0)
#: A straggler shows only against a past, and must be named within ten steps of its first slow one.
STEPS_BEFORE_SLOW = (12, 60)
STEPS_AFTER = 16
#: Two such jobs at a time are little more than the largest one.
SMALL_WORLD = 4
#: Of a step, as ``workloads/course.py`` shares it out.
FORWARD_SHARE = 0.85


def draw_plan(scenario: Scenario, seed: int, repeat: int) -> Plan:
    drawn = random.Random(f"{seed}/{scenario.name}/{repeat}")
    world_size = drawn.choice(scenario.worlds)
    workload = drawn.choice(scenario.workloads)
    low, high = scenario.step_s
    step_s = round(math.exp(drawn.uniform(math.log(low), math.log(high))), 3)
    options = {name: float(_one_of(drawn, values)) for name, values in sorted(scenario.options.items())}
    if workload == "accumulate":
        options["microsteps"] = float(drawn.choice((2, 3, 4)))
    if workload == "pipeline_1f1b":
        options["microsteps"] = float(drawn.choice((3, 4, 6)))
        options["stages"] = 1.0 + (world_size - 1) / options["microsteps"]  # with the pipe's filling and emptying
    if workload in ("pipeline", "pairs_of_stages"):
        # They work one after the other: together they fill the step.
        options["stages"] = float(world_size // (1 if workload == "pipeline" else 2))
    guilty = _guilty(drawn, scenario, world_size)
    history_s = drawn.uniform(*HISTORY_S)
    if scenario.clean_s:
        mean_s = step_s * (1.0 + options.get("vary_together", 1.0)) / 2.0 * (1.0 + options.get("grow_to", 1.0)) / 2.0
        if options.get("loader_workers"):
            mean_s *= FORWARD_SHARE  # the data of the next step is fetched meanwhile
        mean_s += sum(_habit_s(options, habit, step_s) for habit in ("evaluate", "checkpoint"))
        onset_step, steps = -1, max(5, math.ceil(scenario.clean_s / mean_s))
        if shifts := options.get("shifts"):  # each ends early: all of them together must get to the end
            options["shift"] = max(options["shift"], math.ceil(steps / shifts))
    else:
        slow = scenario.truth.pace is Pace.STEPS
        least, most = STEPS_BEFORE_SLOW if slow else STEPS_BEFORE
        onset_step = min(most, max(least, round(history_s * (2.0 if slow else 1.0) / step_s)))
        steps = onset_step + max(STEPS_AFTER, math.ceil(scenario.tail_s / step_s))
        if scenario.before_s:
            onset_step = max(60, math.ceil(scenario.before_s / step_s))
            steps = onset_step + max(50, math.ceil(scenario.after_s / step_s))
        elif scenario.after_s:
            steps = onset_step + max(50, math.ceil(scenario.after_s / step_s))
    return Plan(
        scenario=scenario.name,
        repeat=repeat,
        seed=seed,
        workload=workload,
        world_size=world_size,
        guilty=guilty,
        fault=scenario.fault,
        point=drawn.choice(_points(scenario, workload)),
        onset_step=onset_step,
        steps=steps,
        step_s=step_s,
        jitter=round(drawn.uniform(0.03, 0.06), 4),
        jitter_seed=drawn.randrange(2**31),
        options=options,
    )


def goes_alone(scenario: Scenario, plan: Plan) -> bool:
    """Whether another job beside it would change what is measured: paces, and jobs that fill the machine by themselves.

    Seconds to a death or a hang are judged beside another small job as well: a node has other things to do, too.
    """
    if not scenario.alone:
        return False
    paced = scenario.truth.pace is Pace.STEPS or scenario.truth.bucket == "speed_regression"
    return paced or plan.world_size > SMALL_WORLD or scenario.job is not None


def estimate_s(scenario: Scenario, plan: Plan) -> float:
    """About how long a run takes: start of torch, the steps (up to a fault that ends them), the end."""
    steps = plan.steps if scenario.ending is Ending.RUNS else plan.onset_step
    usual_s = plan.step_s + 0.04 * plan.world_size
    course_s = max(steps * usual_s, scenario.clean_s) + plan.options.get("first_step_s", 0.0)
    return 7.0 + 1.5 * plan.world_size + course_s + (12.0 if scenario.ending is not Ending.RUNS else 2.0)


def _habit_s(options: dict[str, float], habit: str, step_s: float) -> float:
    """What evaluating or saving every so often adds to the mean step."""
    seconds = options.get(f"{habit}_s", options.get(f"{habit}_steps", 0.0) * step_s)
    return seconds / options.get(f"{habit}_every", 1.0)


def _guilty(drawn: random.Random, scenario: Scenario, world_size: int) -> tuple[int, ...]:
    if not scenario.fault:
        return ()
    if scenario.everyone:
        return tuple(range(world_size))
    among = scenario.guilty_among or range(world_size)
    nobody = scenario.truth.blame is Blame.NOBODY
    count = drawn.randint(1, world_size - 1) if nobody else scenario.guilty_count
    return tuple(sorted(drawn.sample(among, count)))


def _points(scenario: Scenario, workload: str) -> tuple[str, ...]:
    """Not every script passes every point."""
    missing = {"fsdp2": {"metrics"}}.get(workload, set())
    return tuple(point for point in scenario.points if point not in missing)


def _one_of(drawn: random.Random, values: float | tuple[float, ...]) -> float:
    return drawn.choice(values) if isinstance(values, tuple) else values
