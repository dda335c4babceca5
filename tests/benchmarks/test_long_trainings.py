"""Long trainings: what is drawn, how the truth is read, and the arithmetic of ETTR. No job runs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.long_training_faults import (
    EVERY,
    KINDS,
    LAYOUTS,
    ONE_NODE,
    THREE_NODES,
    Fault,
    FaultKind,
    Place,
    Plan,
    Truth,
    hangs_of,
    plan_of,
    read_plan,
)
from benchmarks.long_training_table import PERSON_S, without_anybody
from benchmarks.long_training_truth import read_outcome, useful_s


def plan(*kinds: FaultKind, steps: int = 300) -> Plan:
    faults = tuple(Fault(number=number, kind=kind, step=20 + 40 * number, rank=1) for number, kind in enumerate(kinds))
    return Plan(kind="ddp", layout=ONE_NODE, seed=1, steps=steps, faults=faults)


@pytest.mark.parametrize("seed", range(6))
def test_all_kinds_of_faults_come_and_those_that_end_it_come_last(seed: int, tmp_path: Path) -> None:
    plans = [plan_of(kind, layout, minutes=15.0, faults=12, seed=seed, ranks=3) for kind in KINDS for layout in LAYOUTS]
    assert {fault.kind for one in plans for fault in one.faults} == set(FaultKind)
    assert sum(one.is_for_a_person for one in plans) == len(plans) // 2
    for one in plans:
        assert len(one.faults) == 12
        kinds = [fault.kind for fault in one.faults]
        assert FaultKind.ALWAYS not in kinds[:-1]
        assert (FaultKind.NODE in kinds) == (one.layout == THREE_NODES)
        assert FaultKind.NODE not in kinds[:-2]
        steps = [fault.step for fault in one.faults]
        assert steps == sorted(steps)
        assert steps[0] > 0
        assert steps[-1] < one.steps - EVERY // 2
        for fault, after in zip(one.faults, one.faults[1:], strict=False):
            assert after.place is not Place.FIRST or fault.truth is Truth.RESTART
    assert plans == [
        plan_of(kind, layout, minutes=15.0, faults=12, seed=seed, ranks=3) for kind in KINDS for layout in LAYOUTS
    ]
    plans[0].write(tmp_path)
    assert read_plan(tmp_path) == plans[0]


def test_hangs_for_torchruns_own_restarts_come_within_steps_that_were_never_reached_before() -> None:
    for seed in range(10):
        faults = hangs_of("ddp", ONE_NODE, minutes=15.0, faults=3, seed=seed, ranks=2, timeout_s=120.0).faults
        assert {(fault.kind, fault.place) for fault in faults} == {(FaultKind.HANG, Place.STEP)}
        assert len({fault.step // EVERY for fault in faults}) == 3


class Run:
    """Files of a run whose steps take a second each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        (folder / "out-0").mkdir()

    def says(self, **what: Any) -> None:
        self._add("truth-0.jsonl", time=self.now, **what)

    def trains(self, first: int, last: int) -> None:
        self.says(resumed=first - 1)
        for step in range(first, last + 1):
            self.now += 1.0
            self.says(done=step, loss=1.0 / step)

    def fails(self, number: int, kind: FaultKind, step: int, cost_s: float) -> None:
        self.says(fault=number, kind=kind.value, step=step)
        self.now += cost_s

    def acts(self, outcome: str, **more: Any) -> None:
        said = {"operation": "restart_job", "why": "hang", "text": "restart", **more}
        self._add("out-0/respond-audit.jsonl", time=self.now, outcome=outcome, **said)

    def incident(self, kind: str) -> None:
        self._add("out-0/incidents.jsonl", kind=kind, severity="ticket", times={"detected": self.now})

    def _add(self, name: str, **said: Any) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(said) + "\n")


def losses(last: int) -> dict[int, float]:
    return {step: 1.0 / step for step in range(1, last + 1)}


def test_a_training_that_goes_on_by_itself(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.trains(1, 20)
    run.fails(0, FaultKind.HANG, 20, 9.0)
    run.acts("begun")
    run.now += 1.0
    run.acts("done")
    run.trains(11, 60)
    run.fails(1, FaultKind.UPLOAD, 60, 0.5)
    run.says(upload_failed=60)
    run.incident("checkpoint_failed")
    for step in range(61, 81):
        run.now += 1.0
        run.says(done=step, loss=1.0 / step if step != 70 else 9.0)
    run.says(end=80)
    outcome = read_outcome(plan(FaultKind.HANG, FaultKind.UPLOAD), tmp_path, [0], 995.0, run.now, losses(80))
    assert (outcome.reached, outcome.told, outcome.restarts, outcome.false_acts) == (True, False, 1, 0)
    assert [fault.survived for fault in outcome.faults] == [True, True]
    assert outcome.faults[0].again_s == 11.0
    assert outcome.start_s == 6.0
    assert (outcome.losses, outcome.losses_right) == (90, 89)
    # 80 steps count, the one during the upload took half a second more; 10 of 90 were done twice.
    assert outcome.useful_s == 80.5
    assert outcome.ettr == pytest.approx(80.5 / (5.0 + 20.0 + 10.0 + 50.0 + 20.5))
    alone = without_anybody({"outcome": {**_fields(outcome), "faults": [{**_fields(outcome.faults[0])}]}})
    assert alone == pytest.approx(80.5 / (outcome.wall_s + PERSON_S + 6.0 - 11.0))


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_what_was_ended_while_healthy_is_counted_and_nothing_is_survived_by_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.trains(1, 20)
    run.fails(0, FaultKind.SLOW, 20, 5.0)
    run.acts("begun")
    run.trains(11, 30)
    run.acts("begun")
    outcome = read_outcome(plan(FaultKind.SLOW, FaultKind.KILL), tmp_path, [0], 1000.0, run.now, {})
    assert outcome.false_acts == 2
    assert [(fault.happened, fault.survived) for fault in outcome.faults] == [(True, False), (False, False)]
    assert not outcome.reached


def test_a_fault_for_a_person_ends_the_run_and_is_escalated(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for first, last in ((1, 20), (11, 20), (11, 20)):
        run.trains(first, last)
        run.fails(0, FaultKind.ALWAYS, 20, 1.0)
    run.acts("refused", why="alike")
    always = plan(FaultKind.ALWAYS)
    assert read_outcome(always, tmp_path, [1], 1000.0, run.now, {}).faults[0].survived
    assert not read_outcome(always, tmp_path, [-1], 1000.0, run.now, {}).faults[0].survived


def test_only_the_last_time_of_a_step_is_useful() -> None:
    lines = [
        {"time": 0.0, "resumed": 0}, {"time": 1.0, "done": 1}, {"time": 4.0, "done": 2},
        {"time": 9.0, "resumed": 1}, {"time": 9.5, "done": 2}, {"time": 10.0, "rank": 1, "done": 3},
    ]  # fmt: skip
    assert useful_s(lines) == 1.5
