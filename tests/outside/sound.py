"""Sound jobs that are uneven: rank 0 uploads, samples, evaluates, saves, and nobody is to be called for it.

    python -m tests.outside.sound --seed 7 --results DIR [--jobs 3] [--minutes 30] [--only WORD]

What rank 0 does, for how long, whether it has done so before and whether it moves meanwhile is drawn by seed; the
script is ``scripts_sound/uneven.py``. What has been run stays in DIR and is not run again. Exit status 1 where a line
falls short.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.outside.kinds import HERE
from tests.outside.outcomes import Outcome, Planned, kept
from tests.outside.runs import Launch, programs, run
from tests.outside.table import Line, print_table

SCRIPT = HERE / "scripts_sound" / "uneven.py"
#: What rank 0 does while the others wait: those that move, and those that stand in one read or write.
MOVING = ("upload", "sample", "evaluate", "save", "log", "compress", "compile", "tail", "barrier", "collect")
BLOCKED = ("blocked_upload", "blocked_save", "blocked_log")
#: Uneven by design, without one long pause.
STEADY = ("straggler", "epochs", "neighbours")
RUNS = 120
SHORTEST_S, LONGEST_S, BLOCKED_LIMIT_S = 4.0, 240.0, 60.0


def plan(seed: int, runs: int) -> list[Planned]:
    draw = random.Random(seed)
    planned = []
    for number in range(runs):
        kind = draw.choice((*MOVING, *MOVING, *BLOCKED, *BLOCKED, *BLOCKED, *STEADY))
        pause_s = math.exp(draw.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        shorter = draw.uniform(2.0, 8.0) if draw.random() < 1 / 3 else 0.0
        before_s = pause_s / shorter if shorter else 0.0
        pause_s = 0.0 if kind in STEADY else pause_s
        planned.append(
            Planned(
                name=f"{number:03d}-{kind}-{pause_s:.0f}s"
                + (f"-after-{before_s:.0f}s" if before_s and pause_s else ""),
                script=str(SCRIPT),
                turns=1,
                lasts_s=pause_s + before_s + 90.0,
                environment={"UNEVEN": kind, "PAUSE_S": f"{pause_s:.2f}", "BEFORE_S": f"{before_s:.2f}"},
            )
        )
    return planned


def lines(outcomes: Sequence[Outcome]) -> list[Line]:
    ended = [outcome for outcome in outcomes if not outcome.problem and outcome.exit_code == 0]
    allowed = [outcome for outcome in ended if _may_page(outcome)]
    judged = [outcome for outcome in ended if outcome not in allowed]
    paged = [o for o in judged if o.said_severity("page")]
    early = [o for o in judged if o.said_severity("ticket", within_s=60.0)]
    listed = ", ".join(o.planned.name for o in allowed if o.said_severity("page"))
    return [
        Line.count("sound jobs", len(outcomes), RUNS),
        Line.of("sound jobs end well", len(ended), len(outcomes), 1.0),
        Line.of("no page", len(judged) - len(paged), len(judged), 1.0, ", ".join(o.planned.name for o in paged)),
        Line.of("no ticket before a minute", len(judged) - len(early), len(judged), 0.97),
        Line(
            asked="blocked beyond 60 s, never as long before (may be a page)",
            measured=listed or "none paged",
            k_of_n=f"{sum(o.said_severity('page') for o in allowed)} of {len(allowed)}",
            state="no bar" if allowed else "not run",
        ),
    ]


def _may_page(outcome: Outcome) -> bool:
    values = outcome.planned.environment
    return values["UNEVEN"] in BLOCKED and float(values["PAUSE_S"]) >= BLOCKED_LIMIT_S and not float(values["BEFORE_S"])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--jobs", type=int, default=1, help="at a time; most of what they do is to sleep")
    parser.add_argument("--minutes", type=float, help="begin nothing new after that")
    parser.add_argument("--only", default="", help="of runs whose name holds this word")
    chosen = parser.parse_args(words)
    minutes = chosen.minutes if chosen.minutes is not None else float("inf")
    outcomes = gather(chosen.results, chosen.seed, minutes, runs=chosen.runs, at_a_time=chosen.jobs, only=chosen.only)
    return print_table(lines(outcomes), f"sound jobs, seed {chosen.seed}: {len(outcomes)} of {chosen.runs} runs")


def gather(
    results: Path, seed: int, minutes: float, *, runs: int = RUNS, at_a_time: int = 1, only: str = ""
) -> list[Outcome]:
    """What is kept in this folder, and what can be begun within so many minutes."""
    whichrank, torchrun = programs()
    launch = Launch(script=SCRIPT, whichrank=whichrank, torchrun=torchrun)
    until = time.monotonic() + 60 * minutes

    def one(each: Planned) -> Outcome | None:
        folder = results / f"{seed}-{each.name}"
        outcome = kept(folder, each)
        if outcome is None and only in each.name and time.monotonic() < until:
            outcome = run(each, folder, launch)
            said = ", ".join(f"{d['severity']} {d['kind']}" for d in outcome.revisions) or "nothing said"
            print(f"{each.name}: {outcome.problem or said}", flush=True)
        return outcome

    with ThreadPoolExecutor(at_a_time) as pool:
        return [outcome for outcome in pool.map(one, plan(seed, runs)) if outcome is not None]


if __name__ == "__main__":
    sys.exit(main())
