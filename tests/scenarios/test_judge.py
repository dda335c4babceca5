"""The judge itself: what is right is right, and each way to be wrong is found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .catalogue import REPRESENTATIVE, SCENARIOS
from .draw import draw_plan
from .judge import (
    RESOLVED_WITHIN_S,
    RESOLVED_WITHIN_STEPS,
    fault_end,
    hang_limit_s,
    judge,
    printed_errors,
    ranks_in,
)
from .plan import Blame, Ending, Pace, Plan, Scenario
from .report import must_show, percentile
from .runner import Onset, Outcome

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
KILL = NAMED["SIGKILL"]
PLAN = replace(draw_plan(KILL, 1, 0), world_size=4, guilty=(2,))


def document(**changes: Any) -> dict[str, Any]:
    right = {
        "id": "a",
        "revision": 1,
        "state": "open",
        "bucket": "immediate_crash",
        "kind": "rank_died",
        "scope": "rank",
        "suspects": [{"rank": 2, "where": None}],
        "evidence": [{"source": "rank 2", "shows": "killed by signal 9"}],
        "ruled_out": [{"who": "ranks 0-1", "because": "victims"}, {"who": "rank 3", "because": "victim"}],
        "severity": "page",
        "first_bad": {"step": PLAN.onset_step},
        "times": {"onset": 100.1},
    }
    return {**right, **changes}


def outcome(*revisions: dict[str, Any], plan: Plan = PLAN, seen_after_s: float = 0.4, **changes: Any) -> Outcome:
    right = Outcome(
        plan=plan,
        folder=Path("nowhere"),
        began=0.0,
        ended=130.0,
        exit_code=1,
        onsets=(Onset(rank=2, realtime=100.0, step=5, file="faults.py", lines=(10, 20)),),
        signalled=None,
        revisions=revisions,
        seen={item["id"]: 100.0 + seen_after_s for item in revisions},
        pids={2: 4711},
        steps_captured=dict.fromkeys(range(4), 20),
        steps_done=dict.fromkeys(range(4), 20),
    )
    return replace(right, **changes)


def test_a_right_incident_has_no_problems() -> None:
    verdict = judge(KILL, outcome(document()), {0, 1, 3}, ())
    assert verdict.right
    assert verdict.delay_s == pytest.approx(0.4)
    assert verdict.limit_s == 1.0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bucket": "communication_hang"}, "bucket"),
        ({"kind": "rank_raised"}, "kind"),
        ({"scope": "application"}, "scope"),
        ({"suspects": []}, "names"),
        ({"suspects": [{"rank": 1}]}, "names"),
        ({"suspects": [{"rank": 2}, {"rank": 1}]}, "names"),
        ({"evidence": [{"source": "rank 1", "shows": "waits since 47110 for 12"}]}, "no evidence"),
        ({"evidence": []}, "no evidence"),
        ({"ruled_out": [{"who": "ranks 0-1"}]}, "not ruled out: [3]"),
        ({"ruled_out": [{"who": "ranks 0-3"}]}, "rules out the guilty"),
    ],
)
def test_each_wrong_field_is_found(changes: dict[str, Any], problem: str) -> None:
    verdict = judge(KILL, outcome(document(**changes)), {0, 1, 3}, ())
    assert [text for text in verdict.problems if problem in text] == list(verdict.problems) != []


def test_evidence_must_say_what_the_truth_asks_for() -> None:
    scenario = replace(KILL, truth=replace(KILL.truth, words=("SIGKILL", "signal 9")))
    assert judge(scenario, outcome(document()), {0, 1, 3}, ()).right
    vague = document(evidence=[{"source": "rank 2", "shows": "is gone"}])
    assert judge(scenario, outcome(vague), {0, 1, 3}, ()).problems == ("no evidence says SIGKILL or signal 9",)


def test_an_incident_must_have_been_information_before_it_was_a_page() -> None:
    scenario = replace(KILL, truth=replace(KILL.truth, severities=("info", "page")))
    told = [document(severity="info"), document(severity="info"), document()]
    assert judge(scenario, outcome(*told), {0, 1, 3}, ()).right
    assert not judge(scenario, outcome(told[0]), {0, 1, 3}, ()).right
    assert not judge(scenario, outcome(*told, told[0]), {0, 1, 3}, ()).right


def test_all_of_several_guilty_ranks_must_be_named() -> None:
    plan = replace(PLAN, guilty=(2, 3))
    both = document(suspects=[{"rank": 2}, {"rank": 3}], ruled_out=[{"who": "ranks 0-1"}])
    assert judge(KILL, outcome(both, plan=plan), {0, 1}, ()).right
    one = document(ruled_out=[{"who": "ranks 0-1"}])
    assert not judge(KILL, outcome(one, plan=plan), {0, 1}, ()).right


def test_no_incident_two_incidents_and_an_early_one_are_wrong() -> None:
    assert judge(KILL, outcome(), (), ()).problems == ("no incident",)
    assert not judge(KILL, outcome(document(), document(id="b")), (), ()).right
    assert not judge(KILL, outcome(document(), seen_after_s=-2.0), (), ()).right
    assert judge(KILL, outcome(document(), document(id="b", state="merged")), (), ()).right
    assert judge(KILL, outcome(document(), document(id="b", bucket="telemetry")), (), ()).right


def test_two_ranks_without_majority_may_both_be_suspects() -> None:
    scenario = NAMED["wrong size"]
    both = document(
        bucket="communication_hang",
        kind="desync",
        scope="application",
        suspects=[{"rank": 0}, {"rank": 1}],
        ruled_out=[],
    )
    both["evidence"] = [{"source": "rank 1", "shows": "4000 bytes"}]
    plan = replace(PLAN, world_size=2, guilty=(1,))
    assert judge(scenario, outcome(both, plan=plan), {0, 1}, ()).right
    assert not judge(scenario, outcome(both, plan=replace(plan, world_size=3)), {0, 1}, ()).right


def test_nobody_to_blame_means_no_suspect() -> None:
    scenario = NAMED["groups in opposite order"]
    deadlock = document(bucket="communication_hang", kind="deadlock", scope="application", suspects=[], evidence=[])
    assert judge(scenario, outcome(deadlock), (), ()).right
    assert judge(scenario, outcome({**deadlock, "suspects": [{"rank": 1}]}), (), ()).blamed


def test_clean_runs_and_planned_stops() -> None:
    clean, planned = NAMED["clean: convnet with buffers"], NAMED["SIGTERM to torchrun"]
    quiet = outcome(exit_code=0, onsets=())
    assert judge(clean, quiet, (), ()).right
    assert not judge(clean, replace(quiet, exit_code=1), (), ()).right
    assert not judge(clean, replace(quiet, ended=50.0), (), ()).right
    assert not judge(clean, replace(quiet, steps_captured={0: 20, 1: 20, 2: 20}), (), ()).right
    assert not judge(clean, outcome(document(), exit_code=0), (), ()).right
    stop = document(bucket="planned", kind="planned_stop", suspects=[])
    assert judge(planned, outcome(stop), (), ()).right
    assert not judge(planned, outcome(), (), ()).right
    assert not judge(planned, outcome(stop, document(id="b")), (), ()).right
    assert not judge(clean, outcome(stop, exit_code=0), (), ()).right


def test_slow_steps_until_the_incident_are_counted() -> None:
    scenario = NAMED["data straggler"]
    slow = document(bucket="speed_regression", kind="rank_slow", suspects=[{"rank": 2, "where": {"phase": "data"}}])
    verdict = judge(
        scenario,
        outcome(slow, seen_after_s=5.0),
        (),
        [(PLAN.onset_step + i, end) for i, end in enumerate((101.0, 102.0, 103.0, 106.0))],
    )
    assert (verdict.right, verdict.steps) == (True, 3)
    assert not judge(NAMED["compute straggler"], outcome(slow), (), ()).right


def test_an_incident_ends_with_its_fault() -> None:
    """Not before, not never; what the job died of stays open."""
    hang = replace(KILL, ending=Ending.HANGS)
    assert not judge(KILL, outcome(document(state="resolved")), {0, 1, 3}, ()).right
    assert judge(hang, outcome(document(state="resolved"), stopped_by_runner=True), {0, 1, 3}, ()).right
    assert not judge(hang, outcome(document(), stopped_by_runner=True), {0, 1, 3}, ()).right
    for state in ("open", "resolved"):  # told to end while it died by itself
        assert judge(KILL, outcome(document(state=state), stopped_by_runner=True), {0, 1, 3}, ()).right
    passing = replace(KILL, ending=Ending.RUNS)

    def over(resolved_after_s: float | None) -> Outcome:
        seen = {} if resolved_after_s is None else {"a": 110.0 + resolved_after_s}
        return outcome(document(), resolved_seen=seen, fault_ended=110.0, exit_code=0)

    steps = [(step, 110.0 + 2.0 * (step - 30)) for step in range(60)]
    limit_s = RESOLVED_WITHIN_STEPS * 2.0
    assert limit_s > RESOLVED_WITHIN_S
    for after_s, right in ((-5.0, False), (1.0, True), (limit_s - 0.1, True), (limit_s + 0.1, False)):
        verdict = judge(passing, over(after_s), {0, 1, 3}, steps)
        assert verdict.right is right
        assert verdict.resolved_s == pytest.approx(after_s)
    assert not judge(passing, over(None), {0, 1, 3}, ()).right


def test_a_later_attempt_that_passes_the_step_ends_the_fault() -> None:
    again = replace(KILL, ending=Ending.RUNS, restarts=1)
    steps = [(PLAN.onset_step - 1, 99.0), (PLAN.onset_step - 1, 120.0), (PLAN.onset_step + 1, 122.0)]
    assert fault_end(again, outcome(document()), steps) == 122.0
    assert judge(again, outcome(document(), resolved_seen={"a": 123.0}, exit_code=0), {0, 1, 3}, steps).right
    assert not judge(again, outcome(document(), exit_code=0), {0, 1, 3}, steps).right


def test_truths_with_more_than_one_right_answer() -> None:
    def told(truth: dict[str, Any], *documents: dict[str, Any]) -> bool:
        scenario = replace(KILL, truth=replace(KILL.truth, **truth))
        return judge(scenario, outcome(*documents), {0, 1, 3}, ()).right

    assert told({"silence": True})
    assert not told({})
    assert told({"kinds": ("rank_raised",)}, document(kind="rank_raised"))
    assert not told({"kinds": ("desync",)}, document(kind="rank_raised"))
    unsure = {"blame": Blame.NO_INNOCENT}
    nobody = [{"who": "ranks 0-1"}, {"who": "rank 3"}, {"who": "rank 2"}]
    assert told(unsure, document())
    assert not told(unsure, document(suspects=[{"rank": 1}]))
    assert told(unsure, document(suspects=[], ruled_out=nobody[:2], evidence=[]))


def test_a_delay_may_count_from_when_the_others_wait() -> None:
    late = replace(KILL, truth=replace(KILL.truth, pace=Pace.WITHIN, within_s=30.0))
    verdict = judge(late, outcome(document(), seen_after_s=31.0, waits={0: 101.0, 1: 104.0}), {0, 1, 3}, ())
    assert verdict.delay_s == pytest.approx(27.0)
    assert verdict.limit_s == 30.0


def test_the_onset_told_is_judged_by_time_or_by_step() -> None:
    assert judge(KILL, outcome(document()), {0, 1, 3}, ()).onset_right
    assert not judge(KILL, outcome(document(times={"onset": 101.5})), {0, 1, 3}, ()).onset_right
    slow = replace(KILL, truth=replace(KILL.truth, pace=Pace.STEPS))
    for off, right in ((0, True), (1, True), (2, False)):
        told = document(first_bad={"step": PLAN.onset_step + off}, times={"onset": 150.0})
        assert judge(slow, outcome(told), {0, 1, 3}, ()).onset_right is right


def test_what_is_asked_of_a_hang() -> None:
    assert hang_limit_s(0.1, []) == 5.0
    assert hang_limit_s(3.0, [0.0]) == 9.0
    assert hang_limit_s(1.0, [0.0, 2.0, 4.0, 6.0]) == 6.0
    assert hang_limit_s(0.1, [0.0, 0.1, 10.1, 10.2]) == pytest.approx(14.0)


def test_the_line_is_judged_by_the_faults_own_function() -> None:
    hang = NAMED["sleep in forward"]

    def located(file: str, line: int) -> bool | None:
        where = {"file": file, "line": line, "phase": "forward"}
        return judge(hang, outcome(document(suspects=[{"rank": 2, "where": where}])), (), ()).located

    assert located("/somewhere/faults.py", 15)
    assert not located("/somewhere/faults.py", 30)
    assert not located("/somewhere/train.py", 15)
    assert judge(KILL, outcome(document()), (), ()).located is None


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("rank 3", {3}),
        ("ranks 0-2,5", {0, 1, 2, 5}),
        ("ranks 0-1 and 4 wait for rank 7", {0, 1, 4, 7}),
        ("node-02 says 12", set()),
        ("rank3", {3}),
    ],
)
def test_ranks_are_read_from_words(text: str, ranks: set[int]) -> None:
    assert ranks_in(text) == ranks


def test_errors_are_read_from_the_ranks_own_logs(tmp_path: Path) -> None:
    for rank, text in enumerate(("all well", "Traceback (most recent call last):\n", "terminate called after")):
        folder = tmp_path / "id" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    assert printed_errors(tmp_path) == {1, 2}


def test_the_report_is_short_when_a_run_is_wrong_late_or_missing() -> None:
    right = judge(KILL, outcome(document()), (), ())
    late = judge(KILL, outcome(document(), seen_after_s=1.5), (), ())
    wrong = judge(KILL, outcome(), (), ())
    good = {line.name: line.ok for line in must_show([(KILL, right)])}
    assert [ok for name, ok in good.items() if name.startswith(("faults", "onset -> incident: death"))] == [True, True]
    assert [line.ok for line in must_show([(KILL, late)]) if "death" in line.name] == [False]
    lines = {line.name: line for line in must_show([(KILL, wrong)] + [(KILL, right)] * 49)}
    faults = next(line for name, line in lines.items() if name.startswith("faults"))
    assert (faults.k, faults.n, faults.ok) == (49, 50, True)
    assert percentile([3.0, 1.0, 2.0], 0.95) == 3.0
    assert percentile([float(value) for value in range(1, 101)], 0.95) == 95.0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_draws_are_possible_and_repeatable(scenario: Scenario) -> None:
    workloads = Path(__file__).parent / "workloads"
    for seed in range(40):
        plan = draw_plan(scenario, seed, 0)
        assert plan == draw_plan(scenario, seed, 0)
        assert 2 <= plan.world_size <= 6
        assert 0.05 <= plan.step_s <= 4.0
        assert plan.jitter >= 0.03
        assert set(plan.guilty) < set(range(plan.world_size)) or scenario.everyone
        assert bool(plan.guilty) == bool(scenario.fault)
        assert len(plan.guilty) in (0, scenario.guilty_count) or scenario.truth.blame is Blame.NOBODY
        assert plan.onset_step < plan.steps
        script = (workloads / f"{plan.workload}.py").read_text()
        parts = script
        if plan.fault not in ("", "slow", "runs_out") and plan.point not in ("data", "forward"):
            for name in re.findall(r"^(?:from|import) (\w+)", script, re.MULTILINE):  # the parts that scripts share
                if (workloads / f"{name}.py").exists():
                    parts += (workloads / f"{name}.py").read_text()
            assert f'.point("{plan.point}"' in parts or f'PLAN["point"] == "{plan.point}"' in parts
        assert "whichrank" not in script or plan.workload == "by_hand"


def test_the_representative_part_exists() -> None:
    assert set(REPRESENTATIVE) <= set(NAMED)
    assert sum(scenario.repeats or 1 for scenario in SCENARIOS if scenario.clean_s >= 90.0) >= 24
