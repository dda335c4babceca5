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
from dataclasses import dataclass
from pathlib import Path

from tests.outside.judging import key_of
from tests.outside.kinds import HERE
from tests.outside.outcomes import Outcome, Planned, kept
from tests.outside.record import RECORD, read_record, write_record
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One run, in one line of JSON, so that figures outlive the machine. key: of its plan. early: a ticket or more was
    asked for less than a minute after the pause began. version: of the measured code."""

    seed: int
    name: str
    key: str
    uneven: str
    pause_s: float
    before_s: float
    ended: bool
    paged: bool
    early: bool
    said: str
    version: str

    @property
    def may_page(self) -> bool:
        """Blocked for longer than a minute, and never before: in the one pause, or in the first of two."""
        return self.uneven in BLOCKED and (self.before_s or self.pause_s) >= BLOCKED_LIMIT_S


def facts_of(outcome: Outcome, seed: int) -> Facts:
    values = outcome.planned.environment
    return Facts(
        seed=seed,
        name=outcome.planned.name,
        key=key_of(outcome.planned),
        uneven=values["UNEVEN"],
        pause_s=float(values["PAUSE_S"]),
        before_s=float(values["BEFORE_S"]),
        ended=not outcome.problem and outcome.exit_code == 0,
        paged=outcome.said_severity("page"),
        early=outcome.said_severity("ticket", within_s=60.0),
        said=outcome.problem or ", ".join(f"{d['severity']} {d['kind']}" for d in outcome.revisions),
        version=outcome.version,
    )


def lines(found: Sequence[Facts]) -> list[Line]:
    ended = [facts for facts in found if facts.ended]
    allowed = [facts for facts in ended if facts.may_page]
    judged = [facts for facts in ended if not facts.may_page]
    paged, early = [facts for facts in judged if facts.paged], [facts for facts in judged if facts.early]
    listed = ", ".join(facts.name for facts in allowed if facts.paged)
    return [
        Line.count("sound jobs", len(found), RUNS),
        Line.of("sound jobs end well", len(ended), len(found), 1.0),
        Line.of("no page", len(judged) - len(paged), len(judged), 1.0, ", ".join(facts.name for facts in paged)),
        Line.of(
            "no ticket before a minute", len(judged) - len(early), len(judged), 0.97, ", ".join(f.name for f in early)
        ),
        Line(
            asked="blocked beyond 60 s, never as long before (may be a page)",
            measured=listed or "none paged",
            k_of_n=f"{sum(facts.paged for facts in allowed)} of {len(allowed)}",
            state="no bar" if allowed else "not run",
        ),
    ]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--jobs", type=int, default=1, help="at a time; most of what they do is to sleep")
    parser.add_argument("--minutes", type=float, help="begin nothing new after that")
    parser.add_argument("--only", default="", help="of runs whose name holds this word")
    parser.add_argument("--record", action="store_true", help=f"write the facts to {RECORD.name}/")
    chosen = parser.parse_args(words)
    minutes = chosen.minutes if chosen.minutes is not None else float("inf")
    found = gather(
        chosen.results,
        chosen.seed,
        minutes,
        runs=chosen.runs,
        at_a_time=chosen.jobs,
        only=chosen.only,
        record=chosen.record,
    )
    return print_table(lines(found), f"sound jobs, seed {chosen.seed}: {len(found)} of {chosen.runs} runs")


def gather(
    results: Path,
    seed: int,
    minutes: float,
    *,
    runs: int = RUNS,
    at_a_time: int = 1,
    only: str = "",
    record: bool = False,
) -> list[Facts]:
    """What is kept or recorded of this seed's plan, and what can be begun within so many minutes."""
    whichrank, torchrun = programs()
    launch = Launch(script=SCRIPT, whichrank=whichrank, torchrun=torchrun)
    until = time.monotonic() + 60 * minutes
    file = RECORD / f"sound-{seed}.jsonl"
    recorded = read_record(file, lambda values: Facts(**values))

    def one(each: Planned) -> Facts | None:
        folder = results / f"{seed}-{each.name}"
        if (outcome := kept(folder, each)) is not None:
            return facts_of(outcome, seed)
        if (before := recorded.get((each.name, key_of(each)))) is not None:
            return before
        if only not in each.name or time.monotonic() > until:
            return None
        facts = facts_of(run(each, folder, launch), seed)
        print(f"{each.name}: {facts.said or 'nothing said'}", flush=True)
        return facts

    with ThreadPoolExecutor(at_a_time) as pool:
        found = [facts for facts in pool.map(one, plan(seed, runs)) if facts is not None]
    if record and found:
        write_record(file, found)
    return found


if __name__ == "__main__":
    sys.exit(main())
