"""What is run twice: each kind of fault as a real job meets it, and as the simulation has it. Data only.

The size of a fault is the same in both (a fifth more work is a fifth more work). Everything else that the simulation
knows of the real run, it knows from the steps before the onset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.scenarios.plan import Ending, Plan, Scenario, Truth
from whichrank.simulator.faults.process_faults import PAUSE_S

RANKS = 4
GUILTY = 2
STEP_S = 0.4
#: Of a step, as ``workloads/course.py`` shares it out.
DATA_SHARE, FORWARD_SHARE = 0.15, 0.85
#: Standard deviation of a part's length, relative; and by how much less the last rank has to do than the first.
JITTER, UNEVEN = 0.01, 0.2
#: Steps before a fault, and after it where the job goes on.
STEPS_BEFORE, STEPS_AFTER = 80, 60
#: Rank 0 evaluates after so many steps, for so long.
EVALUATE_EVERY, EVALUATION_S = 20, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One fault. simulated: its name in the catalogue of the simulator; "": nothing goes wrong, and nothing is told.

    fault, point, guilty, options, signal_to, everyone: of the real one, as in ``tests/scenarios/plan.py``. ending: what
    the real job comes to. adds: to each later step of those who are hit, in usual steps. with_a_step: it comes when a
    step begins, not within one. stands_s: for which the job stands still because of it, and goes on. program: fields of
    the simulated program that are not the plain one's. steps_before, steps_after: of both runs.
    """

    name: str
    simulated: str
    ending: Ending
    workload: str = "ddp_mlp"
    fault: str = ""
    point: str = "forward"
    options: Mapping[str, float] = field(default_factory=dict)
    signal_to: str = ""
    everyone: bool = False
    guilty: int = GUILTY
    adds: float = 0.0
    with_a_step: bool = False
    stands_s: float = 0.0
    program: Mapping[str, Any] = field(default_factory=dict)
    steps_before: int = STEPS_BEFORE
    steps_after: int = STEPS_AFTER

    @property
    def goes_on(self) -> bool:
        """Whether there are steps after the onset."""
        return self.ending is Ending.RUNS

    @property
    def is_clean(self) -> bool:
        return not self.simulated

    def scenario(self) -> Scenario:
        """How the runner of the scenarios is to treat it. What is right is not asked here: both say what they say."""
        return Scenario(
            name=f"tie: {self.name}",
            truth=Truth(kind=self.simulated, leaves_stack=False),
            ending=self.ending,
            workloads=(self.workload,),
            fault=self.fault,
            points=(self.point,),
            signal_to=self.signal_to,
            everyone=self.everyone,
        )

    def plan(self, repeat: int, seed: int) -> Plan:
        guilty = tuple(range(RANKS)) if self.everyone else (self.guilty,) if self.fault else ()
        return Plan(
            scenario=self.name,
            repeat=repeat,
            seed=seed,
            workload=self.workload,
            world_size=RANKS,
            guilty=guilty,
            fault=self.fault,
            point=self.point,
            onset_step=-1 if self.is_clean else self.steps_before,
            steps=self.steps_before + self.steps_after,
            step_s=STEP_S,
            jitter=JITTER,
            jitter_seed=1000 * seed + repeat,
            options={"uneven": UNEVEN, "slow_by": self.adds, **self.options},
        )


KINDS: tuple[Kind, ...] = (
    # Its first half tells what the second is compared with.
    Kind(name="nothing", simulated="", ending=Ending.RUNS, steps_before=80, steps_after=80),
    Kind(name="killed", simulated="process_killed", ending=Ending.CRASHES, fault="kill"),
    Kind(name="exception", simulated="exception", ending=Ending.CRASHES, fault="throw"),
    Kind(name="stopped", simulated="process_stopped", ending=Ending.HANGS, fault="stop"),
    Kind(
        name="stopped, goes on",
        simulated="process_paused",
        ending=Ending.RUNS,
        fault="pause",
        options={"pause_s": PAUSE_S},
        stands_s=PAUSE_S,
    ),
    Kind(name="never enters", simulated="never_enters", ending=Ending.HANGS, fault="blocked_read", point="data"),
    Kind(name="endless computation", simulated="endless_kernel", ending=Ending.HANGS, fault="busy_loop"),
    Kind(name="other size", simulated="other_branch", ending=Ending.EITHER, fault="wrong_size", point="metrics"),
    Kind(
        name="slow rank",
        simulated="slow_gpu",
        ending=Ending.RUNS,
        fault="slow",
        adds=0.25 * FORWARD_SHARE,
    ),
    Kind(
        name="slow loader",
        simulated="loader_slows",
        ending=Ending.RUNS,
        fault="slow",
        point="data",
        adds=2.0 * DATA_SHARE,
    ),
    Kind(
        name="slower together",
        simulated="uniform_regression",
        ending=Ending.RUNS,
        fault="slow",
        adds=0.2 * FORWARD_SHARE,
        everyone=True,
        steps_before=80,
        steps_after=90,
    ),
    Kind(
        name="data slower together",
        simulated="loaders_starve",
        ending=Ending.RUNS,
        fault="slow",
        point="data",
        adds=DATA_SHARE * (1.0 / 0.15 - 1.0),
        everyone=True,
        steps_before=80,
        steps_after=60,
    ),
    Kind(
        name="groups in opposite order",
        simulated="opposite_order",
        ending=Ending.HANGS,
        workload="two_groups",
        fault="other_order",
        point="order",
        program={"metrics_groups": ("world", "dp")},
    ),
    Kind(
        name="not a number",
        simulated="nan_abort",
        ending=Ending.RUNS,
        fault="not_a_number",
        point="batch",
        with_a_step=True,
    ),
    Kind(
        name="long evaluation",
        simulated="long_evaluation",
        ending=Ending.RUNS,
        fault="linger",
        point="evaluate",
        guilty=0,
        options={"evaluate_every": EVALUATE_EVERY, "evaluate_s": EVALUATION_S, "linger_s": 20.0 * EVALUATION_S},
        with_a_step=True,
        stands_s=20.0 * EVALUATION_S,
        program={"evaluates_every": EVALUATE_EVERY, "first_evaluates": True},
        # Its step ends with an evaluation, and none comes after it.
        steps_before=5 * EVALUATE_EVERY - 1,
        steps_after=EVALUATE_EVERY - 3,
    ),
    Kind(name="told to end", simulated="preemption", ending=Ending.TOLD, signal_to="launcher"),
)
