"""Does ``whichrank check pairs`` name the right node or link, and nobody where all is well?

    python -m benchmarks.pairwise_check [--draws 60] [--simulated 200] [--nodes 4096] [--seed 1] [--quick] [--json]

Sixteen nodes (``pairwise_nodes``: namespaces, gloo ranks) with faults drawn by seed on one or two nodes or links: rate,
loss, delay; and draws without any. Then thousands of nodes as a model of a fabric (``pairwise_simulation``). Counted
is a draw in which exactly the right parts were named. Rounds are orders; exchanges are what a node does in them.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time

from benchmarks.pairwise_nodes import COUNT, Nodes, enter_own_network, missing
from benchmarks.pairwise_simulation import FAULTS, LEAF, NEED_SWEEP, World, run
from benchmarks.report import Report

KINDS = ("rate", "loss", "delay")
#: (how many, nodes or links).
PLACES = ((1, "node"), (1, "link"), (2, "node"), (2, "link"))
#: Of so many draws one has no fault.
CLEAN = 5
#: Orders of one check at most, beside the looks.
MORE_ROUNDS = 6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairwise_check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--draws", type=int, default=60, help="with a fault, on real processes (default 60)")
    parser.add_argument("--simulated", type=int, default=200, help="draws of the model (default 200)")
    parser.add_argument("--nodes", type=int, default=4096, help="of the model (default 4096)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="12 draws each: a look, not a result")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    asked = parser.parse_args()
    if not (why := missing()):
        enter_own_network("benchmarks.pairwise_check")
    report = Report("Which node or link is slow, by pairs", as_json=asked.json)
    if why:
        report.failed("sixteen nodes", why)
    else:
        real(report, 12 if asked.quick else asked.draws, asked.seed)
    simulated(report, 12 if asked.quick else asked.simulated, asked.nodes, asked.seed)
    return report.finish()


def drawn(count: int, seed: int) -> list[tuple[str, list[tuple[int, ...]], float]]:
    """(fault, places, amount) of each draw; those without a fault are spread among them."""
    found: list[tuple[str, list[tuple[int, ...]], float]] = []
    cases = [(kind, many, part) for many, part in PLACES for kind in KINDS]
    for index in range(count):
        draw = random.Random(f"{seed}/{index}")
        kind, many, part = cases[index % len(cases)]
        amount = {"rate": draw.uniform(4, 12), "loss": draw.uniform(0.25, 0.35), "delay": draw.uniform(0.03, 0.06)}[
            kind
        ]
        nodes = draw.sample(range(COUNT), 4)
        places: list[tuple[int, ...]] = [(nodes[0], nodes[1]), (nodes[2], nodes[3])]
        if part == "node":
            places = [(node,) for node in nodes]
        found.append((kind, places[:many], amount))
        if index % CLEAN == CLEAN - 1:
            found.append(("none", [], 0.0))
    return found


def real(report: Report, count: int, seed: int) -> None:
    nodes = Nodes()
    right: dict[str, list[bool]] = {}
    rounds: list[int] = []
    took_s: list[float] = []
    try:
        nodes.start()
        for number, (kind, places, amount) in enumerate(drawn(count, seed)):
            if kind == "none":
                outcome = nodes.check(seed + number)
            else:
                with nodes.faulty(kind, places, amount):
                    outcome = nodes.check(seed + number)
            named = sorted((each["part"], tuple(sorted(each["nodes"]))) for each in outcome["named"])
            truth = sorted(("link" if len(place) == 2 else "node", tuple(sorted(place))) for place in places)
            what = "no fault" if not places else f"{kind} of a {truth[0][0]}" if len(places) == 1 else f"two {kind}"
            right.setdefault(what, []).append(named == truth)
            rounds.append(outcome["rounds"])
            took_s.append(outcome["took_s"])
            if named != truth:
                print(f"  draw {number}: {kind} at {truth}, named {named}: {outcome}", file=sys.stderr, flush=True)
    except RuntimeError as error:
        report.failed("sixteen nodes", str(error))
    finally:
        nodes.close()
    for what, each in sorted(right.items()):
        report.all_of(f"16 nodes: {what}", sum(each), len(each))
    if rounds:
        report.at_most("16 nodes: rounds, at most", 2 * (COUNT - 1) + MORE_ROUNDS, max(rounds))
        report.shown("16 nodes: seconds", f"{statistics.median(took_s):.1f} at the median, {max(took_s):.1f} at most")


def simulated(report: Report, count: int, nodes: int, seed: int) -> None:
    right: dict[str, list[bool]] = {}
    rounds: dict[bool, list[int]] = {False: [], True: []}
    exchanges: dict[bool, list[int]] = {False: [], True: []}
    began_s = time.monotonic()
    for index in range(count):
        fault = FAULTS[index % len(FAULTS)]
        rails = 8 if fault == "rail" else 1
        if fault == "leaf_uplink" and nodes < 3 * LEAF:
            continue
        world = World.drawn(nodes, rails, fault, seed * 100_003 + index)
        planner, named = run(world, seed + index)
        ok = {(each.part.value, each.nodes) for each in named} == world.truth
        right.setdefault(fault, []).append(ok)
        rounds[fault in NEED_SWEEP].append(planner.rounds)
        exchanges[fault in NEED_SWEEP].append(planner.exchanges)
        if not ok:
            print(f"  simulated draw {index}: {fault}: {named[:4]}", file=sys.stderr, flush=True)
    for fault, each in sorted(right.items()):
        report.all_of(f"{nodes:,} simulated: {fault.replace('_', ' ')}", sum(each), len(each))
    most = (nodes - 1).bit_length() + 3 + MORE_ROUNDS
    for swept, word in ((False, "without a sweep"), (True, "with a sweep")):
        if rounds[swept]:
            report.at_most(f"{nodes:,} simulated, {word}: rounds, at most", most, max(rounds[swept]))
            report.shown(f"{nodes:,} simulated, {word}: exchanges of a node", f"{max(exchanges[swept]):,} at most")
    report.shown("simulated: seconds of planning, judging and the model", f"{time.monotonic() - began_s:.0f}")


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    sys.exit(main())
