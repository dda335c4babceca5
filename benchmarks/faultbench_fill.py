"""All that ``make faultbench`` asks for and this code has not measured yet, by one command, on however many cores.

``python -m benchmarks.faultbench_fill DIR [--jobs N] [--plan] [--only PART]``. It takes up what the record has of this
code, and runs the rest, the cheapest part first. Each result is kept in DIR as soon as it is there, so that it may be
ended at any time and begun again. ``--plan`` says what is missing and about how long it takes, and runs nothing.
Exit status 1 while something is missing.

What ``make tie`` measures is no part of it: that needs real jobs, and the machine for itself.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import psutil
from rich.console import Console
from rich.table import Table

from whichrank.evaluation.bench.acceptance import BETWEEN_JOBS, MATRICES, RUNS_BETWEEN_JOBS, held_out_runs
from whichrank.evaluation.bench.accounting_run import accounting_lines
from whichrank.evaluation.bench.cost import RANKS, kept_cost, measure_cost
from whichrank.evaluation.bench.false_pages import LOADS, Load, kept_sound_days, kept_sound_seeds, watch_sound_days
from whichrank.evaluation.bench.kept_runs import KeptRuns, code_version
from whichrank.evaluation.bench.matrix import run_all
from whichrank.evaluation.bench.one_run import AskedRun, most_memory_bytes
from whichrank.evaluation.bench.result_cache import kept_lines, measured_lines
from whichrank.evaluation.bench.scored_run import Scored
from whichrank.evaluation.bench.suites import ACCOUNTING_HOURS, ACCOUNTING_SEEDS
from whichrank.simulator.scenarios.grounds import HELD_OUT_SEED
from whichrank.simulator.scenarios.scenarios import SCENARIOS

from .faultbench_record import BadRecord, open_results, record_of, unpack

SMALL_RANKS = 64
#: Where nothing was measured yet. What lower seeds gave has been read, and errors were mended by it.
FIRST_SEED = HELD_OUT_SEED + 705
#: Of a run, or of a day: one at 16,384 ranks took 43 minutes on half of a busy machine.
_LIMIT_S = 7200.0
_MEMORY_SHARE = 0.8
#: In a file or a pipe.
_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """asked, there: how many results. took_s: of one process for one of them; 0: nobody has measured one.

    memory_bytes: that one may take; 0: it has to have the machine for itself.
    """

    name: str
    what: str
    asked: int
    there: int
    took_s: float
    memory_bytes: int
    run: Callable[[int], object]

    @property
    def missing(self) -> int:
        return max(0, self.asked - self.there)

    def jobs(self, most: int) -> int:
        """How many of them fit into this machine at a time, ``most`` at most."""
        if not self.memory_bytes:
            return 1
        room = int(_MEMORY_SHARE * psutil.virtual_memory().total) // self.memory_bytes
        return max(1, min(most, room, self.missing))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faultbench_fill", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("results", type=Path, help="folder of results, as for whichrank bench")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="so many runs at a time, if memory allows"
    )
    parser.add_argument("--plan", action="store_true", help="only say what is missing")
    parser.add_argument("--only", action="append", metavar="PART", help="by its name in the plan, again for more")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least one is needed")
    version = code_version()
    kept = open_results(parser, options.results, version)
    try:
        unpack(kept, record_of(version))
    except BadRecord as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename or options.results}: {error.strerror or error}")
    names = [part.name for part in parts_of(kept)]
    if unknown := sorted({*(options.only or ())} - {*names}):
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(names)}")
    chosen = [name for name in names if not options.only or name in options.only]
    print_plan(parts_of(kept), options.jobs)
    if not options.plan:
        for name in chosen:
            fill(next(part for part in parts_of(kept) if part.name == name), options.jobs)
        print_plan(parts_of(kept), options.jobs)
    left = [part.name for part in parts_of(kept) if part.missing]
    print(f"code {version}: {'missing: ' + ', '.join(left) if left else 'everything is measured'}")
    return int(bool(left))


def parts_of(kept: KeptRuns) -> list[Part]:
    """From the cheapest to the dearest, after what must not be disturbed."""
    small = matrix_part("between-jobs", kept, BETWEEN_JOBS, SMALL_RANKS, RUNS_BETWEEN_JOBS)
    large = [matrix_part(f"{ranks}-ranks", kept, tuple(SCENARIOS), ranks, runs) for ranks, runs in MATRICES]
    days = [_days_part(load, kept) for load in LOADS.values()]
    return [_cost_part(kept), _accounting_part(kept), small, *large, *days]


def matrix_part(name: str, kept: KeptRuns, scenarios: Sequence[str], ranks: int, runs: int) -> Part:
    """So many runs of each scenario, whatever their seeds."""
    before = held_out_runs(kept, ranks)
    wanted = list(missing_runs(before, scenarios, ranks, runs))
    took_s = [run.wall_s for run in before if run.wall_s]
    return Part(
        name=name,
        what=f"{len(scenarios)} scenarios x {runs} at {ranks:,} ranks",
        asked=len(scenarios) * runs,
        there=len(scenarios) * runs - len(wanted),
        took_s=fmean(took_s) if took_s else 0.0,
        memory_bytes=most_memory_bytes(ranks),
        run=lambda jobs: run_all(wanted, kept, jobs=jobs, limit_s=_LIMIT_S),
    )


def missing_runs(before: Iterable[Scored], scenarios: Sequence[str], ranks: int, runs: int) -> Iterator[AskedRun]:
    """Seed by seed, from the first one that was used on: runs of a seed share their beginning."""
    known = {(run.asked.scenario, run.asked.seed) for run in before if run.score is not None}
    counts = Counter(scenario for scenario, _ in known)
    lacking = {name: runs - counts[name] for name in scenarios}
    seed = min((each for _, each in known), default=FIRST_SEED)
    while any(count > 0 for count in lacking.values()):
        for name in scenarios:
            if lacking[name] > 0 and (name, seed) not in known:
                lacking[name] -= 1
                yield AskedRun(scenario=name, ranks=ranks, seed=seed)
        seed += 1


def _cost_part(kept: KeptRuns) -> Part:
    return Part(
        name="cost",
        what="what operators cost, alone on the machine",
        asked=len(RANKS),
        there=sum(kept_cost(ranks, kept) is not None for ranks in RANKS),
        took_s=0.0,
        memory_bytes=0,
        run=lambda _: [measure_cost(ranks, kept) for ranks in RANKS],
    )


def _accounting_part(kept: KeptRuns) -> Part:
    return Part(
        name="accounting",
        what="seconds against the truth",
        asked=1,
        there=int(bool(kept_lines(kept, "accounting"))),
        took_s=0.0,
        memory_bytes=0,
        run=lambda _: measured_lines(kept, "accounting", lambda: accounting_lines(ACCOUNTING_SEEDS, ACCOUNTING_HOURS)),
    )


def _days_part(load: Load, kept: KeptRuns) -> Part:
    before = [sound for sound in kept_sound_days(load, kept) if not sound.problem]
    first = min(kept_sound_seeds(load, kept), default=FIRST_SEED) - HELD_OUT_SEED
    asked = math.ceil(load.asked_gpu_days / load.chunk_gpu_days)
    return Part(
        name=f"days-{load.mode.name}",
        what=f"{load.asked_gpu_days:,.0f} GPU-days without a fault, {load.mode.name} load",
        asked=asked,
        there=len(before),
        took_s=fmean(sound.wall_s for sound in before) if before else 0.0,
        memory_bytes=most_memory_bytes(load.ranks),
        run=lambda jobs: watch_sound_days(
            load, kept, gpu_days=load.asked_gpu_days, seed=first, jobs=jobs, limit_s=_LIMIT_S
        ),
    )


def fill(part: Part, most_jobs: int) -> None:
    """Runs what is missing. What fails is told beside it, and stays missing."""
    if not part.missing:
        return
    jobs = part.jobs(most_jobs)
    print(f"{part.name}: {part.missing} of {part.asked}, {jobs} at a time", file=sys.stderr, flush=True)
    try:
        part.run(jobs)
    except (OSError, RuntimeError) as error:
        print(f"{part.name}: {error}", file=sys.stderr, flush=True)


def print_plan(parts: Sequence[Part], most_jobs: int) -> None:
    table = Table("part", "what", "asked", "there", "missing", "about", box=None, pad_edge=False)
    for part in parts:
        table.add_row(
            part.name, part.what, str(part.asked), str(part.there), str(part.missing), _about(part, most_jobs)
        )
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def _about(part: Part, most_jobs: int) -> str:
    """From what such results took before, on whatever machine that was."""
    if not part.missing:
        return "-"
    if not part.took_s:
        return "not known"
    jobs = part.jobs(most_jobs)
    return f"{part.missing * part.took_s / jobs / 3600.0:.1f} h, {jobs} at a time"


if __name__ == "__main__":
    sys.exit(main())
