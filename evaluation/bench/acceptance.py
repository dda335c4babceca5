"""Everything that the bench must show, from what was measured and kept: what is missing is told as not run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ...simulator.faults.catalogue import CATALOGUE
from ...simulator.scenarios.grounds import HELD_OUT, HELD_OUT_SEED, SEEN, TUNING, ground_of
from ...simulator.scenarios.scenarios import SCENARIOS
from ...simulator.scoring.summary import (
    ASKED_CALIBRATION_ERROR,
    ASKED_SLOW_STEPS,
    ASKED_TOP_1,
    ENOUGH_TOLD,
    MOST_OF_BASELINE,
    MOST_WITH_MORE_PAGES,
    ScoreLine,
    calibration_lines,
    not_run,
    page_lines,
    summarize,
)
from .cost import RANKS, cost_lines, kept_cost
from .false_pages import LOADS, kept_sound_days, sound_lines
from .kept_runs import KeptRuns
from .matrix import Matrix, kept_runs
from .scored_run import Scored

#: Numbers of the catalogue of faults.
_OF_JOBS = frozenset(str(number) for number in range(1, 39))
_KINDS_BETWEEN_JOBS = frozenset(f"J{number}" for number in range(1, 14))
_OF_OBSERVERS = frozenset(f"O{number}" for number in range(1, 7))
#: Ranks of a matrix, and how many runs of each scenario it needs.
MATRICES = ((1024, 5), (16_384, 1))
#: Scenarios of faults between jobs, and how many runs of each.
BETWEEN_JOBS = tuple(
    name for name, scenario in SCENARIOS.items() if any(kind.number[:1] == "J" for kind in scenario.faults)
)
RUNS_BETWEEN_JOBS = 10
FEWEST_HARMLESS, FEWEST_BLIND = 2, 0.30
#: Seeds are looked for up to so many.
_MOST_RUNS = 1000


def must_show(kept: KeptRuns, *, small_ranks: int = 64) -> list[tuple[str, list[ScoreLine]]]:
    """Everything that the bench must show, from what was kept, as (heading, its lines).

    small_ranks: of the matrix that is looked at besides those that are asked for.
    """
    found = {ranks: held_out_runs(kept, ranks) for ranks in (small_ranks, *(ranks for ranks, _ in MATRICES))}
    everything = [run for runs in found.values() for run in runs]
    sections = [
        ("what is simulated", list(_catalogue())),
        (
            "what was run, held out from tuning",
            [*_runs_of(found), *_between_jobs(everything), *_conditions(everything)],
        ),
    ]
    for ranks, runs in found.items():
        if scores := [run.score for run in runs if run.score is not None]:
            simple = [run.simple for run in runs if run.simple is not None]
            sections.append((f"held out, {ranks:,} ranks", summarize(scores, simple)))
        elif ranks != small_ranks:
            sections.append((f"held out, {ranks:,} ranks", list(_nothing_of())))
    sections.append(("held out, all sizes together", [*_pages(everything), *_calibration(everything)]))
    days = [line for load in LOADS.values() for line in sound_lines(load, kept_sound_days(load, kept))]
    costs = {ranks: cost for ranks in RANKS if (cost := kept_cost(ranks, kept)) is not None}
    return [*sections, ("days without a fault", days), ("cost", cost_lines(costs))]


def held_out_runs(kept: KeptRuns, ranks: int) -> list[Scored]:
    """All kept runs with so many ranks on held-out seeds."""
    seeds = [int(name.rpartition("-")[2]) for name in kept.names(f"*-{ranks}-[0-9]*") if name[-1].isdigit()]
    held_out = [seed for seed in seeds if HELD_OUT_SEED <= seed < HELD_OUT_SEED + _MOST_RUNS]
    if not held_out:
        return []
    first = min(held_out)
    return kept_runs(Matrix(names=tuple(SCENARIOS), ranks=ranks, runs=max(held_out) - first + 1, seed=first), kept)


def _catalogue() -> Iterator[ScoreLine]:
    known = {_number(kind.number) for kind in CATALOGUE.values()}
    for name, asked in (
        ("faults within a job", _OF_JOBS),
        ("faults between jobs", _KINDS_BETWEEN_JOBS),
        ("faults of observers", _OF_OBSERVERS),
    ):
        missing = sorted(asked - known, key=lambda number: (number[:1].isalpha(), int(re.sub(r"\D", "", number))))
        yield ScoreLine(
            name=f"{name}: kinds of the catalogue",
            asked=str(len(asked)),
            measured=str(len(asked) - len(missing)),
            share=f"missing: {', '.join(missing)}" if missing else "",
            ok=not missing,
        )


def _number(number: str) -> str:
    """25a, 25p -> 25; J5q -> J5."""
    found = re.match(r"[A-Z]?\d+", number)
    return found[0] if found else number


def _runs_of(found: dict[int, list[Scored]]) -> Iterator[ScoreLine]:
    for ranks, asked in MATRICES:
        runs = Counter(run.asked.scenario for run in found[ranks] if run.score is not None)
        enough = sum(runs[name] >= asked for name in SCENARIOS)
        yield ScoreLine(
            name=f"runs of each scenario at {ranks:,} ranks",
            asked=f">= {asked}",
            measured=f"at least {min(runs[name] for name in SCENARIOS)}",
            share=f"{enough} of {len(SCENARIOS)} scenarios, {sum(runs.values())} runs",
            ok=enough == len(SCENARIOS),
            is_run=bool(runs),
        )


def _between_jobs(runs: Sequence[Scored]) -> Iterator[ScoreLine]:
    counts = Counter(run.asked.scenario for run in runs if run.score is not None)
    enough = sum(counts[name] >= RUNS_BETWEEN_JOBS for name in BETWEEN_JOBS)
    yield ScoreLine(
        name="runs of each scenario between jobs",
        asked=f">= {RUNS_BETWEEN_JOBS}",
        measured=f"at least {min(counts[name] for name in BETWEEN_JOBS)}",
        share=f"{enough} of {len(BETWEEN_JOBS)} scenarios",
        ok=enough == len(BETWEEN_JOBS),
        is_run=any(counts[name] for name in BETWEEN_JOBS),
    )


def _conditions(runs: Sequence[Scored]) -> Iterator[ScoreLine]:
    """Under which the runs stood: anomalies beside the fault, sensors that were missing, grounds, pairs."""
    struck = [run for run in runs if run.truth and any(fault.kinds for fault in run.truth)]
    if not struck:
        yield not_run("harmless anomalies beside each fault", f">= {FEWEST_HARMLESS}")
        yield not_run("runs in which the telling sensor is missing", f">= {FEWEST_BLIND:.0%} of those that have one")
        return
    harmless = [sum(not fault.kinds for fault in run.truth) for run in struck]
    enough = sum(count >= FEWEST_HARMLESS for count in harmless)
    yield ScoreLine(
        name="harmless anomalies beside each fault",
        asked=f">= {FEWEST_HARMLESS}",
        measured=f"at least {min(harmless)}",
        share=f"{enough} of {len(struck)} runs",
        ok=enough == len(struck),
    )
    telling = [run for run in struck if any(fault.told_by for fault in run.truth if fault.kinds)]
    blind = sum(any(fault.blind for fault in run.truth) for run in telling)
    share = blind / len(telling) if telling else 0.0
    yield ScoreLine(
        name="runs in which the telling sensor is missing",
        asked=f">= {FEWEST_BLIND:.0%} of those that have one",
        measured=f"{share:.0%}",
        share=f"{blind} of {len(telling)}",
        ok=share >= FEWEST_BLIND,
    )
    met = Counter(ground_of(run.asked.scenario, run.asked.seed).name for run in runs)
    for ground in HELD_OUT:
        yield ScoreLine(
            name=f"ground {ground.in_words()}", asked="", measured=f"{met[ground.name]} runs", share="held out"
        )
    for ground in (TUNING, *SEEN):
        yield ScoreLine(
            name=f"ground {ground.in_words()}", asked="", measured="0 runs", share=f"seeds < {HELD_OUT_SEED:,}"
        )
    pairs = [run for run in struck if sum(bool(fault.kinds) for fault in run.truth) > 1]
    yield ScoreLine(name="runs with two faults at once", asked="", measured=str(len(pairs)), share="")


def _nothing_of() -> Iterator[ScoreLine]:
    for group in ("intra-job", "inter-job", "observer"):
        yield not_run(f"{group}: top-1", f">= {ASKED_TOP_1[group]:.0%}")
    yield not_run("wrong nodes blamed", "0")
    yield not_run("slow: steps until told, p95", f"<= {ASKED_SLOW_STEPS:g}")
    yield not_run("simple detector: top-1", f"< {MOST_OF_BASELINE:.0%}")


def _pages(runs: Sequence[Scored]) -> Iterator[ScoreLine]:
    lines = list(page_lines([run.score for run in runs if run.score is not None]))
    yield from lines
    if not any(line.asked for line in lines):
        yield not_run("runs with pages beyond one per fault", f"<= {MOST_WITH_MORE_PAGES:.0%}")


def _calibration(runs: Sequence[Scored]) -> Iterator[ScoreLine]:
    """It is asked over incidents, of whatever size their jobs are: one size alone may have too few."""
    lines = list(calibration_lines([run.score for run in runs if run.score is not None]))
    yield from lines
    if not any(line.asked for line in lines):
        yield not_run("calibration error", f"<= {ASKED_CALIBRATION_ERROR:g} over >= {ENOUGH_TOLD} incidents")
