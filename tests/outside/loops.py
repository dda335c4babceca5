"""Loops of other people, with faults that are drawn: is the right rank named, with the right kind, in time?

    python -m tests.outside.loops --seed 7 --results DIR [--minutes 30] [--only WORD]

Each script of ``scripts/`` runs clean and with every kind of fault; rank and moment are drawn by seed. What was run
stays in DIR and is not run again. Exit status 1 where a line falls short.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.outside.runs import HERE, KNOWN_S, RANKS, RIGHT, UNKNOWN_S, Outcome, Planned, problems_of, programs, run
from tests.outside.table import Line, print_table

#: So much later than the formula has it a page may come.
LATE_S = 3.0
STANDING = ("hang", "blocked", "all")


def plan(seed: int) -> list[Planned]:
    """Every script with every kind of fault, in an order that is drawn, so that any part of it is a sample."""
    draw = random.Random(seed)
    planned = []
    for script in sorted((HERE / "scripts").glob("*.py")):
        clean = Planned(name=f"{script.stem}-clean", script=str(script), lasts_s=30.0)
        planned.append(clean)
        for fault in RIGHT:
            known = draw.random() < 0.75
            planned.append(
                Planned(
                    name=f"{script.stem}-{fault}",
                    script=str(script),
                    fault=fault,
                    rank=draw.randrange(RANKS),
                    # All at once: before the same call, else one of them is in it already and waits.
                    after_s=draw.uniform(6.0, 12.0) if known and fault != "all" else 0.0,
                    after_count=(300 if fault == "all" else 100) if known else draw.randrange(3),
                    known=known,
                    lasts_s=20.0 if known else 70.0,
                )
            )
    draw.shuffle(planned)
    return planned


#: Fewer runs say little about a share of 97 %.
LEAST_RUNS = 180


def lines(outcomes: Sequence[Outcome]) -> list[Line]:
    clean = [outcome for outcome in outcomes if not outcome.planned.fault]
    faulty = [outcome for outcome in outcomes if outcome.planned.fault]
    right = [outcome for outcome in faulty if not problems_of(outcome)]
    found = [
        Line.count("loops", len(outcomes), LEAST_RUNS),
        Line.of("clean loops without a page or ticket", sum(not problems_of(o) for o in clean), len(clean), 1.0),
        Line.of("loops with a fault: right kind, rank, one incident", len(right), len(faulty), 0.97),
    ]
    for fault in RIGHT:
        of_kind = [outcome for outcome in faulty if outcome.planned.fault == fault]
        found.append(Line.of(f"of which {fault}", sum(o in right for o in of_kind), len(of_kind), 0.90))
    standing = [o for o in faulty if o.planned.fault in STANDING]
    for formula_s in (KNOWN_S, UNKNOWN_S):
        asked = [o for o in standing if o.planned.formula_s == formula_s]
        late = [o for o in asked if (after := o.said_after_s("page")) is None or after > formula_s + LATE_S]
        text = f"stands still where the formula gives {formula_s:.0f} s: page within {LATE_S:.0f} s of it"
        found.append(Line.of(text, len(asked) - len(late), len(asked), 0.95, _delays(asked)))
    return found


def _delays(outcomes: Iterable[Outcome]) -> str:
    found = sorted(after for outcome in outcomes if (after := outcome.said_after_s("page")) is not None)
    return f"median {found[len(found) // 2]:.1f} s, longest {found[-1]:.1f} s" if found else ""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="begin nothing new after that")
    parser.add_argument("--only", default="", help="of runs whose name holds this word")
    chosen = parser.parse_args(words)
    minutes = chosen.minutes if chosen.minutes is not None else float("inf")
    outcomes = gather(chosen.results, chosen.seed, minutes, only=chosen.only)
    return print_table(lines(outcomes), f"loops, seed {chosen.seed}: {len(outcomes)} of {len(plan(chosen.seed))} runs")


def gather(results: Path, seed: int, minutes: float, *, only: str = "") -> list[Outcome]:
    """What is kept in this folder, and what can be begun within so many minutes."""
    whichrank, torchrun = programs()
    until = time.monotonic() + 60 * minutes
    outcomes = []
    for each in plan(seed):
        folder = results / f"{seed}-{each.name}"
        outcome = kept(folder, each)
        if outcome is None and only in each.name and time.monotonic() < until:
            outcome = run(each, folder, whichrank, torchrun)
            said = "; ".join(problems_of(outcome)) or "ok"
            after = outcome.said_after_s("page")
            print(f"{each.name}: {said}" + (f" ({after:.1f} s)" if after is not None else ""), flush=True)
        if outcome is not None:
            outcomes.append(outcome)
    return outcomes


def kept(folder: Path, planned: Planned) -> Outcome | None:
    """What was measured before of this very plan; of another one, that an older harness drew, it says nothing."""
    try:
        values = json.loads((folder / "outcome.json").read_text())
    except OSError:
        return None
    before = Planned(**values["planned"])
    if replace(before, script=Path(before.script).name) != replace(planned, script=Path(planned.script).name):
        print(f"{folder}: measured with another plan, not counted; remove it", flush=True)
        return None
    return Outcome(**{**values, "planned": planned})


if __name__ == "__main__":
    sys.exit(main())
