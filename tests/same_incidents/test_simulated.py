"""Every sixty-fourth simulated run is judged as when the golden lines were written; all: ``make same-incidents``."""

from __future__ import annotations

import pytest

from tests.same_incidents.as_before import assert_same, assert_types_hold_all
from tests.same_incidents.facts import line_of
from tests.same_incidents.judged import Simulated, simulated_runs

EVERY_SIXTY_FOURTH = list(simulated_runs())[::64]


@pytest.mark.parametrize("run", EVERY_SIXTY_FOURTH, ids=lambda run: run.name)
def test_a_simulated_job_is_judged_as_before(run: Simulated) -> None:
    revisions = run.judge()
    assert_same("simulated", run.name, line_of(run.name, revisions))
    assert_types_hold_all(revisions)
