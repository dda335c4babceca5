"""Buckets, gaps, figures: exact sums under random input, and numbers that are known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichrank.diagnosis.goodput.account import (
    HOUR_NS,
    InterruptionCause,
    account_of,
    best_checkpoint_distance_s,
    expected_ettr,
)
from whichrank.diagnosis.goodput.gaps import Moments, classify_gap
from whichrank.diagnosis.goodput.interval import Interval, Part, as_body, as_lost, as_slow, of_body
from whichrank.diagnosis.goodput.mean_time_to_failure import chi2_quantile, time_to_failure
from whichrank.diagnosis.goodput.ml_goodput_events import is_record
from whichrank.diagnosis.goodput.partition import Claim, partition
from whichrank.diagnosis.goodput.run_intervals import runs_of
from whichrank.diagnosis.goodput.step_time import OF_PHASES, reference_step, split_steps
from whichrank.diagnosis.goodput.together import together
from whichrank.telemetry.vocabulary import Phase, TimeBucket

B = TimeBucket
S = 1_000_000_000
TIMES = st.integers(0, 200)


@given(
    begin=TIMES,
    length=st.integers(1, 100),
    claims=st.lists(st.tuples(TIMES, TIMES, st.sampled_from(list(B)), st.integers(0, 3)), max_size=12),
)
def test_pieces_cover_the_stretch_once(begin: int, length: int, claims: list[tuple[int, int, TimeBucket, int]]) -> None:
    wanted = [Claim(one, other, bucket, str(rank), rank) for one, other, bucket, rank in claims]
    pieces = partition(begin, begin + length, wanted)
    assert pieces[0].begin_ns == begin
    assert pieces[-1].end_ns == begin + length
    assert all(one.end_ns == other.begin_ns for one, other in zip(pieces, pieces[1:]))  # noqa: B905, RUF007
    for piece, at in ((each, at) for each in pieces for at in range(each.begin_ns, each.end_ns)):
        over = [each for each in wanted if each.begin_ns <= at < each.end_ns]
        assert piece.bucket is (max(over, key=lambda each: each.rank).bucket if over else B.UNKNOWN)


MOMENTS = st.builds(
    Moments,
    cause=st.sampled_from(["", "f"]),
    onset_ns=TIMES,
    detected_ns=TIMES,
    asked_ns=TIMES,
    first_exit_ns=TIMES,
    last_exit_ns=TIMES,
    restarted_ns=TIMES,
    is_first=st.booleans(),
    was_over=st.booleans(),
    worked=st.booleans(),
    finished=st.booleans(),
)


@given(begin=TIMES, length=st.integers(1, 100), moments=MOMENTS)
def test_a_gap_is_covered_whatever_its_moments(begin: int, length: int, moments: Moments) -> None:
    pieces = classify_gap(begin, begin + length, moments)
    assert sum(piece.ns for piece in pieces) == length
    assert all(piece.bucket is not B.UNKNOWN for piece in pieces)


def test_the_moments_of_an_interruption_in_order() -> None:
    moments = Moments(
        cause="f", onset_ns=10, detected_ns=20, first_exit_ns=50, last_exit_ns=60, restarted_ns=80
    )  # fmt: skip
    assert [(piece.bucket, piece.ns) for piece in classify_gap(5, 100, moments)] == [
        (B.REWORK, 5),
        (B.FAULT_BEFORE_DETECTION, 10),
        (B.FAULT_AFTER_DETECTION, 30),
        (B.SHUTDOWN, 10),
        (B.RESTARTING, 40),
    ]


def test_a_crash_is_detected_while_processes_end_already() -> None:
    moments = Moments(cause="f", onset_ns=10, detected_ns=20, first_exit_ns=10, last_exit_ns=60, restarted_ns=80)
    found = {piece.bucket: piece.ns for piece in classify_gap(5, 100, moments)}
    assert found == {B.REWORK: 5, B.FAULT_BEFORE_DETECTION: 10, B.SHUTDOWN: 40, B.RESTARTING: 40}


@given(
    lengths=st.lists(st.integers(0, 10**12), min_size=1, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_step_is_divided_without_rest(lengths: list[int], seed: int) -> None:
    phases = np.random.default_rng(seed).integers(0, 10**12, (len(lengths), len(Phase)))
    parts = split_steps(np.array(lengths), phases)
    assert parts.shape == (len(lengths), len(OF_PHASES) + 1)
    assert parts.sum(axis=1).tolist() == lengths
    assert (parts >= 0).all()


def test_the_reference_leaves_out_what_is_out_of_the_ordinary() -> None:
    usual = np.array([100, 101, 99, 100, 102, 98, 100, 5000])
    found = reference_step(usual)
    assert found.step_ns == 100
    assert found.limit_ns < 200
    assert reference_step(np.array([3, 4])).step_ns == 0


def interval(begin_s: float, end_s: float, *parts: Part, number: int = 0, **values: int | str) -> Interval:
    fields = {"run": "r", "job": "j", "gpus": 8, **values}
    return Interval(begin_ns=int(begin_s * S), end_ns=int(end_s * S), number=number, parts=parts, **fields)  # type: ignore[arg-type]


def steps(
    begin_s: float, end_s: float, number: int, first: int, count: int, saved: int = 0, job: str = "j"
) -> Interval:
    part = Part(B.PRODUCTIVE, int((end_s - begin_s) * S))
    return interval(
        begin_s, end_s, part, number=number, job=job, steps=count, first_step=first, last_step=first + count - 1,
        saved_step=saved, reference_ns=S,
    )  # fmt: skip


def down(begin_s: float, end_s: float, bucket: TimeBucket, number: int, cause: str = "f", job: str = "j") -> Interval:
    return interval(begin_s, end_s, Part(bucket, int((end_s - begin_s) * S), cause), number=number, job=job)


def history() -> list[Interval]:
    """Saved at 20; a fault at 30; on from 20."""
    return [
        interval(0, 5, Part(B.STARTING, 5 * S), number=0),
        steps(5, 25, 1, 0, 20, saved=20),
        as_lost(steps(25, 35, 2, 20, 10, saved=20), "f"),
        down(35, 38, B.FAULT_BEFORE_DETECTION, 3),
        down(38, 40, B.FAULT_AFTER_DETECTION, 4),
        down(40, 41, B.SHUTDOWN, 5),
        down(41, 50, B.RESTARTING, 6),
        down(50, 51, B.CHECKPOINT_RESTORE, 7),
        steps(51, 91, 8, 20, 40, saved=20),
        interval(91, 92, Part(B.SHUTDOWN, S), number=9),
    ]


def test_downtime_has_its_five_parts() -> None:
    causes = {"f": InterruptionCause(kind="rank_died", node="n1", is_hardware=True)}
    found = account_of("r", runs_of(history())["r"], causes)
    assert sum(found.ns.values()) == found.wall_ns == 92 * S
    assert {bucket: ns // S for bucket, ns in found.gpu_ns.items() if ns} == {
        B.STARTING: 40, B.PRODUCTIVE: 480, B.REWORK: 80, B.CHECKPOINT_RESTORE: 8, B.FAULT_BEFORE_DETECTION: 24,
        B.FAULT_AFTER_DETECTION: 16, B.SHUTDOWN: 16, B.RESTARTING: 72,
    }  # fmt: skip
    assert found.downtime == found.hardware_downtime
    parts = found.downtime
    assert (parts.checkpoint_overhead_ns, parts.detection_ns, parts.lost_work_ns) == (0, 3 * S, 10 * S)
    assert (parts.shutdown_ns, parts.restart_ns) == (3 * S, 10 * S), "the job's own end is no error's"
    assert found.goodput == 60 / 92
    assert found.mttf.failures == 1
    assert found.by_kind["rank_died"].gpu_seconds == found.by_node["n1"].gpu_seconds == 8 * 26


def test_order_repeats_and_holes() -> None:
    """Intervals come in any order and twice; the newest word holds, and what never came is unknown."""
    told = history()
    first = replace(told[2], parts=(Part(B.PRODUCTIVE, 10 * S),))
    runs = runs_of([*reversed(told), first, *told])
    assert runs["r"] == told
    assert [each.of(B.REWORK) for each in runs_of([*told, first])["r"]][2] == 0
    (found,) = (account_of(run, each) for run, each in runs_of([*told[:4], *told[6:]]).items())
    assert found.wall_ns == 92 * S
    assert found.ns[B.UNKNOWN] == 3 * S


def test_jobs_of_a_run_are_chained() -> None:
    first = [
        steps(0, 20, 0, 0, 20, saved=0), steps(20, 30, 1, 20, 10, saved=20),
        down(30, 31, B.SHUTDOWN, 2, "f"),
    ]  # fmt: skip
    first[2] = replace(first[2], saved_step=20)
    second = [down(131, 140, B.STARTING, 0, "", job="k"), steps(140, 160, 1, 0, 20, job="k")]
    runs = runs_of([*first, *second])
    found = account_of("r", runs["r"])
    assert found.jobs == ("j", "k")
    assert found.ns[B.QUEUED] == 100 * S
    assert found.gpu_ns[B.QUEUED] == 0, "who waits for machines holds none"
    assert found.ns[B.REWORK] == 10 * S
    assert found.ettr == 40 / 60
    alone = account_of("r", runs_of(first)["r"])
    assert alone.ns[B.REWORK] == 0, "nobody has gone on without it"


def test_the_hour_slides() -> None:
    hours = [steps(0, 3600, 0, 0, 3600), down(3600, 5400, B.RESTARTING, 1), steps(5400, 7200, 2, 3600, 1800)]
    found = dict(account_of("r", hours).ettr_hour)
    assert found[3600 * S] == pytest.approx(1.0)
    assert found[7200 * S] == pytest.approx(0.5)
    assert HOUR_NS == 3600 * S


def test_slow_steps_cost_what_they_take_too_long() -> None:
    slow = as_slow(steps(0, 30, 0, 0, 20), S, "slow")
    assert slow.parts == (Part(B.PRODUCTIVE, 20 * S), Part(B.STRAGGLER_LOSS, 10 * S, "slow"))
    lost = as_lost(slow, "f")
    assert lost.parts == (Part(B.REWORK, 20 * S, "f"), Part(B.STRAGGLER_LOSS, 10 * S, "slow")), "each second once"


@given(parts=st.lists(st.tuples(st.sampled_from(list(B)), st.integers(0, 10**12), st.sampled_from("ab")), max_size=8))
def test_an_interval_survives_the_wire(parts: list[tuple[TimeBucket, int, str]]) -> None:
    whole = Interval(
        run="r", job="j", attempt="a", begin_ns=7, end_ns=7 + sum(ns for _, ns, _ in parts),
        parts=(), steps=3, first_step=1, last_step=3, gpus=4, world=1, number=9, saved_step=2, reference_ns=5,
    )  # fmt: skip
    told = of_body(
        {**as_body(whole), "parts": [{"bucket": b.value, "ns": ns, "cause": c} for b, ns, c in parts]},
        run="r", job="j", attempt="a",
    )  # fmt: skip
    assert of_body(json.loads(json.dumps(as_body(told))), run="r", job="j", attempt="a") == told


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"parts": 3},
        {**as_body(steps(0, 1, 0, 0, 1)), "parts": []},
        {
            **as_body(steps(0, 1, 0, 0, 1)),
            "parts": [{"bucket": "productive", "ns": -5}, {"bucket": "rework", "ns": S + 5}],
        },
        {**as_body(steps(0, 1, 0, 0, 1)), "end_ns": -1},
    ],
)
def test_what_is_no_interval_is_refused_in_one_line(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="interval"):
        of_body(body, run="r", job="j", attempt="a")


def test_mttf_has_the_published_interval() -> None:
    """Quantiles from tables of the chi-square distribution."""
    assert chi2_quantile(0.975, 4) == pytest.approx(11.1433, abs=1e-4)
    assert chi2_quantile(0.025, 2) == pytest.approx(0.050636, abs=1e-5)
    assert chi2_quantile(0.95, 20) == pytest.approx(31.4104, abs=1e-4)
    found = time_to_failure(4, 1000.0)
    assert found.mean_s == 250.0
    assert found.low_s == pytest.approx(2000 / 20.4832, rel=1e-4)
    assert found.high_s == pytest.approx(2000 / 2.17973, rel=1e-4)
    none = time_to_failure(0, 1000.0)
    assert (none.mean_s, none.high_s) == (None, None)
    assert none.low_s == pytest.approx(2000 / 7.37776, rel=1e-4)
    assert time_to_failure(5000, 1e6).high_s == pytest.approx(1e6 / 5000, rel=0.05), "many do not overflow"


def test_what_a_run_can_hope_for() -> None:
    """Meta's example: at 12,000 GPUs, 5 minutes to save and to restart give 0.74 at the best distance."""
    nodes, rate = 1500, 6.5e-3
    distance = best_checkpoint_distance_s(nodes=nodes, failures_per_node_day=rate, save_s=300.0)
    found = expected_ettr(nodes=nodes, failures_per_node_day=rate, restart_s=300.0, save_s=300.0, every_s=distance)
    assert found == pytest.approx(0.74, abs=0.02)


