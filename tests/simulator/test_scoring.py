"""The scorer on cases made by hand: what is right, what is wrong, and what a clever detector cannot get away with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from whichrank.simulator.scoring.run_score import RunScore, group_of, score_run
from whichrank.simulator.scoring.statistics import (
    Share,
    brier,
    brier_of_constant,
    calibration_error,
    poisson_upper,
    quantile,
)
from whichrank.simulator.scoring.story import BadIncident
from whichrank.simulator.scoring.summary import ScoreLine, summarize

START_S = 1000.0


def fault(**more: Any) -> dict[str, Any]:
    base = {
        "fault": "slow_gpu", "number": "25a", "scope": "rank", "at_s": 100.0, "job": "a", "ranks": [5],
        "nodes": ["node-0"], "devices": [], "kinds": ["rank_slow"], "condition": "", "victims": [], "culprit": "",
    }  # fmt: skip
    return {**base, **more}


def truth(*faults: dict[str, Any], lost_s: float = 0.5) -> dict[str, Any]:
    """lost_s: of the first step after the fault, because one rank is slower."""
    steps = [
        {"job": "a", "bucket": "productive", "begin_ns": n * 2_000_000_000, "end_ns": (n + 1) * 2_000_000_000}
        for n in range(50)
    ]
    felt_ns = int((100.0 + lost_s) * 1e9)
    steps += [
        {"job": "a", "bucket": "straggler_loss", "begin_ns": 100_000_000_000, "end_ns": felt_ns},
        {"job": "a", "bucket": "productive", "begin_ns": felt_ns, "end_ns": 102_000_000_000},
    ]
    job = {"gpus": 8, "begin_ns": 0, "end_ns": 10_800_000_000_000}
    return {
        "schema": 1, "scenario": "x", "seed": 1, "start_unix_ns": int(START_S * 1e9), "faults": list(faults),
        "spans": steps, "jobs": {"a": job},
    }  # fmt: skip


def suspect(rank: int | None = 5, node: str = "node-0", **more: Any) -> dict[str, Any]:
    return {"scope": "rank", "id": str(rank), "rank": rank, "node": node, "gpu": None, "probability": 0.9, **more}


def incident(detected_s: float = 106.0, **more: Any) -> dict[str, Any]:
    return {
        "id": "i1", "revision": 1, "state": "open", "severity": "page", "bucket": "speed_regression",
        "kind": "rank_slow", "scope": "rank", "suspects": [suspect()], "job": {"id": "a"}, "jobs": [],
        "times": {"detected": START_S + detected_s}, "confidence": 0.9, "advice": None, "cause": None, **more,
    }  # fmt: skip


def one(told: list[dict[str, Any]], *faults: dict[str, Any], lost_s: float = 0.5) -> RunScore:
    return score_run(truth(*(faults or (fault(),)), lost_s=lost_s), told)


def line_of(lines: list[ScoreLine], name: str) -> ScoreLine:
    return next(line for line in lines if line.name == name)


def test_a_right_answer_counts_with_its_delay_and_its_steps() -> None:
    run = one([incident()])
    (score,) = run.faults
    assert (score.top_1, score.top_3, score.scope, score.condition) == (True, True, True, None)
    assert score.delay_s == pytest.approx(6.0)
    assert score.steps == pytest.approx(3.0)
    assert score.usual_steps == pytest.approx(3.0)
    assert run.told == ((0.9, True),)
    assert run.gpu_days == pytest.approx(1.0)
    assert (run.pages, run.pages_too_many, run.wrong_nodes) == (1, 0, ())


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "rank_died"},
        {"suspects": [suspect(rank=6)]},
        {"suspects": []},
        {"kind": "shared_cause", "scope": "cluster"},  # an abstention
        {"suspects": [suspect(), suspect(rank=6)]},  # two that are as likely do not decide
    ],
)
def test_a_wrong_answer_is_detected_and_not_right(wrong: dict[str, Any]) -> None:
    run = one([incident(**wrong)])
    assert run.faults[0].detected
    assert not run.faults[0].top_1
    assert run.told == ((0.9, False),)


def test_the_third_suspect_is_among_three_and_the_fourth_is_not() -> None:
    others = [suspect(rank=rank, probability=0.3 - 0.01 * rank) for rank in (1, 2, 3)]
    assert one([incident(suspects=[*others[:2], suspect(probability=0.1)])]).faults[0].top_3
    assert not one([incident(suspects=[*others, suspect(probability=0.1)])]).faults[0].top_3


def test_silence_and_time_out_are_wrong() -> None:
    for run in (one([]), score_run(truth(fault()), [incident()], out_of_time=True)):
        assert not run.faults[0].detected
        assert not run.faults[0].top_1
        assert math.isinf(run.faults[0].delay_s)


def test_what_was_told_before_the_onset_is_no_answer() -> None:
    run = one([incident(90.0)])
    assert not run.faults[0].detected
    assert run.pages_too_many == 1


def test_who_suspects_everybody_one_after_the_other_is_not_right() -> None:
    told = [incident(106.0 + rank, id=f"i{rank}", suspects=[suspect(rank=rank)]) for rank in range(8)]
    run = one(told)
    assert not run.faults[0].top_1
    assert run.pages_too_many == 7


def test_a_repeat_of_a_right_answer_is_no_answer_to_the_other_fault() -> None:
    other = fault(at_s=101.0, ranks=[7], kinds=["rank_stopped"], number="21")
    told = [
        incident(102.0, id="a"),
        incident(103.0, id="b"),
        incident(104.0, id="c", kind="rank_stopped", suspects=[suspect(rank=7)]),
    ]
    assert [score.top_1 for score in one(told, fault(), other).faults] == [True, True]


def test_an_incident_that_merged_is_told_by_the_one_that_took_it_over() -> None:
    storm = fault(number="J1", scope="storage", ranks=[], nodes=[], job="d", victims=["a", "b"], culprit="d",
                  kinds=["storage_overload"])  # fmt: skip
    joint = incident(
        108.0, id="x", kind="storage_overload", scope="storage", suspects=[suspect(rank=None)],
        jobs=[{"id": "d", "role": "culprit"}, {"id": "a", "role": "victim"}],
    )  # fmt: skip
    gone = incident(106.0, id="y", state="merged", merged_into="x", job={"id": "b"})
    run = one([incident(106.0, id="y", job={"id": "b"}), joint, gone], storm)
    assert run.faults[0].top_1
    assert run.pages == 2
    assert run.pages_too_many == 1
    accused = {**joint, "jobs": [{"id": "a", "role": "culprit"}]}
    assert not one([accused], storm).faults[0].top_1


def test_a_page_that_was_held_back_until_it_merged_was_none() -> None:
    held = incident(id="y", hold={"until": 1.0})
    run = one([held, incident(107.0, id="x"), incident(id="y", state="merged", merged_into="x")])
    assert run.pages == 1


def test_a_node_that_is_blamed_wrongly_counts_in_any_revision() -> None:
    advice = {"action": "restart_without_node"}
    first = incident(suspects=[suspect(rank=9, node="node-1")], advice=advice)
    run = one([first, incident(revision=2)])
    assert run.wrong_nodes == ("node-1",)
    assert one([incident(advice=advice)]).wrong_nodes == ()
    assert one([incident(suspects=[suspect(rank=9, node="node-1")])]).wrong_nodes == ()  # a rank is no node


def test_no_node_may_be_blamed_for_the_program() -> None:
    raised = fault(number="8", kinds=["rank_raised"])
    told = incident(kind="rank_raised", advice={"action": "restart_without_node"})
    assert one([told], raised).wrong_nodes == ("node-0",)


def test_an_observer_fault_is_answered_by_telemetry_only() -> None:
    dies = fault(number="O1", scope="node", ranks=[], kinds=["agent_silent"])
    quiet = incident(kind="agent_silent", bucket="telemetry", severity="ticket", suspects=[suspect(None)])
    run = one([quiet], dies)
    assert run.faults[0].top_1
    assert line_of(summarize([run]), "pages for observer faults").ok
    lost = incident(kind="node_lost", suspects=[suspect(None)])
    run = one([lost], dies)
    assert not run.faults[0].detected
    assert not line_of(summarize([run]), "pages for observer faults").ok


def test_a_harmless_anomaly_asks_for_nothing_and_allows_no_page() -> None:
    harmless = fault(kinds=[], number="")
    assert one([], harmless).faults == ()
    run = one([incident()], harmless)
    lines = summarize([run])
    assert not line_of(lines, "pages without a fault").ok
    assert line_of(lines, "pages per 1,000 GPU-days").measured == "1e+03, at most 4.74e+03 (95 %)"


def test_the_condition_counts_only_where_the_truth_has_one() -> None:
    hot = fault(condition="gpu_throttled")
    assert one([incident(cause={"condition": "gpu_throttled"})], hot).faults[0].condition is True
    assert one([incident()], hot).faults[0].condition is False
    assert one([], hot).faults[0].condition is False


def test_a_slow_job_makes_fewer_steps_in_the_same_time() -> None:
    """From 100 s on they take 4 s instead of 2; after the last one at 120 s nobody knows better."""
    told = truth(fault())
    told["spans"][50:] = [
        {"job": "a", "bucket": "productive", "begin_ns": int(n * 1e9), "end_ns": int((n + 4) * 1e9)}
        for n in range(100, 120, 4)
    ]
    for detected_s, steps, usual_steps in ((106.0, 1.5, 3.0), (119.0, 4.75, 9.5), (124.0, 7.0, 12.0)):
        (score,) = score_run(told, [incident(detected_s)]).faults
        assert score.steps == pytest.approx(steps)
        assert score.usual_steps == pytest.approx(usual_steps)


@pytest.mark.parametrize(
    "bad", [{"id": ""}, {"times": {}}, {"suspects": [{"rank": "x"}]}, {"confidence": "high"}, {"jobs": 5}]
)
def test_a_document_that_cannot_be_read_is_one_line(bad: dict[str, Any]) -> None:
    with pytest.raises(BadIncident, match=r"^[^\n]+$"):
        one([{**incident(), **bad}])


def test_what_is_short_is_said() -> None:
    runs = [one([incident()]) for _ in range(97)] + [one([]) for _ in range(3)]
    assert line_of(summarize(runs), "slow: top-1") == ScoreLine(
        name="slow: top-1", asked=">= 97%", measured="97.0%", share="97 of 100 (92% to 99%)", ok=True
    )
    assert not line_of(summarize([*runs, one([])]), "slow: top-1").ok
    steps = line_of(summarize(runs), "slow: steps until told, p95")
    assert (steps.measured, steps.ok) == ("3.0", True)
    baseline = [one([incident()]), one([])]
    assert not line_of(summarize(runs, baseline), "simple detector: top-1").ok
    assert line_of(summarize(runs, [one([]), *baseline]), "simple detector: top-1").ok


def test_what_made_no_step_a_tenth_longer_is_shown_and_not_asked() -> None:
    felt = [one([incident()]) for _ in range(20)]
    hidden = [one([], lost_s=0.1), one([incident(130.0)], lost_s=0.1)]
    lines = summarize([*felt, *hidden])
    steps = line_of(lines, "slow: steps until told, p95")
    assert (steps.share, steps.ok) == ("20 of 20", True)
    late = line_of(lines, "slow, no step a tenth longer: steps")
    assert (late.asked, late.share) == ("", "0 of 2")
    assert late.measured == "15.0, never"


def test_calibration_is_judged_from_five_hundred_on() -> None:
    runs = [one([incident()]) for _ in range(499)]
    assert line_of(summarize(runs), "calibration error").asked == ""
    late = line_of(summarize([*runs, one([incident()])]), "calibration error")
    assert (late.asked, late.measured, late.ok) == ("<= 0.05", "0.100", False)


def test_groups_follow_the_catalogue() -> None:
    numbers = ["1", "10a", "16m", "21", "25a", "34", "37", "J13", "O1", ""]
    assert [group_of(number) for number in numbers] == [
        "crash", "crash", "hang", "hang", "slow", "slow", "numeric", "inter-job", "observer", "other",
    ]  # fmt: skip


def test_intervals_and_bounds() -> None:
    low, high = Share(k=97, n=100).interval
    assert low == pytest.approx(0.9155, abs=1e-3)
    assert high == pytest.approx(0.9897, abs=1e-3)
    assert Share(k=0, n=0).interval == (0.0, 1.0)
    assert poisson_upper(0) == pytest.approx(2.9957, abs=1e-3)
    assert poisson_upper(3) == pytest.approx(7.7537, abs=1e-3)


def test_calibration_and_brier() -> None:
    told = [(0.9, True)] * 9 + [(0.9, False)]
    assert calibration_error(told) == pytest.approx(0.0, abs=1e-12)
    assert brier(told) == pytest.approx(0.09)
    assert brier_of_constant(told) == pytest.approx(0.09)
    assert calibration_error([(1.0, False), (0.0, True)]) == pytest.approx(1.0)


def test_quantiles_take_what_never_came_for_infinite() -> None:
    assert quantile([1.0, 2.0, 3.0, math.inf], 0.5) == 2.0
    assert math.isinf(quantile([1.0, 2.0, 3.0, math.inf], 0.95))


def lemon(**more: Any) -> dict[str, Any]:
    return fault(
        number="J3", scope="node", job="", ranks=[], kinds=["lemon_node"], signs=["rank_died", "rank_raised"], **more
    )


def crash(job: str, at_s: float, **more: Any) -> dict[str, Any]:
    said = {"id": job, "kind": "rank_died", "bucket": "immediate_crash", "job": {"id": job}}
    return incident(at_s, **{**said, **more})


def known(at_s: float = 150.0, id_: str = "a") -> dict[str, Any]:
    return incident(
        at_s, id=id_, kind="lemon_node", scope="node", suspects=[suspect(rank=None)], job={"id": "a"}, jobs=[]
    )


def test_until_several_jobs_have_shown_a_fault_each_has_a_first_word() -> None:
    run = one([crash("a", 110.0), crash("b", 130.0), known()], lemon())
    assert (run.pages_too_many, run.first_words, run.pages_to_spare) == (1, 1, 0)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([crash("a", 110.0), known(), crash("b", 160.0)], id="once it has shown"),
        pytest.param([crash("a", 110.0), crash("a", 120.0, id="a2"), known()], id="a second for one job"),
        pytest.param([crash("a", 110.0), crash("b", 130.0)], id="never told as one"),
        pytest.param([crash("a", 110.0), crash("b", 130.0, suspects=[suspect(node="x")]), known()], id="elsewhere"),
        pytest.param([crash("a", 110.0), crash("b", 130.0, bucket="telemetry"), known()], id="of no job"),
    ],
)
def test_no_other_page_beyond_one_per_fault_is_a_first_word(told: list[dict[str, Any]]) -> None:
    run = one(told, lemon())
    assert run.first_words == 0
    assert run.pages_to_spare == run.pages_too_many > 0


def test_of_a_fault_that_one_job_tells_no_second_page_is_a_first_word() -> None:
    run = one([incident(), incident(110.0, id="b", job={"id": "b"})])
    assert (run.pages_too_many, run.first_words, run.pages_to_spare) == (1, 0, 1)


def test_of_too_many_runs_with_pages_to_spare_the_line_is_short() -> None:
    def lines(with_more: int) -> ScoreLine:
        more = one([incident(), incident(110.0, id="b")])
        return line_of(summarize([more] * with_more + [one([incident()])] * (40 - with_more)), _PAGES)

    assert (lines(2).verdict, lines(2).share) == ("ok", "2 of 40")
    assert lines(3).verdict == "SHORT"
    assert line_of(summarize([one([incident(), incident(110.0, id="b")])]), _PAGES).verdict == ""


_PAGES = "runs with pages beyond one per fault"
