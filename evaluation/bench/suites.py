"""What the bench measures besides its matrix of faults: days without one, cost, the accounting of seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ...simulator.scoring.summary import ScoreLine
from .accounting_run import accounting_lines
from .bench_report import EXIT_USAGE, exit_code, in_short, print_lines
from .cost import cost_lines, measure_cost
from .false_pages import LOADS, sound_lines, watch_sound_days
from .hang_cost import hang_line
from .kept_runs import KeptRuns, code_version
from .result_cache import measured_lines

#: Of the accounting: runs of so many hours each, 24 together at least.
ACCOUNTING_SEEDS, ACCOUNTING_HOURS = range(1, 4), 9.0


def sound_days(load: str, *, gpu_days: float, seed: int, jobs: int, results: Path | None, limit_s: float) -> int:
    """Measures and prints false pages over days without a fault. The exit code. load: of ``LOADS``.

    jobs: so many at a time; limit_s: for each run.
    """
    if load not in LOADS:
        print(f"whichrank: --sound {load}: there are {', '.join(LOADS)}", file=sys.stderr)
        return EXIT_USAGE

    def measure(kept: KeptRuns) -> list[ScoreLine]:
        found = watch_sound_days(LOADS[load], kept, gpu_days=gpu_days, seed=seed, jobs=jobs, limit_s=limit_s)
        return sound_lines(LOADS[load], found)

    return _measured(measure, results)


def cost(ranks: Sequence[int], *, results: Path | None) -> int:
    """Measures and prints what judging costs at so many ranks each.

    The exit code; 2 where nothing can be kept or the judging process ends.
    """

    def measure(kept: KeptRuns) -> list[ScoreLine]:
        lines = cost_lines({each: measure_cost(each, kept) for each in ranks})
        return [*lines, *measured_lines(kept, "hang-cost", lambda: [hang_line()])]

    return _measured(measure, results)


def accounting(*, results: Path | None) -> int:
    """Measures and prints whether the accounting of seconds agrees with the simulator's ledger. The exit code."""

    def measure(kept: KeptRuns) -> list[ScoreLine]:
        return measured_lines(kept, "accounting", lambda: accounting_lines(ACCOUNTING_SEEDS, ACCOUNTING_HOURS))

    return _measured(measure, results)


def _measured(measure: Callable[[KeptRuns], list[ScoreLine]], results: Path | None) -> int:
    try:
        lines = measure(KeptRuns(results, code_version()))
    except (OSError, RuntimeError) as error:
        print(f"whichrank: {error}", file=sys.stderr)
        return EXIT_USAGE
    print_lines(lines)
    print(in_short(lines))
    return exit_code(lines)
