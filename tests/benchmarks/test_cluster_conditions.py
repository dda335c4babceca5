"""The benchmark of servers and switches: it counts, and it can fail."""

from __future__ import annotations

import pytest

from benchmarks.cluster_cases import CASES, Case, Variant
from benchmarks.cluster_conditions import LEAST_CASES, Outcome, lines_of, outcome_of


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_right_cause_and_a_control_of_each(case: Case) -> None:
    control = list(Variant)[1 + CASES.index(case) % 4]
    for variant in (Variant.FAULT, control):
        outcome = outcome_of(case, variant)
        assert outcome.ok, outcome.said


def test_without_pages_what_they_tell_is_not_known() -> None:
    """Nothing of the stories themselves gives the answer away."""
    unseen = [outcome_of(case, Variant.FAULT, is_seen=False) for case in CASES if "alone" in case.name]
    assert unseen
    assert not any(outcome.ok for outcome in unseen)


def test_a_wrong_answer_and_a_control_that_accuses_are_short() -> None:
    def lines(*wrong: Variant) -> dict[str, str]:
        outcomes = [
            Outcome(case=case, variant=variant, ok=variant not in wrong, said="")
            for case in CASES
            for variant in Variant
        ]
        return {line.name: line.verdict for line in lines_of(outcomes)}

    assert set(lines().values()) == {"ok"}
    assert lines(Variant.FAULT)["the right cause, or none"] == "SHORT"
    assert lines(Variant.EARLIER)["controls that are clean: earlier"] == "SHORT"
    assert len(CASES) >= LEAST_CASES
