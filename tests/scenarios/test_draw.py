"""What is drawn: a run that is to be healthy for ninety seconds has steps for them, whatever the seed."""

from __future__ import annotations

import pytest

from .catalogue import SCENARIOS
from .draw import draw_plan
from .plan import Scenario

SEEDS = range(300)
STARTED_AGAIN = next(scenario for scenario in SCENARIOS if scenario.name == "clean: restart from a checkpoint")


def test_a_job_started_again_and_again_gets_to_the_end_of_its_steps() -> None:
    shifts = []
    for seed in SEEDS:
        for repeat in range(2):
            plan = draw_plan(STARTED_AGAIN, seed, repeat)
            starts = int(plan.options["shifts"])
            done = min(plan.steps, starts * int(plan.options["shift"]))
            assert done * plan.step_s >= STARTED_AGAIN.clean_s >= 90.0, plan
            assert plan.steps > plan.options["shift"], "one start did it all"
            shifts.append(plan.options["shift"])
    assert 60.0 in shifts
    assert max(shifts) > 60.0


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.clean_s and "shifts" not in one.options])
def test_only_that_kind_stops_its_scripts_early(scenario: Scenario) -> None:
    assert "shift" not in draw_plan(scenario, 1, 0).options
