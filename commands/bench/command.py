"""``whichrank bench``: every scenario so many times, what was right of it, and whether that is enough."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...simulator.scenarios import SCENARIOS
from ...simulator.scoring.run_score import RunScore, score_run
from ...simulator.scoring.story import BadIncident
from ...simulator.scoring.summary import Line, summarize
from .foreign_detector import DetectorFailed, DetectorLate, detect
from .one_run import Asked, Measured, run_apart

SCHEMA = 1
EXIT_SHORT, EXIT_USAGE = 1, 2


@dataclass(kw_only=True)
class Results:
    """scores: of the detector under test; simple: of the simple one, of the same runs, in the same order."""

    scores: list[RunScore] = field(default_factory=list)
    simple: list[RunScore] = field(default_factory=list)
    cpu_s: float = 0.0
    rank_hours: float = 0.0
    problems: list[str] = field(default_factory=list)


def bench(
    *, ranks: int, runs: int, seed: int, only: Sequence[str], detector: Path | None, limit_s: float, as_json: bool
) -> int:
    """The exit code: 0; 1 where something is SHORT; 2 for what cannot be run."""
    names = list(only) or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        return _refuse(f"there is no scenario {unknown[0]!r}; whichrank simulate --list shows all")
    if detector is not None and not detector.is_file():
        return _refuse(f"{detector}: no such file")
    results = Results()
    for name in names:
        for number in range(seed, seed + runs):
            _one(results, Asked(scenario=name, ranks=ranks, seed=number), detector, limit_s)
    lines = [*summarize(results.scores, results.simple), *_of_the_bench(results, own=detector is None)]
    short = [line for line in lines if not line.ok]
    about = f"{len(results.scores)} runs of {len(names)} scenarios at {ranks} ranks, seeds {seed} to {seed + runs - 1}"
    asked = sum(bool(line.asked) for line in lines)
    summary = f"{about}: {asked - len(short)} of {asked} ok" + (f", {len(short)} SHORT" if short else "")
    if as_json:
        print(json.dumps(_as_json(results, lines, summary, ranks=ranks, detector=detector), ensure_ascii=False))
    else:
        _print(lines, summary)
    return EXIT_SHORT if short else 0


def _one(results: Results, asked: Asked, detector: Path | None, limit_s: float) -> None:
    """What goes wrong is a problem of this run, and counts; the others go on."""
    title = f"{asked.scenario}, seed {asked.seed}"
    with tempfile.TemporaryDirectory(prefix="whichrank-bench-") as folder:
        kept = Path(folder) / "run"
        if detector is not None:
            kept.mkdir()
            asked = replace(asked, keep=kept)
        try:
            measured = run_apart(asked, limit_s=limit_s)
        except ValueError as error:
            results.problems.append(f"{title}: {error}")
            print(f"  {title}: cannot be run: {error}", file=sys.stderr, flush=True)
            return
        told, late, problem = measured.revisions, measured.out_of_time, measured.problem
        if detector is not None and not measured.problem:
            try:
                told = detect(detector, kept, Path(folder) / "incidents.jsonl", limit_s=limit_s)
            except DetectorFailed as error:
                told, late, problem = [], isinstance(error, DetectorLate), str(error)
        try:
            score = score_run(measured.truth, told, out_of_time=late)
        except BadIncident as error:
            problem, score = str(error), score_run(measured.truth, [])
    if problem:
        results.problems.append(f"{title}: {problem}")
    results.scores.append(score)
    results.simple.append(score_run(measured.truth, measured.simple, out_of_time=measured.out_of_time))
    results.cpu_s += measured.cpu_s
    results.rank_hours += measured.rank_hours
    print(f"  {title}: {problem or _in_words(score, measured)}", file=sys.stderr, flush=True)


def _in_words(score: RunScore, measured: Measured) -> str:
    words = [
        f"{fault.fault}: {'right' if fault.top_1 else 'among three' if fault.top_3 else 'wrong'}"
        + (f", {fault.said} after {fault.delay_s:.1f} s" if fault.detected else ", not detected")
        for fault in score.faults
    ]
    if score.pages_too_many > 0:
        words.append(f"{score.pages_too_many} pages too many")
    if score.wrong_nodes:
        words.append(f"blames {', '.join(score.wrong_nodes)}")
    return "; ".join(words) or "silent"


def _of_the_bench(results: Results, *, own: bool) -> list[Line]:
    lines = []
    if own and results.rank_hours:
        each = results.cpu_s / results.rank_hours
        share = f"{results.rank_hours:,.1f} rank-hours"
        lines.append(
            Line(name="CPU seconds of the operators per rank-hour", asked="", measured=f"{each:.2f}", share=share)
        )
    count = len(results.problems)
    lines.append(Line(name="runs that could not be scored", asked="0", measured=str(count), share="", ok=not count))
    return lines


def _as_json(
    results: Results, lines: Sequence[Line], summary: str, *, ranks: int, detector: Path | None
) -> Mapping[str, Any]:
    return {
        "schema": SCHEMA,
        "ranks": ranks,
        "detector": str(detector) if detector is not None else "whichrank",
        "lines": [asdict(line) for line in lines],
        "runs": [_finite(asdict(score)) for score in results.scores],
        "simple": [_finite(asdict(score)) for score in results.simple],
        "problems": results.problems,
        "summary": summary,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: what never came is null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and value - value != 0.0 else value


def _print(lines: Sequence[Line], summary: str) -> None:
    table = Table("", "asked", "measured", "k of n", "", box=None, pad_edge=False)
    for line in lines:
        verdict = "" if not line.asked and line.ok else "ok" if line.ok else "SHORT"
        table.add_row(line.name, line.asked or "-", line.measured, line.share, verdict)
    console = Console()
    console.print(table)
    console.print(summary)


def _refuse(line: str) -> int:
    print(f"whichrank: {line}", file=sys.stderr)
    return EXIT_USAGE