def test_gpus_that_a_job_holds_without_a_rank_are_spare_beside_its_wall_time() -> None:
    """Two worlds of one job use 8 and 4 of 16 GPUs; the scheduler's word came after 5 s."""
    trainer = [replace(each, gpus_held=16 if each.number else 0) for each in history()]
    actors = [replace(steps(51, 91, 0, 0, 10), world=1, gpus=4, gpus_held=16)]
    alone = account_of("r", runs_of(trainer)["r"])
    assert alone.gpu_ns[B.SPARE] == 8 * (92 - 5) * S
    assert alone.ns[B.SPARE] == 0
    assert sum(alone.ns.values()) == alone.wall_ns == 92 * S
    both = account_of("r", runs_of([*trainer, *actors])["r"])
    assert both.gpu_ns[B.SPARE] == (8 * (92 - 5) - 4 * 40) * S
    fewer = account_of("r", runs_of([replace(each, gpus_held=4) for each in history()])["r"])
    assert fewer.gpu_ns[B.SPARE] == 0, "a wrong word costs nothing"


def test_an_evaluation_before_the_fault_does_not_hide_the_lost_work() -> None:
    told = history()
    moved = [replace(each, begin_ns=each.begin_ns + 2 * S, end_ns=each.end_ns + 2 * S) for each in told[3:]]
    moved = [replace(each, number=each.number + 1) for each in moved]
    evaluation = interval(35, 37, Part(B.PLANNED, 2 * S), number=3)
    found = account_of("r", runs_of([*told[:3], evaluation, *moved])["r"])
    (down,) = found.interruptions
    assert down.ns[B.REWORK] == 10 * S
    assert not down.planned
    assert B.PLANNED not in down.ns


