"""Phase times, section and kernel scores, pairwise checks, hang rules and traces against ``diagnosis/phase_times``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.scoreboard.counters import json_lines, table
from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.phase_times.network_check import (
    bus_bandwidth_gibps,
    failed_in_every_round,
    round_robin,
    slow_nodes,
    suspects_of_pairs,
)
from whichrank.diagnosis.phase_times.scores import (
    OwnBest,
    relative_gpu_scores,
    relative_section_scores,
    stragglers,
)
from whichrank.diagnosis.phase_times.step_phases import RankTimes, StepPhase, StepTimeCause, Strategy
from whichrank.diagnosis.phase_times.visible_time import judge_visible
from whichrank.diagnosis.phase_times.what_if_replay import Slowdown, what_if
from whichrank.evaluation.bench.straggler_trace import read_operations

Row = dict[str, Any]
#: How far a score may lie from the source's, which are given to many digits.
CLOSE = 1e-6
PHASES = {
    "input_wait": StepPhase.INPUT,
    "h2d": StepPhase.H2D,
    "forward": StepPhase.FORWARD,
    "backward": StepPhase.BACKWARD,
    "optimizer_step": StepPhase.OPTIMIZER,
    "residual": StepPhase.RESIDUAL,
}
#: The source's other words for what we say.
KINDS = {"residual_heavy": "residual_bound", "h2d_heavy": "h2d_bound", "wait_heavy": "residual_bound"}
NAMES_A_RANK = {
    StepTimeCause.INPUT_STRAGGLER,
    StepTimeCause.H2D_STRAGGLER,
    StepTimeCause.COMPUTE_STRAGGLER,
    StepTimeCause.STRAGGLER,
}


def rows_scored(rows: Sequence[Row], name: str, wrong_in: Callable[[Row], str], changed: Callable[[Row], Row]) -> Score:
    """``wrong_in``: "" or what is wrong with our answer to a row; ``changed``: the same row in other words."""
    wrong = [f"{row[name]}: {why}" for row in rows if (why := wrong_in(row))]
    kept = sum(not wrong_in(changed(row)) for row in rows)
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong, changed=(kept, len(rows)))


def score_traceml(folder: Path) -> Score:
    rows = json_lines(folder / "traceml" / "step_time_verdicts.jsonl")
    return rows_scored(rows, "case", traceml_wrong, other_ranks)


def traceml_wrong(row: Row) -> str:
    expected = row["expected"]
    ranks = [
        RankTimes(
            rank=int(rank), step_s=times["step_time"] / 1e3,
            phases_s={PHASES[name]: value / 1e3 for name, value in times.items() if name in PHASES},
        )
        for rank, times in row["rank_ms"].items()
    ]  # fmt: skip
    said = judge_visible(ranks, row["steps"], Strategy(row["strategy"]))
    if expected.get("kind") is None:
        return f"expected no straggler, said {said}" if said.cause in NAMES_A_RANK else ""
    # "phase": the source calls the compute phase so, we say which part of it.
    phase = "compute" if said.cause is StepTimeCause.COMPUTE_STRAGGLER else said.phase
    kind = expected["kind"].lower()
    facts = {
        "kind": said.cause.value == KINDS.get(kind, kind),
        "culprit_rank": said.culprit == expected.get("culprit_rank"),
        "victim_rank": said.victim == expected.get("victim_rank"),
        "phase": expected.get("phase") in (phase, said.phase),
        "severity": said.severity.value == expected.get("severity"),
        "score": abs(said.score - expected.get("score", 0.0)) < 1e-3,
        "coverage": abs(said.coverage - expected.get("coverage", 0.0)) < 1e-3,
    }
    bad = [name for name, is_right in facts.items() if name in expected and not is_right]
    return f"{bad}: expected {expected}, said {said}" if bad else ""


def other_ranks(row: Row) -> Row:
    """Other rank numbers, in the same order, and times a thousand times as long."""

    def shift(rank: str) -> str:
        return str(int(rank) * 7 + 16)

    expected = dict(row["expected"])
    for name in ("culprit_rank", "victim_rank"):
        if expected.get(name) is not None:
            expected[name] = int(shift(str(expected[name])))
    times = {shift(rank): {name: value * 1000 for name, value in each.items()} for rank, each in row["rank_ms"].items()}
    return {**row, "rank_ms": times, "expected": expected}


def score_stragglers(folder: Path) -> Score:
    rows = json_lines(folder / "nvrx" / "straggler_cases.jsonl")
    return rows_scored(rows, "id", straggler_wrong, longer)


def longer(row: Row) -> Row:
    """The same run on a machine a thousand times slower: scores are ratios."""

    def scaled(times: dict[str, list[float]]) -> dict[str, list[float]]:
        return {name: [value * 1000 for value in samples] for name, samples in times.items()}

    for key in ("kernels", "seconds"):
        if key in row:
            row = {**row, key: {rank: scaled(times) for rank, times in row[key].items()}}
    return row


def straggler_wrong(row: Row) -> str:
    times = {int(rank): each for rank, each in (row.get("kernels") or row.get("seconds") or {}).items()}
    scope, _, against = row["kind"].partition("_")
    threshold = row.get("threshold", 0.75)
    bounds = row.get("report_after_iterations") or [
        max((len(s) for t in times.values() for s in t.values()), default=0)
    ]
    own = {rank: OwnBest.new() for rank in times}
    began = 0
    gpu: dict[int, float | None] = {}
    sections: dict[int, dict[str, float]] = {}
    for end in bounds:
        window = {rank: {name: s[began:end] for name, s in each.items()} for rank, each in times.items()}
        began = end
        if scope == "gpu":
            gpu = (relative_gpu_scores(window) if against == "relative"
                   else {rank: own[rank].gpu_score(window[rank]) for rank in window})  # fmt: skip
        else:
            sections = (relative_section_scores(window) if against == "relative"
                        else {rank: own[rank].section_scores(window[rank]) for rank in window})  # fmt: skip
    wrong = []
    if "scores" in row:
        said: Row = {str(rank): score for rank, score in gpu.items()} or {str(r): each for r, each in sections.items()}
        if not alike(said, row["scores"]):
            wrong.append(f"scores: expected {row['scores']}, said {said}")
    if "expected_stragglers" in row:
        slow = {(name, rank) for rank, each in sections.items() for name in each
                if stragglers({rank: each[name]}, threshold)} if sections else {
                ("", rank) for rank in stragglers(gpu, threshold)}  # fmt: skip
        expected = {(each.get("section", ""), each["rank"]) if isinstance(each, dict) else ("", each)
                    for each in row["expected_stragglers"]}  # fmt: skip
        if slow != expected:
            wrong.append(f"stragglers: expected {expected}, said {slow}")
    return "; ".join(wrong)


def alike(said: object, expected: object) -> bool:
    if isinstance(said, dict) and isinstance(expected, dict):
        return said.keys() == expected.keys() and all(alike(said[key], expected[key]) for key in said)
    if isinstance(said, (int, float)) and isinstance(expected, (int, float)):
        return abs(said - expected) <= CLOSE * max(1.0, abs(expected))
    return said == expected


def score_dlrover(folder: Path) -> Score:
    # What its workers say of themselves is no input of ours.
    rows = [row for row in json_lines(folder / "dlrover" / "hang_straggler_cases.jsonl") if row["kind"] in DLROVER]
    return rows_scored(rows, "case", dlrover_wrong, lambda row: row)


def dlrover_wrong(row: Row) -> str:
    expected = next(value for key, value in row.items() if key.startswith("expected"))
    said = DLROVER[row["kind"]](row)
    return "" if said == expected else f"expected {expected}, said {said}"


def _pairwise(row: Row) -> list[int]:
    rounds = [{int(node): is_ok for node, is_ok in each["ok"].items()}
              for key, each in row.items() if re.fullmatch(r"round\d+", key)]  # fmt: skip
    return list(failed_in_every_round(rounds))


def _node_stragglers(row: Row) -> list[int]:
    rounds = [{int(node): seconds for node, seconds in row["elapsed_s"].items()}]
    rounds += [
        {int(node): seconds for node, seconds in row[key].items()} for key in ("elapsed_s_round1",) if key in row
    ]
    return list(slow_nodes(rounds))


DLROVER: dict[str, Callable[[Row], object]] = {
    "node_check_straggler": _node_stragglers,
    "pairwise_network_check": _pairwise,
}


def score_kcover(folder: Path) -> Score:
    # "ready": that fewer reports than ranks have come is said in words only; there is nothing to judge.
    rows = [row for row in json_lines(folder / "kcover" / "slow_node_cases.jsonl") if "ready" not in row]
    return rows_scored(rows, "id", kcover_wrong, lambda row: json.loads(json.dumps(row).replace("node-", "gpu-rack7-")))


def kcover_wrong(row: Row) -> str:
    nodes = row.get("nodes", [])
    try:
        if "size" in row:
            round_robin(range(row["size"]), 5)
        if "workload_elements" in row:
            bus_bandwidth_gibps(row["workload_elements"] or 0, 2, 1.0, len(nodes))
    except ValueError as refused:
        return "" if row.get("error") else f"refused: {refused}"
    if row.get("error"):
        return "expected an error"
    batches, failed = row.get("batches", []), row.get("failed_pairs", [])
    said = suspects_of_pairs(nodes, batches, failed, own_check_failed=row.get("gpu_check_failed", ()))
    return "" if set(said) == set(row["slow"]) else f"expected {row['slow']}, said {said}"


def score_trace(folder: Path) -> Score:
    """Each column of each verdict; and the slowdown of each step of the traces whose results are there."""
    wrong: list[str] = []
    total = 0
    for row in table(folder / "straggler-analysis" / "verdicts.tsv"):
        name = row["trace"]
        checks = {
            key: value for key, value in row.items() if value not in ("", "-") and key not in ("trace", "root_cause")
        }
        total += len(checks)
        path = folder / "straggler-analysis" / f"trace-{name}.parquet"
        try:
            found = what_if(read_operations(path))
        except (ImportError, OSError) as trouble:
            wrong.append(f"{name}: {trouble}")
            continue
        wrong += [f"{name}.{key}: expected {value}, said {trace_fact(found, key)}" for key, value in checks.items()
                  if not trace_right(found, key, value)]  # fmt: skip
        result = folder / "straggler-analysis" / f"result-{name}.json"
        if result.is_file():
            steps = json.loads(result.read_text())["blocking_step_slowdown"]
            total += len(steps)
            wrong += [f"{name} step {step}: expected {slow:.3f}, said {found.per_step.get(int(step))}"
                      for step, slow in steps.items()
                      if abs(found.per_step.get(int(step), 0.0) / slow - 1) > 0.013]  # fmt: skip
    return Score(right=max(total - len(wrong), 0), total=total, wrong=wrong)


def trace_fact(found: Slowdown, key: str) -> object:
    return {
        "slowdown_S": found.slowdown,
        "M_W(worker)": found.removal_workers,
        "M_S(last stage)": found.removal_last_stage,
        "worst_dp_rank": found.only_data_rank[0][0],
        "worst_stage": found.only_stage[0][0],
        "worst_optype": found.only_name[0][0],
        "expected_verdict": found.verdict,
    }[key]


def trace_right(found: Slowdown, key: str, expected: str) -> bool:
    fact = trace_fact(found, key)
    if key == "expected_verdict":
        return expected.lower().replace(" ", "_").startswith(str(fact))
    if isinstance(fact, float):
        # The paper's own simulator is off by 1.3 % in the median.
        return abs(fact - float(expected)) <= max(0.013 * abs(float(expected)), 0.01)
    return str(fact) == expected


SCORERS = [
    Scorer(
        name="phase times",
        files=["traceml/step_time_verdicts.jsonl"],
        ask="culprit, victim, phase >= 95 %",
        bar=0.95,
        score=score_traceml,
    ),
    Scorer(
        name="straggler scores",
        files=["nvrx/straggler_cases.jsonl"],
        ask="scores, ranks >= 95 %",
        bar=0.95,
        score=score_stragglers,
    ),
    Scorer(
        name="hang and network rules",
        files=["dlrover/hang_straggler_cases.jsonl"],
        ask="cases >= 95 %",
        bar=0.95,
        score=score_dlrover,
    ),
    Scorer(
        name="slow nodes",
        files=["kcover/slow_node_cases.jsonl"],
        ask="nodes >= 95 %",
        bar=0.95,
        score=score_kcover,
    ),
    Scorer(
        name="operation traces",
        files=["straggler-analysis/*"],
        ask="verdicts and steps >= 95 %",
        bar=0.95,
        score=score_trace,
    ),
]
