"""Many runs: which, in how many processes, what each was worth, and what was measured before and counts again."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ...simulator.scenarios.grounds import HELD_OUT, HELD_OUT_SEED, SEEN, TUNING, ground_of
from ...simulator.scoring.run_score import RunScore, score_run
from ...simulator.scoring.story import BadIncident
from .foreign_detector import DetectorFailed, DetectorLate, detect
from .forked_prefix import run_together, together
from .kept_documents import NotKept, read_scored, write_scored
from .kept_runs import KeptRuns
from .one_run import AskedRun, MeasuredRun, run_apart
from .scored_run import Scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """names: scenarios, each with the seeds seed to seed + runs - 1. part: (k, n), the k-th of n parts of all runs.

    is_plain: faults stand alone, and everybody watches (``one_run.Asked``).
    """

    names: Sequence[str]
    ranks: int
    runs: int
    seed: int
    part: tuple[int, int] = (1, 1)
    is_plain: bool = False

    def __iter__(self) -> Iterator[AskedRun]:
        """Seed by seed, so that what was interrupted has met every scenario about as often."""
        which, parts = self.part
        everything = (
            AskedRun(scenario=name, ranks=self.ranks, seed=seed, is_plain=self.is_plain)
            for seed in range(self.seed, self.seed + self.runs)
            for name in self.names
        )
        return (asked for number, asked in enumerate(everything) if number % parts == which - 1)

    def grounds(self) -> str:
        """In words, which grounds the runs are on."""
        used = {ground_of(asked.scenario, asked.seed).name for asked in self}
        return "; ".join(ground.in_words() for ground in (TUNING, *SEEN, *HELD_OUT) if ground.name in used)

    def about(self) -> str:
        """In words, how many scenarios, at how many ranks, on which seeds."""
        kind = "held out from tuning" if self.seed >= HELD_OUT_SEED else "as used for tuning"
        kind += ", plain" if self.is_plain else ""
        part = "" if self.part == (1, 1) else f", part {self.part[0]} of {self.part[1]}"
        seeds = f"seeds {self.seed} to {self.seed + self.runs - 1}"
        return f"{len(self.names)} scenarios at {self.ranks} ranks, {seeds}, {kind}{part}"


def run_all(
    matrix: Iterable[AskedRun], kept: KeptRuns, *, jobs: int = 1, detector: Path | None = None, limit_s: float = 900.0
) -> list[Scored]:
    """Runs and scores the matrix, ``jobs`` at a time, in processes of their own; results are in its order.

    What a run of this code has been worth before is not run again. limit_s: for each run. Raises OSError: nothing can
    be kept.
    """
    asked = list(matrix)
    lock = threading.Lock()
    scored: dict[AskedRun, Scored] = {}

    def note(each: AskedRun, found: Scored, again: str = "") -> None:
        with lock:
            scored[each] = found
            said = found.problem or _in_words(found.score)
            title = f"{each.scenario}, {each.ranks} ranks, seed {each.seed}"
            took = again or f"[{found.wall_s:.0f} s]"
            print(f"  {len(scored)}/{len(asked)} {title}: {said} {took}", file=sys.stderr, flush=True)

    def run_group(group: Sequence[AskedRun]) -> None:
        for each, found in _score_group(group, detector, limit_s):
            if not found.is_late:
                kept.write(each.name, write_scored(found))
            note(each, found)

    for each in asked:
        if (before := _kept(kept, each)) is not None:
            note(each, before, "(kept)")
    fresh = [each for each in asked if each not in scored]
    groups = together(fresh) if detector is None else [[each] for each in fresh]
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run_group, group) for group in groups]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [scored[each] for each in asked]


def kept_runs(matrix: Matrix, kept: KeptRuns) -> list[Scored]:
    """What was kept of the runs of this matrix."""
    return [found for asked in matrix if (found := _kept(kept, asked)) is not None]


def _kept(kept: KeptRuns, asked: AskedRun) -> Scored | None:
    content = kept.read(asked.name)
    try:
        return None if content is None else read_scored(asked, content)
    except NotKept:
        return None


def _score_group(group: Sequence[AskedRun], detector: Path | None, limit_s: float) -> Iterator[tuple[AskedRun, Scored]]:
    if len(group) == 1:
        yield group[0], score_one(group[0], detector, limit_s)
        return
    for asked, measured in run_together(group, limit_s=limit_s):
        yield asked, _scored(asked, measured)


def score_one(asked: AskedRun, detector: Path | None, limit_s: float) -> Scored:
    """Runs and scores one run, by the operators or the foreign ``detector``. Nothing is kept.

    What goes wrong is a problem of this run, and counts; the others go on.
    """
    with tempfile.TemporaryDirectory(prefix="whichrank-bench-") as folder:
        run_folder = Path(folder) / "run"
        if detector is not None:
            run_folder.mkdir()
            asked = replace(asked, keep=run_folder)
        try:
            measured = run_apart(asked, limit_s=limit_s)
        except ValueError as error:
            return Scored(asked=asked, score=None, simple=None, problem=f"cannot be run: {error}")
        if detector is None or measured.problem:
            return _scored(asked, measured)
        judged = measured
        try:
            told = detect(detector, run_folder, Path(folder) / "incidents.jsonl", limit_s=limit_s)
            judged = replace(measured, revisions=told)
        except DetectorFailed as error:
            late = isinstance(error, DetectorLate)
            judged = replace(measured, revisions=[], out_of_time=late, problem=str(error))
        return _scored(asked, judged, simple_late=False)


def _scored(asked: AskedRun, measured: MeasuredRun, *, simple_late: bool | None = None) -> Scored:
    """simple_late: whether the simple detector was not done, where that is not as of the other."""
    problem = measured.problem
    late = measured.out_of_time if simple_late is None else simple_late
    try:
        score = score_lines(measured, measured.revisions, out_of_time=measured.out_of_time)
    except BadIncident as error:
        problem, score = str(error), score_lines(measured, [])
    last = {json.loads(line).get("id"): line for line in measured.revisions}
    return Scored(
        asked=asked,
        score=score,
        simple=score_lines(measured, measured.simple, out_of_time=late),
        cpu_s=measured.cpu_s,
        wall_s=measured.wall_s,
        rank_hours=measured.rank_hours,
        memory_bytes=measured.memory_bytes,
        problem=problem,
        truth=() if measured.truth is None else tuple(measured.truth.faults),
        said=tuple(last.values()),
        is_late=measured.out_of_time,
    )


def score_lines(measured: MeasuredRun, lines: Sequence[bytes], *, out_of_time: bool = False) -> RunScore:
    """The score of what a detector wrote. lines: revisions of incidents, as JSON.

    out_of_time: it was ended before it was done. Raises BadIncident for what cannot be read.
    """
    assert measured.truth is not None, "what is measured has a truth"
    return score_run(measured.truth.as_json(), list(map(json.loads, lines)), out_of_time=out_of_time)


def _in_words(score: RunScore | None) -> str:
    if score is None:
        return "nothing to score"
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
