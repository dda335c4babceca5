"""The comparison of a killed run with its unkilled twin: each way to differ is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.catalogue import SCENARIOS
from tests.scenarios.draw import draw_plan
from tests.scenarios.parent import KILLED_DURING, Told, differences, kill_moment_s, killed_parent_plans
from tests.scenarios.plan import Scenario
from tests.scenarios.runner import Onset, Outcome

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
STOP = NAMED["SIGSTOP"]
PLAN = replace(draw_plan(STOP, 1, 0), world_size=4, guilty=(2,))
PIDS = {2: 4711}


def document(**changes: Any) -> dict[str, Any]:
    right = {
        "id": "a",
        "state": "open",
        "bucket": "communication_hang",
        "kind": "rank_stopped",
        "suspects": [{"rank": 2}],
        "evidence": [{"source": "rank 2 (pid 4711)", "shows": "is stopped"}],
        "times": {"onset": 100.4},
    }
    return {**right, **changes}


def told(*documents: dict[str, Any], injected: float = 100.0) -> Told:
    return Told(documents, injected, PIDS)


def problems(killed: Told, twin: Told | None = None, scenario: Scenario = STOP, written: tuple[str, ...] = ()) -> str:
    return "; ".join(differences(scenario, PLAN, twin or told(document()), killed, written))


def test_the_same_incident_has_no_problems() -> None:
    assert problems(told(document())) == ""


def test_onsets_count_from_the_moment_at_which_each_fault_bit() -> None:
    late = document(times={"onset": 502.7})
    assert "onset +2.70 s after the fault bit instead of +0.40 s" in problems(told(late, injected=500.0))
    assert problems(told(late, injected=500.0), told(document(times={"onset": 102.2}))) == ""
    assert "onset not told" in problems(told(document(times={"onset": None})))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"bucket": "immediate_crash"}, "bucket immediate_crash instead of communication_hang"),
        ({"kind": "rank_not_entered"}, "kind rank_not_entered instead of rank_stopped"),
        ({"suspects": [{"rank": 1}]}, "names [1] instead of [2]"),
        ({"suspects": [{"rank": 1}, {"rank": 2}]}, "names [1, 2] instead of [2]"),
        ({"evidence": [{"source": "rank 1", "shows": "waits"}]}, "no evidence from rank 2"),
    ],
)
def test_each_difference_is_found_in_either_run(change: dict[str, Any], expected: str) -> None:
    assert expected in problems(told(document(**change)))
    assert f"twin: {expected}" in problems(told(document(**change)), told(document(**change)))


def test_none_or_two_incidents_are_no_pair() -> None:
    other = document(id="b")
    assert problems(told()) == "killed: 0 incidents ()"
    assert "killed: 2 incidents" in problems(told(document(), other))
    assert "twin: 2 incidents" in problems(told(document()), told(document(), other))
    assert "twin: 0 incidents" in problems(told(document()), told(document(bucket="planned")))
    assert problems(told(document(), document(id="b", state="merged"))) == ""


def test_what_the_killed_run_wrote_itself_keeps_its_id() -> None:
    assert problems(told(document()), written=("a",)) == ""
    assert problems(told(document()), written=("b",)) == "another id than the killed run wrote"


def test_two_ranks_that_disagree_are_both_named_by_both() -> None:
    change = {"bucket": "communication_hang", "kind": "desync", "suspects": [{"rank": 0}, {"rank": 1}]}
    plan = replace(PLAN, world_size=2, guilty=(1,))
    evidence = [{"source": "rank 1", "shows": "called something else"}]
    both = told(document(**change, evidence=evidence))
    assert differences(NAMED["wrong op"], plan, both, both) == []
    one = told(document(**{**change, "suspects": [{"rank": 1}]}, evidence=evidence))
    assert differences(NAMED["wrong op"], plan, both, one) == ["names [1] instead of [0, 1]"]


def test_every_kind_is_drawn_as_often_as_asked() -> None:
    drawn = [scenario.name for scenario, _, _ in killed_parent_plans(1, 2 * len(KILLED_DURING))]
    assert sorted(drawn) == sorted(KILLED_DURING * 2)


def test_the_watcher_dies_between_a_second_before_the_onset_and_five_after_the_verdict() -> None:
    twin = Outcome(
        plan=PLAN,
        folder=Path("nowhere"),
        began=0.0,
        ended=130.0,
        exit_code=1,
        onsets=(Onset(rank=2, realtime=100.0, step=5, file="faults.py", lines=(10, 20)),),
        signalled=None,
        revisions=(),
        seen={"a": 103.0},
        pids=PIDS,
        steps_captured={},
        steps_done={},
        stopped_by_runner=True,
    )
    assert [kill_moment_s(twin, moment) for moment in (0.0, 0.5, 1.0)] == [-1.0, 3.5, 8.0]
    died = replace(twin, ended=101.5, stopped_by_runner=False)  # with its job, before the verdict's five seconds
    assert kill_moment_s(died, 1.0) == pytest.approx(1.2)
