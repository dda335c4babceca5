"""Slow ranks: small slow-downs of jobs that are drawn, beside the soonest at which anybody could tell.

    python -m tests.outside.slow --seed 7 --results DIR [--simulated | --real] [--runs N] [--jobs 4] [--minutes M]

One rank, or all, become 15 to 40 % slower for the rest of the job, or nobody does. On the simulated clock the job
operator is fed what an agent would send of drawn times; real jobs are torchrun jobs of three ranks that sleep for drawn
times under ``whichrank run``. What was run stays in DIR and is not run again: a new state of the code wants a new DIR.
Runs in which a test that knows everything (``slow_bound``) has not decided by the end are left out, and counted.
Exit status 1 where a line falls short.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.outside.kinds import HERE
from tests.outside.outcomes import Outcome, Planned, kept
from tests.outside.runs import Launch, programs, run
from tests.outside.slow_bound import FALSE_ALARM_STEPS, Noise, steps_to_decide
from tests.outside.slow_draws import CARRIED_ON, LONG_MEAN, LONG_SHARE, WHOLE_S, Drawn, draw, own_seconds
from tests.outside.slow_feed import Said, said_of
from tests.outside.table import Line, print_table

SCRIPT = HERE / "scripts_slow" / "drawn.py"
#: Runs that are asked for: slow and healthy, on the simulated clock and real.
SIMULATED, REAL = (400, 1000), (80, 40)
#: Within so many times the bound's steps, or so many steps where that is more.
TIMES_BOUND, FEW_STEPS = 1.5, 10
MOST_UNDECIDED = 0.25
RIGHT_KIND = {"one": "rank_slow", "all": "slow_together"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """bound: slow steps after which the test that knows everything decides; None never. flaw: of the run itself."""

    drawn: Drawn
    bound: int | None
    said: Sequence[Said]
    flaw: str = ""

    @property
    def allowed(self) -> float:
        return max(FEW_STEPS, TIMES_BOUND * (self.bound or 0))

    @property
    def named_after(self) -> int | None:
        """Slow steps until it was rightly told."""
        return min((s.at_step - self.drawn.first for s in self._right()), default=None)

    @property
    def named_after_sent(self) -> int | None:
        """Of these, only such as had been sent by then: an agent sends four times a second."""
        return min((s.sent - self.drawn.first for s in self._right()), default=None)

    def _right(self) -> Iterator[Said]:
        drawn = self.drawn
        wanted = (drawn.rank,) if drawn.who == "one" else ()
        return (
            s for s in self.said if s.kind == RIGHT_KIND[drawn.who] and s.ranks == wanted and s.at_step >= drawn.first
        )


def noise_of(drawn: Drawn) -> Noise:
    fresh = drawn.jitter * (1.0 - CARRIED_ON**2) ** 0.5
    return Noise(fresh=fresh, carried_on=CARRIED_ON, long_share=LONG_SHARE, long_mean=LONG_MEAN)


def bound_of(
    drawn: Drawn, own_s: np.ndarray, noise: Noise, usual_s: float, *, false_alarm_steps: float = FALSE_ALARM_STEPS
) -> int | None:
    slow = slice(None) if drawn.who == "all" else slice(drawn.rank, drawn.rank + 1)
    if not drawn.who:
        return None
    logarithms = np.log(own_s[:, slow] / usual_s)
    return steps_to_decide(logarithms, drawn.first, drawn.shift, noise, false_alarm_steps=false_alarm_steps)


def simulate(drawn: Drawn) -> Measured:
    own_s = own_seconds(drawn)
    bound = bound_of(drawn, own_s, noise_of(drawn), drawn.step_s)
    return Measured(drawn=drawn, bound=bound, said=said_of(own_s))


def run_really(drawn: Drawn, folder: Path) -> Measured | None:
    """Or what is kept of it in this folder. None: it was run by an older harness."""
    times = folder.with_name(f"{folder.name}-times")
    environment = {"SLOW_FOLDER": str(times), **({"SLOW_DDP": "1"} if drawn.seed % 2 else {})}
    planned = Planned(
        name=drawn.name, script=str(SCRIPT), turns=1, lasts_s=2.0 * WHOLE_S + 60.0, environment=environment
    )
    outcome = kept(folder, planned)
    if outcome is None:
        times.mkdir(parents=True, exist_ok=True)
        np.save(times / "own.npy", own_seconds(drawn))
        whichrank, torchrun = programs()
        outcome = run(planned, folder, Launch(script=SCRIPT, whichrank=whichrank, torchrun=torchrun))
    return of_outcome(drawn, times, outcome)


def of_outcome(drawn: Drawn, times: Path, outcome: Outcome) -> Measured:
    """times: the folder where ranks wrote theirs. The bound knows the median and spread of what the ranks themselves
    measured before anybody was slow."""
    files = [times / f"own-{rank}.txt" for rank in range(drawn.ranks)]
    if outcome.problem or outcome.exit_code != 0 or not all(file.exists() for file in files):
        flaw = outcome.problem or f"exit code {outcome.exit_code}"
        return Measured(drawn=drawn, bound=None, said=[], flaw=flaw)
    ends_s, own_s = np.stack([np.loadtxt(file) for file in files], axis=1).transpose(2, 0, 1)
    before = np.log(own_s[FEW_STEPS : drawn.first])
    usual = float(np.median(before))
    spread = 1.4826 * float(np.median(np.abs(before - np.median(before, axis=0))))
    drawn_noise = noise_of(drawn)
    noise = Noise(
        fresh=max(spread, 0.01) * (1.0 - CARRIED_ON**2) ** 0.5,
        carried_on=CARRIED_ON,
        long_share=drawn_noise.long_share,
        long_mean=drawn_noise.long_mean,
    )
    bound = bound_of(drawn, own_s, noise, float(np.exp(usual)))
    return Measured(drawn=drawn, bound=bound, said=list(_said_in(outcome, ends_s.max(axis=1))))


def _said_in(outcome: Outcome, ends_s: np.ndarray) -> Iterator[Said]:
    begun: dict[str, list[dict[str, Any]]] = {}
    for document in outcome.revisions:
        if document["bucket"] != "planned" and document["severity"] != "info":
            begun.setdefault(str(document["id"]), []).append(document)
    for documents in begun.values():
        first = documents[0]
        resolved_s = [float(d["times"]["resolved"]) for d in documents if d["times"].get("resolved")]
        yield Said(
            kind=str(first["kind"]),
            ranks=tuple(int(each["rank"]) for each in first["suspects"] if each.get("rank") is not None),
            at_step=int(np.searchsorted(ends_s, float(first["seen"]), side="right")),
            resolved=any(at < ends_s[-1] for at in resolved_s),
        )


def lines(measured: Sequence[Measured], asked: tuple[int, int], where: str) -> list[Line]:
    slow = [m for m in measured if m.drawn.who and not m.flaw]
    sound = [m for m in measured if not m.drawn.who and not m.flaw]
    judged = [m for m in slow if m.bound is not None]
    found = [
        Line.count(f"{where}, runs with a slow-down", len(slow), asked[0]),
        Line.count(f"{where}, healthy runs", len(sound), asked[1]),
        Line.of("of which the bound has decided", len(judged), len(slow), 1.0 - MOST_UNDECIDED),
    ]
    for who, words in (("one", "one rank slower"), ("all", "all ranks slower")):
        of_who = [m for m in judged if m.drawn.who == who]
        soon = [m for m in of_who if m.named_after is not None and m.named_after <= m.allowed]
        text = f"{words}: told within {TIMES_BOUND} x the bound or {FEW_STEPS} steps"
        found.append(Line.of(text, len(soon), len(of_who), 0.95, _delays(of_who)))
        if any(s.sent for m in of_who for s in m.said):
            by_sent = [m for m in of_who if m.named_after_sent is not None and m.named_after_sent <= m.allowed]
            count = f"{len(by_sent)} of {len(of_who)}"
            measured_share = f"{len(by_sent) / len(of_who):.1%}"
            found.append(
                Line(asked="  by the steps that had been sent", measured=measured_share, k_of_n=count, state="no bar")
            )
        told = [m for m in of_who if m.named_after is not None]
        found.append(Line.of(f"{words}: told at all", len(told), len(of_who), 0.95))
        for share in sorted({m.drawn.share for m in of_who}):
            of_share = [m for m in of_who if m.drawn.share == share]
            near = sum(m in soon for m in of_share)
            count = f"{near} of {len(of_share)}"
            found.append(
                Line(asked=f"  of which {share:.0%}", measured=_delays(of_share), k_of_n=count, state="no bar")
            )
    kept_open = [m for m in slow if not any(s.resolved for s in m.said)]
    wrong = [m for m in slow if any(set(s.ranks) - _guilty(m.drawn) for s in m.said)]
    once = [m for m in slow if len(m.said) <= 1]
    named = [m for m in sound if any(s.ranks for s in m.said)]
    told = [m for m in sound if m.said]
    return [
        *found,
        Line.of("never resolved while it lasts", len(kept_open), len(slow), 1.0),
        Line.of("no more than one incident", len(once), len(slow), 0.98),
        Line.of("nobody else named", len(slow) - len(wrong), len(slow), 1.0, _names(wrong)),
        Line.of("healthy: no rank named", len(sound) - len(named), len(sound), 1.0, _names(named)),
        Line.of("healthy: nothing told", len(sound) - len(told), len(sound), 1.0, _names(told)),
    ]


def _guilty(drawn: Drawn) -> set[int]:
    return {drawn.rank} if drawn.who == "one" else set()


def _names(measured: Sequence[Measured]) -> str:
    return " ".join(m.drawn.name for m in measured[:6])


def _delays(measured: Sequence[Measured]) -> str:
    """Slow steps, as multiples of what is allowed: how near the others are."""
    shares = sorted((m.named_after or 1e9) / m.allowed for m in measured)
    if not shares:
        return "-"
    middle, late = shares[len(shares) // 2], shares[min(len(shares) - 1, int(0.95 * len(shares)))]
    words = [f"{value:.1f}" if value < 1e6 else "never" for value in (middle, late)]
    return f"p50 {words[0]}, p95 {words[1]} of the steps allowed"


def plan(seed: int, runs: tuple[int, int], *, is_real: bool) -> list[Drawn]:
    """Healthy ones lie evenly among the slow ones, so that any part of it is a sample."""
    slow = [(n / runs[0], draw(seed, n, healthy=False, is_real=is_real)) for n in range(runs[0])]
    sound = [(n / runs[1], draw(seed, n, healthy=True, is_real=is_real)) for n in range(runs[1])]
    return [drawn for _, drawn in sorted(slow + sound, key=lambda each: (each[0], each[1].name))]


def gather_simulated(results: Path, planned: Sequence[Drawn], jobs: int, until_s: float) -> list[Measured]:
    """One line of JSON a run in DIR/simulated.jsonl."""
    results.mkdir(parents=True, exist_ok=True)
    file = results / "simulated.jsonl"
    known = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        values = json.loads(line)
        drawn = Drawn(**values["drawn"])
        known[drawn] = Measured(drawn=drawn, bound=values["bound"], said=[_said(each) for each in values["said"]])
    left = [drawn for drawn in planned if drawn not in known]
    with ProcessPoolExecutor(jobs) as pool, file.open("a") as output:
        for begin in range(0, len(left), 16 * jobs):
            if time.monotonic() > until_s:
                break
            for measured in pool.map(simulate, left[begin : begin + 16 * jobs], chunksize=4):
                known[measured.drawn] = measured
                output.write(json.dumps(asdict(measured)) + "\n")
    return [known[drawn] for drawn in planned if drawn in known]


def _said(values: dict[str, object]) -> Said:
    return Said(**{**values, "ranks": tuple(values["ranks"])})  # type: ignore[arg-type]


def gather_real(results: Path, planned: Sequence[Drawn], jobs: int, until_s: float) -> list[Measured]:
    def one(drawn: Drawn) -> Measured | None:
        folder = results / f"real-{drawn.seed}-{drawn.name}"
        if not (folder / "outcome.json").exists() and time.monotonic() > until_s:
            return None
        measured = run_really(drawn, folder.absolute())
        if measured is not None:
            told = "; ".join(f"{s.kind} {list(s.ranks)} after {s.at_step - drawn.first}" for s in measured.said)
            print(f"{drawn.name}: bound {measured.bound}, {measured.flaw or told or 'nothing said'}", flush=True)
        return measured

    with ThreadPoolExecutor(jobs) as pool:
        return [measured for measured in pool.map(one, planned) if measured is not None]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--simulated", action="store_true", help="only these")
    parser.add_argument("--real", action="store_true", help="only these")
    parser.add_argument("--runs", type=float, default=1.0, help="share of the runs that are asked for")
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--minutes", type=float, help="begin nothing new after that")
    chosen = parser.parse_args(words)
    minutes = chosen.minutes if chosen.minutes is not None else float("inf")
    both = chosen.real == chosen.simulated
    found: list[Line] = []
    if both or chosen.simulated:
        found += measure(chosen.results, chosen.seed, minutes, is_real=False, share=chosen.runs, jobs=chosen.jobs)
    if both or chosen.real:
        found += measure(chosen.results, chosen.seed, minutes, is_real=True, share=chosen.runs, jobs=chosen.jobs)
    return print_table(found, f"slow ranks, seed {chosen.seed}")


def measure(
    results: Path, seed: int, minutes: float, *, is_real: bool, share: float = 1.0, jobs: int = 1
) -> list[Line]:
    """What is kept in this folder, and what can be begun within so many minutes. share: of the runs asked for."""
    until_s = time.monotonic() + 60.0 * minutes
    asked = REAL if is_real else SIMULATED
    planned = plan(seed, (round(share * asked[0]), round(share * asked[1])), is_real=is_real)
    gather = gather_real if is_real else gather_simulated
    return lines(gather(results, planned, jobs, until_s), asked, "real" if is_real else "simulated")


if __name__ == "__main__":
    sys.exit(main())
