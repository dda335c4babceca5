"""Faults of storage and fabric in the simulator, by who tells of them: ``python -m benchmarks.simulated_sensors``.

Each scenario between jobs that is one of storage or fabric, on fresh seeds, once with the collectors of nodes and the
exporters of servers and switches, and once with these exporters alone (and what ranks say of themselves); and the same
jobs without a fault. Prints asked, measured, k of n, ok or SHORT; exit status 1 for SHORT. ``--said`` prints each run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from whichrank.commands.support.gc_tuning import search_seldom
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.evaluation.simulate.judge import Judge
from whichrank.simulator.scenarios.grounds import ground_of
from whichrank.simulator.scenarios.scenarios import SCENARIOS
from whichrank.simulator.scoring.run_score import score_run
from whichrank.simulator.scoring.summary import ScoreLine
from whichrank.simulator.sensing import Sensing
from whichrank.telemetry.incident import canonical_line

STORAGE = ("metadata_storm", "checkpoint_burst", "filesystem_full", "quota_used_up")
FABRIC = ("leaf_congested", "leaf_lost", "one_spine", "fabric_stalls")
#: What is asked of each way to sense.
ASKED = {Sensing.SERVERS: 0.90, Sensing.ALL: 0.97}
_NAMES = {Sensing.ALL: "all sensors", Sensing.SERVERS: "without clients' sensors", Sensing.CLIENTS: "clients' alone"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One run. has_fault: else the same jobs, and nothing goes wrong."""

    scenario: str
    seed: int
    sensing: Sensing
    ranks: int
    has_fault: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    asked: Asked
    ok: bool
    said: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all and prints the lines. The exit status is 1 where a line is SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated_sensors", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name has these words")
    parser.add_argument("--seeds", type=int, default=5, help="of each scenario")
    parser.add_argument("--seed", type=int, default=310_000, help="the first")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after that")
    parser.add_argument("--clients", action="store_true", help="also clients' sensors alone, for comparison")
    parser.add_argument("--said", action="store_true", help="what stands at the end of each run")
    options = parser.parse_args(arguments)
    names = [name for name in (*STORAGE, *FABRIC) if options.only in name]
    seeds = range(options.seed, options.seed + options.seeds)
    everything = list(_everything(names, seeds, options.ranks, clients=options.clients))
    until_s = time.monotonic() + 60.0 * options.minutes
    outcomes = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(partial(_in_time, until_s), everything):
            if outcome is None:
                continue
            outcomes.append(outcome)
            if options.said or not outcome.ok:
                asked = outcome.asked
                kind = "" if asked.has_fault else ", no fault"
                verdict = "" if outcome.ok else "WRONG: "
                print(
                    f"{verdict}{asked.scenario} {asked.seed} ({asked.sensing.value}{kind}): {outcome.said}", flush=True
                )
    lines = lines_of(outcomes)
    if len(outcomes) < len(everything):
        print(f"{len(everything) - len(outcomes)} of {len(everything)} runs were not begun in time")
    print_lines(lines, "storage and fabric, simulated")
    print(in_short(lines))
    return exit_code(lines, whole=True)


def _everything(names: Sequence[str], seeds: Sequence[int], ranks: int, *, clients: bool) -> Iterator[Asked]:
    """Seed by seed, so that what is cut off has met every scenario about as often."""
    ways = (*ASKED, *((Sensing.CLIENTS,) if clients else ()))
    for seed in seeds:
        for name in names:
            for sensing in ways:
                yield Asked(scenario=name, seed=seed, sensing=sensing, ranks=ranks)
        if seed == seeds[0]:
            for name in names:
                for sensing in ASKED:
                    yield Asked(scenario=name, seed=seed, sensing=sensing, ranks=ranks, has_fault=False)


def _in_time(until_s: float, asked: Asked) -> Outcome | None:
    """until_s: of the monotonic clock, which all processes share."""
    return outcome_of(asked) if time.monotonic() < until_s else None


def outcome_of(asked: Asked) -> Outcome:
    """Runs it and scores it: the first answer is right; or, without a fault, nothing is said that somebody hears of."""
    search_seldom()
    scenario = SCENARIOS[asked.scenario]
    if not asked.has_fault:
        scenario = replace(scenario, faults=())
    ground = ground_of(asked.scenario, asked.seed)
    world = scenario.build(asked.ranks, asked.seed, ground=ground, company=asked.has_fault, sensing=asked.sensing)
    judge = Judge(start_unix_ns=world.start_unix_ns)
    for until_s, sent in world.run(60.0 * scenario.minutes):
        judge.take(until_s, sent)
    judge.close()
    truth = world.settle().as_json()
    documents = [incident.document for incident in judge.incidents.values()]
    told = [each for each in documents if each["severity"] != "info" and each["state"] != "merged"]
    said = "; ".join(_in_words(each) for each in told) or "nothing"
    if not asked.has_fault:
        return Outcome(asked=asked, ok=not told, said=said)
    score = score_run(truth, [json.loads(canonical_line(revision.document)) for revision in judge.revisions])
    ok = all(fault.top_1 for fault in score.faults)
    return Outcome(asked=asked, ok=ok, said=f"{said} (right: {_truth(truth['faults'][0])})")


def _in_words(document: Mapping[str, Any]) -> str:
    cause = document.get("cause") or {}
    suspects = [str(suspect["id"]) for suspect in document["suspects"]]
    culprits = [job["id"] for job in document["jobs"] if job["role"] == "culprit"]
    counted = cause.get("counted_by") or ""
    return f"{document['kind']} {','.join(suspects[:4])} {','.join(map(str, culprits))} {counted}".strip()


def _truth(fault: dict[str, object]) -> str:
    return f"{fault['kinds']} {fault['culprit'] or fault['devices']}"


def lines_of(outcomes: Sequence[Outcome]) -> list[ScoreLine]:
    """What is asked of the runs, and what came of them."""
    lines = []
    for sensing in dict.fromkeys(each.asked.sensing for each in outcomes):
        least = ASKED.get(sensing)
        mine = [each for each in outcomes if each.asked.sensing is sensing]
        faults = [each for each in mine if each.asked.has_fault]
        lines.append(_line(f"right at first: {_NAMES[sensing]}", faults, least))
        for name, which in (("storage", STORAGE), ("fabric", FABRIC)):
            of_kind = [each for each in faults if each.asked.scenario in which]
            lines += [_line(f"  of them {name}", of_kind, None)] if of_kind else []
        sound = [each for each in mine if not each.asked.has_fault]
        lines += [_line(f"no fault, nothing said: {_NAMES[sensing]}", sound, 1.0)] if sound else []
    return lines


def _line(name: str, outcomes: Sequence[Outcome], least: float | None) -> ScoreLine:
    right = sum(outcome.ok for outcome in outcomes)
    share = right / len(outcomes) if outcomes else 0.0
    asked = "" if least is None else "100 %" if least == 1.0 else f">= {least:.0%}"
    return ScoreLine(
        name=name, asked=asked, measured=f"{share:.1%}", share=f"{right} of {len(outcomes)}", ok=share >= (least or 0.0)
    )


if __name__ == "__main__":
    sys.exit(main())
