"""``whichrank bench``: every scenario so many times, what was right of it, and whether that is enough."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...simulator.scenarios.grounds import HELD_OUT_SEED
from ...simulator.scenarios.scenarios import SCENARIOS
from ...simulator.scoring.summary import ScoreLine, summarize
from .bench_report import EXIT_USAGE, exit_code, in_short, print_lines
from .kept_documents import score_as_json
from .kept_runs import KeptRuns, code_version
from .matrix import Matrix, run_all
from .scored_run import Scored

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be run. results: the folder where what was measured is kept; None: nowhere.

    held_out: on seeds, meshes and topologies that were not used for tuning. jobs: so many runs at a time. plain: no
    harmless anomalies beside faults, and no collector fails to watch.
    """

    ranks: int
    runs: int
    seed: int
    only: Sequence[str] = ()
    detector: Path | None = None
    limit_s: float = 900.0
    jobs: int = 1
    results: Path | None = None
    part: str = "1/1"
    held_out: bool = False
    plain: bool = False

    def matrix(self) -> Matrix:
        """The runs that are asked for. Raises ValueError, in a line, for what there is not."""
        names = tuple(dict.fromkeys(self.only or SCENARIOS))
        if unknown := [name for name in names if name not in SCENARIOS]:
            raise ValueError(f"there is no scenario {unknown[0]!r}; whichrank simulate --list shows all")
        if self.seed + self.runs > HELD_OUT_SEED:
            raise ValueError(f"seeds are below {HELD_OUT_SEED}")
        seed = self.seed + (HELD_OUT_SEED if self.held_out else 0)
        part = _part(self.part)
        return Matrix(names=names, ranks=self.ranks, runs=self.runs, seed=seed, part=part, is_plain=self.plain)


def bench(wanted: Wanted, *, as_json: bool = False) -> int:
    """Runs what is wanted, and prints its lines.

    The exit code: 0; 1 where something is SHORT; 2 for what cannot be run.
    """
    detector = wanted.detector
    if detector is not None and not detector.is_file():
        return _refuse(f"{detector}: no such file")
    try:
        matrix = wanted.matrix()
        kept = KeptRuns(wanted.results, code_version(detector))
        scored = run_all(matrix, kept, jobs=wanted.jobs, detector=detector, limit_s=wanted.limit_s)
    except ValueError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename or wanted.results}: {error.strerror or error}")
    lines = matrix_lines(scored, own=detector is None)
    summary = f"{matrix.about()}: {in_short(lines)}"
    if as_json:
        print(_as_json(scored, lines, summary, wanted))
    else:
        print_lines(lines)
        print(f"grounds: {matrix.grounds()}")
        print(summary)
    return exit_code(lines)


def matrix_lines(runs: Sequence[Scored], *, own: bool = True) -> list[ScoreLine]:
    """The lines on what was right of these runs. own: the operators were run, and no foreign detector."""
    scores = [run.score for run in runs if run.score is not None]
    simple = [run.simple for run in runs if run.simple is not None]
    return [*summarize(scores, simple), *_of_the_bench(runs, own=own)]


def _of_the_bench(runs: Sequence[Scored], *, own: bool) -> list[ScoreLine]:
    lines = []
    rank_hours, cpu_s = (math.fsum(getattr(run, name) for run in runs) for name in ("rank_hours", "cpu_s"))
    if own and rank_hours:
        lines.append(
            ScoreLine(
                name="CPU seconds of the operators per rank-hour",
                asked="",
                measured=f"{cpu_s / rank_hours:.2f}",
                share=f"{rank_hours:,.1f} rank-hours",
            )
        )
    if memory := max((run.memory_bytes for run in runs), default=0):
        most = max(run.asked.most_memory_bytes for run in runs)
        told = f"{memory / 2**20:,.0f} MiB"
        lines.append(ScoreLine(name="most memory of a run", asked=f"<= {most >> 20:,} MiB", measured=told, share=""))
    count = sum(bool(run.problem) for run in runs)
    lines.append(
        ScoreLine(name="runs that could not be scored", asked="0", measured=str(count), share="", ok=not count)
    )
    return lines


def _as_json(runs: Sequence[Scored], lines: Sequence[ScoreLine], summary: str, wanted: Wanted) -> str:
    problems = [f"{run.asked.scenario}, seed {run.asked.seed}: {run.problem}" for run in runs if run.problem]
    told = {
        "schema": SCHEMA,
        "ranks": wanted.ranks,
        "detector": str(wanted.detector) if wanted.detector is not None else "whichrank",
        "lines": [asdict(line) for line in lines],
        "runs": [score_as_json(run.score) for run in runs if run.score is not None],
        "simple": [score_as_json(run.simple) for run in runs if run.simple is not None],
        "problems": problems,
        "summary": summary,
    }
    return json.dumps(told, ensure_ascii=False)


def _part(words: str) -> tuple[int, int]:
    """Raises ValueError for what is not K/N with 1 <= K <= N."""
    which, _, parts = words.partition("/")
    if which.isdecimal() and parts.isdecimal() and 1 <= int(which) <= int(parts):
        return int(which), int(parts)
    raise ValueError(f"--part {words}: K/N is asked for, as 1/4")


def _refuse(line: str) -> int:
    print(f"whichrank: {line}", file=sys.stderr)
    return EXIT_USAGE