def test_a_slow_rank_is_charged_for_its_evaluations_as_far_as_usual_ones_are_known() -> None:
    told = replace(steps(0, 100, 0, 0, 3), parts=(Part(B.PRODUCTIVE, 36 * S), Part(B.PLANNED, 64 * S)), evaluations=1)
    charged = as_slow(told, 10 * S, "f", evaluation_ns=50 * S)
    assert {(part.bucket, part.cause): part.ns // S for part in charged.parts} == {
        (B.PRODUCTIVE, ""): 30, (B.PLANNED, ""): 50, (B.STRAGGLER_LOSS, "f"): 20,
    }  # fmt: skip
    unknown = as_slow(told, 10 * S, "f")
    assert (unknown.of(B.PLANNED), unknown.of(B.STRAGGLER_LOSS)) == (64 * S, 6 * S)
    faster = as_slow(told, 20 * S, "f", evaluation_ns=70 * S)
    assert faster == told
    assert of_body(as_body(charged), run="r", job="j", attempt="") == charged


def test_runs_together_count_a_tenants_failures_over_the_tenants_own_time() -> None:
    ada = account_of("r", runs_of(history())["r"], {"f": InterruptionCause(kind="rank_died", node="n1", tenant="ada")})
    calm = account_of("s", runs_of([replace(steps(0, 50, 0, 0, 50), run="s", job="k")])["s"])
    both = together([ada, calm])
    assert (both.runs, both.wall_ns) == (2, 142 * S)
    assert both.downtime == ada.downtime
    assert both.by_kind["rank_died"].mttf.time_s == 142
    assert both.by_tenant["ada"].mttf.time_s == 92
    assert both.by_tenant["ada"].failures == both.by_node["n1"].failures == both.mttf.failures == 1
    assert both.hardware_share_of_wall == 0
    hard = account_of("r", runs_of(history())["r"], {"f": InterruptionCause(kind="rank_died", is_hardware=True)})
    found = together([hard, calm])
    assert found.hardware_share_of_wall == pytest.approx(26 / 92 / 2)
    assert found.hardware_share_of_downtime == 1.0, "the calm run had none to divide by"
    with pytest.raises(ValueError, match="no runs"):
        together([])


@pytest.mark.parametrize("ends", [{"asked_ns": 80}, {"first_exit_ns": 80, "last_exit_ns": 90, "finished": True}])
def test_what_an_attempt_without_steps_did_since_its_first_call_is_unknown(ends: dict[str, Any]) -> None:
    found = {piece.bucket: piece.ns for piece in classify_gap(5, 100, Moments(worked=False, calls_ns=30, **ends))}
    assert (found[TimeBucket.STARTING], found[TimeBucket.UNKNOWN]) == (25, 50)
    assert sum(found.values()) == 95


def test_waits_of_elastic_jobs_are_records_of_ml_goodput() -> None:
    """Of a log of which lines are chosen by what they are."""
    assert is_record({"elastic_wait_start": "slice_down", "t": 5.0})
    assert is_record({"elastic_wait_end": "slice_down", "t": 9.0})
    assert is_record({"job_start_time": 1.0})
    assert not is_record({"t": 1.0, "loss": 2.0})
