"""What the tie to real runs rests on: the simulated side alone, and the comparison. The real side is ``make tie``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from whichrank.telemetry.vocabulary import Phase

from .tie.comparison import FLOOR_S, Finding, Pair, Tied, compare, findings
from .tie.healthy import Healthy
from .tie.kinds import GUILTY, KINDS, RANKS, UNEVEN, Kind
from .tie.lines import ASKED_KINDS, lines_of
from .tie.observed import Observed, StepsSeen, observe
from .tie.simulated_run import run_simulated

FORWARD_S = (0.34, 0.32, 0.30, 0.28)
DATA_S, BACKWARD_S, OTHER_S = 0.06, 0.02, 0.004


def healthy() -> Healthy:
    own_s = np.zeros((RANKS, len(Phase)))
    own_s[:, int(Phase.FORWARD)] = FORWARD_S
    own_s[:, int(Phase.DATA)], own_s[:, int(Phase.BACKWARD)] = DATA_S, BACKWARD_S
    own_s[:, int(Phase.OTHER)] = OTHER_S
    return Healthy(self_s=own_s.sum(axis=1), own_s=own_s, step_s=0.424, noise=0.01)


def kind_of(name: str, **more: object) -> Kind:
    found = next(kind for kind in KINDS if kind.name == name)
    return replace(found, **more)  # type: ignore[arg-type]


def simulated(kind: Kind, folder: Path) -> Observed:
    run_simulated(kind, healthy(), into_step_s=0.1, seed=3, folder=folder / "simulated")
    return observe(folder / "simulated")


def test_ranks_wait_for_the_slowest_one_before_and_after_another_becomes_it(tmp_path: Path) -> None:
    kind = kind_of("slow rank", steps_before=20, steps_after=20, adds=0.2)
    steps = simulated(kind, tmp_path).steps
    added_s = 0.2 * healthy().step_s * (1.0 - UNEVEN * GUILTY / (RANKS - 1))
    for first, last, added in ((3, 19, 0.0), (21, 39, added_s)):
        work_s = np.array(FORWARD_S) + BACKWARD_S
        work_s[GUILTY] += added
        seen = np.median(steps.between(first, last).wait_ns, axis=0) / 1e9
        assert seen == pytest.approx(work_s.max() - work_s, abs=0.006)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("killed", Finding(kind="rank_died", scope="rank", bucket="immediate_crash", suspects=(GUILTY,))),
        ("other size", Finding(kind="desync", scope="application", bucket="communication_hang", suspects=(GUILTY,))),
        (
            "endless computation",
            Finding(kind="rank_not_entered", scope="rank", bucket="communication_hang", suspects=(GUILTY,)),
        ),
        (
            "groups in opposite order",
            Finding(kind="deadlock", scope="application", bucket="communication_hang", suspects=()),
        ),
        ("not a number", Finding(kind="numeric_first_rank", scope="rank", bucket="numeric", suspects=(GUILTY,))),
        ("slow loader", Finding(kind="rank_slow", scope="rank", bucket="speed_regression", suspects=(GUILTY,))),
    ],
)
def test_a_small_data_parallel_job_is_judged_as_any_other(name: str, told: Finding, tmp_path: Path) -> None:
    kind = kind_of(name, steps_before=20, steps_after=30)
    assert findings(simulated(kind, tmp_path).revisions) == (told,)


def test_nothing_is_told_where_nothing_goes_wrong(tmp_path: Path) -> None:
    assert findings(simulated(kind_of("nothing", steps_before=20, steps_after=20), tmp_path).revisions) == ()


def test_what_is_known_of_a_real_run_comes_from_its_healthy_steps_alone() -> None:
    steps = steps_of(wait_s=0.05)
    known = Healthy.of(steps.between(0, 19))
    later = np.flatnonzero(steps.steps >= 20)
    steps.phase_self_ns[later] *= 7
    steps.duration_ns[later] *= 7
    steps.self_ns[later] *= 7
    again = Healthy.of(steps.between(0, 19))
    assert np.array_equal(known.own_s, again.own_s)
    assert np.array_equal(known.self_s, again.self_s)
    assert (known.step_s, known.noise) == (again.step_s, again.noise)
    with pytest.raises(ValueError, match="only 9 steps"):
        Healthy.of(steps.between(0, 8))


def steps_of(wait_s: float) -> StepsSeen:
    """Forty steps of two ranks, of which the second waits."""
    count, step_ns = 40, 400_000_000
    own_ns = np.full((count, 2), step_ns)
    own_ns[:, 1] -= round(1e9 * wait_s)
    phases = np.zeros((count, 2, len(Phase)), np.int64)
    phases[:, :, int(Phase.FORWARD)] = own_ns
    return StepsSeen(
        steps=np.arange(count),
        begin_ns=np.arange(count) * step_ns,
        duration_ns=np.full(count, step_ns),
        self_ns=own_ns,
        phase_self_ns=phases,
    )


@pytest.mark.parametrize(("simulated_s", "agrees"), [(0.050, True), (0.059, True), (0.061, False), (0.039, False)])
def test_medians_agree_within_a_fifth_of_the_real_one(simulated_s: float, agrees: bool) -> None:
    real, other = (Observed(revisions=(), steps=steps_of(wait_s)) for wait_s in (0.050, simulated_s))
    tied = compare("x", real, other, onset_step=20, last_step=39)
    waits = [pair for pair in tied.pairs if pair.what == "wait" and pair.rank == 1]
    assert [pair.when for pair in waits] == ["before", "after"]
    assert [pair.agrees for pair in waits] == [agrees, agrees]


def test_what_is_too_small_to_measure_must_be_small_in_both() -> None:
    pair = Pair(what="wait", when="before", rank=0, real_s=0.001, simulated_s=0.003)
    assert not pair.is_measurable
    assert pair.agrees
    assert not replace(pair, simulated_s=2.5 * FLOOR_S).agrees


def told(kind: str, *, detected: float = 10.0, bucket: str = "hang", state: str = "open") -> dict[str, object]:
    suspects = [{"rank": 2, "probability": 0.9}, {"rank": 1, "probability": 0.1}]
    times = {"detected": detected}
    return {"id": kind, "kind": kind, "scope": "rank", "bucket": bucket, "state": state, "suspects": suspects} | {
        "times": times
    }


def test_a_finding_is_what_is_left_in_the_end_and_was_told_before_the_owner_ended_the_job() -> None:
    revisions = [
        told("a"),
        told("b", state="merged"),
        told("c", bucket="telemetry"),
        told("d", detected=30.0),
        told("a") | {"kind": "better"},
    ]
    assert findings(revisions, 20.0) == (Finding(kind="better", scope="rank", bucket="hang", suspects=(2,)),)


def result(number: int, **more: object) -> Tied:
    found = (Finding(kind="k", scope="rank", bucket="hang", suspects=(1,)),)
    pair = Pair(what="wait", when="before", rank=0, real_s=0.1, simulated_s=0.11)
    base = Tied(kind=f"kind {number}", real=found, simulated=found, pairs=(pair,))
    return replace(base, **more)  # type: ignore[arg-type]


def test_ten_kinds_that_agree_are_enough_and_nine_were_not_run() -> None:
    enough = [result(number) for number in range(ASKED_KINDS)]
    assert {line.verdict for line in lines_of(enough)} == {"ok", ""}
    assert [line.name for line in lines_of(enough[1:]) if line.verdict == "not run"] == [
        "real and simulated: kinds of faults with the same finding"
    ]
    assert {line.verdict for line in lines_of([])} == {"not run"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"simulated": ()},
        {"real": (), "simulated": ()},
        {"problem": "the fault never bit"},
        {"simulated": (Finding(kind="k", scope="rank", bucket="hang", suspects=(2,)),)},
        {"pairs": ()},
        {"pairs": (Pair(what="wait", when="after", rank=0, real_s=0.1, simulated_s=0.13),)},
        {"is_clean": True},
    ],
)
def test_what_does_not_agree_is_short(wrong: dict[str, object]) -> None:
    lines = lines_of([*(result(number) for number in range(ASKED_KINDS)), result(ASKED_KINDS, **wrong)])
    assert any(line.verdict == "SHORT" for line in lines if f"kind {ASKED_KINDS}" in line.name)
    assert any(line.verdict == "SHORT" for line in lines if line.name.startswith("real and simulated"))


def test_results_are_read_as_they_were_written() -> None:
    tied = result(1, real_delay_s=1.5)
    assert Tied.from_json(json.loads(json.dumps(tied.as_json()))) == tied
