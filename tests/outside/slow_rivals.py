"""The same drawn jobs by the published rules of two other tools, beside whichrank: who is named, and after how long.

    python -m tests.outside.slow_rivals [--seed 7] [--runs 12]

NVRx (nvidia-resiliency-ext, straggler detection): each report, every 60 s, scores a rank's section by the smallest of
all ranks' medians over its own median (relative) and by its own smallest median so far (individual); below 0.75 it is
a straggler. Here the section is the rank's own work, which its user would have to mark. TraceML: of the ranks' mean
times in backward (in DDP the waiting is in there) the smallest is the culprit's, the upper median a victim's; by a
tenth of the victim's step apart it warns; taken over the last 20 steps here. Neither package is to be had where this is
run, so the rules are written anew from what was read of their source: no figures of the tools themselves.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from tests.outside.slow import Measured, simulate
from tests.outside.slow_draws import Drawn, draw, own_seconds

REPORT_S, NVRX_SCORE = 60.0, 0.75
TRACEML_STEPS, TRACEML_WARN = 20, 0.10


def first_of_nvrx(own_s: np.ndarray) -> tuple[int, set[int]] | None:
    """Steps made by the first report that names anybody, and whom."""
    ends_s = np.cumsum(own_s.max(axis=1))
    best_s = np.full(own_s.shape[1], np.inf)
    begin = 0
    for at_s in np.arange(REPORT_S, ends_s[-1] + REPORT_S, REPORT_S):
        end = int(np.searchsorted(ends_s, at_s, side="right"))
        if end == begin:
            continue
        medians_s = np.median(own_s[begin:end], axis=0)
        best_s, begin = np.minimum(best_s, medians_s), end
        slow = (medians_s.min() / medians_s < NVRX_SCORE) | (best_s / medians_s < NVRX_SCORE)
        if slow.any():
            return end, set(np.flatnonzero(slow).tolist())
    return None


def first_of_traceml(own_s: np.ndarray) -> tuple[int, set[int]] | None:
    steps_s = own_s.max(axis=1)
    waits_s = steps_s[:, None] - own_s
    for end in range(TRACEML_STEPS, len(own_s) + 1):
        part = slice(end - TRACEML_STEPS, end)
        visible_s = waits_s[part].mean(axis=0)
        victim_s = float(np.sort(visible_s)[visible_s.size // 2])
        if victim_s - visible_s.min() >= TRACEML_WARN * steps_s[part].mean():
            return end, {int(visible_s.argmin())}
    return None


def of_whichrank(measured: Measured) -> tuple[int, set[int]] | None:
    named = [said for said in measured.said if said.ranks]
    return (named[0].at_step, set(named[0].ranks)) if named else None


def verdict(drawn: Drawn, first: tuple[int, set[int]] | None) -> str:
    if first is None:
        return "-" if drawn.who == "one" else "right: nobody"
    step, ranks = first
    if drawn.who == "one" and ranks == {drawn.rank} and step >= drawn.first:
        return f"right, {step - drawn.first} steps"
    when = f"{step - drawn.first} steps" if drawn.who and step >= drawn.first else f"step {step}, while sound"
    return f"WRONG: {sorted(ranks)} at {when}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--runs", type=int, default=12, help="with a slow rank, and as many sound ones")
    chosen = parser.parse_args()
    drawn = [draw(chosen.seed, 2 * number, healthy=False, is_real=False) for number in range(chosen.runs)]
    drawn += [draw(chosen.seed, number, healthy=True, is_real=False) for number in range(chosen.runs)]
    right = dict.fromkeys(("whichrank", "NVRx", "TraceML"), 0)
    for each in drawn:
        measured, own_s = simulate(each), own_seconds(each)
        firsts = (of_whichrank(measured), first_of_nvrx(own_s), first_of_traceml(own_s))
        said = dict(zip(right, (verdict(each, first) for first in firsts), strict=True))
        for tool, words in said.items():
            right[tool] += words.startswith("right")
        bound = f"bound {measured.bound} steps" if each.who else ""
        print(f"{each.name} {bound}: " + "; ".join(f"{tool} {words}" for tool, words in said.items()))
    print("right: " + ", ".join(f"{tool} {count} of {len(drawn)}" for tool, count in right.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
