"""Captures of real jobs are judged as they were when the golden lines were written.

All of them: ``python -m tests.same_incidents``. Who changes a verdict on purpose writes the lines again, with
``--write``, and says so in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.same_incidents.as_before import assert_same, assert_types_hold_all
from tests.same_incidents.facts import facts_of, first_difference, line_of, texts_of
from tests.same_incidents.judged import Captured, simulated_runs
from tests.same_incidents.kept import captures, name_of, read_lines, unpack


@pytest.mark.parametrize("packed", captures(), ids=name_of)
def test_a_real_job_is_judged_as_before(packed: Path, tmp_path: Path) -> None:
    run = Captured(name=name_of(packed), folder=unpack(packed, tmp_path))
    revisions = run.judge()
    assert_same("captures", run.name, line_of(run.name, revisions))
    assert_types_hold_all(revisions)


def test_every_simulated_run_has_a_golden_line() -> None:
    assert {run.name for run in simulated_runs()} == set(read_lines("simulated"))


def test_sentences_are_no_facts_and_all_else_is() -> None:
    suspect = {"rank": 3, "where": {"file": "a.py", "line": 7}}
    document = {
        "id": "x",
        "kind": "rank_died",
        "suspects": [suspect],
        "evidence": [{"signal": "exit", "source": "agent", "time": 1.0, "shows": "rank 3 died"}],
        "advice": {"action": "restart", "by": "automatic", "text": "restart it"},
    }
    facts = facts_of(document)
    assert facts["suspects"] == [suspect]
    assert "rank 3 died" not in json.dumps(facts)
    assert texts_of(document) == ["rank 3 died", "restart it"]


def test_the_place_of_a_difference_is_named() -> None:
    before = {"revisions": [{"id": "a", "times": {"detected": 1.0}}]}
    now = {"revisions": [{"id": "a", "times": {"detected": 2.0}}]}
    assert first_difference(before, now) == "revisions[0].times.detected: 1.0, now 2.0"
    assert first_difference(before, {"revisions": []}) == "revisions: 1 of them, now 0"
    assert first_difference(before, before) == ""
