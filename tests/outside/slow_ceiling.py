"""How many slow ranks anybody could name in time who names nobody in a thousand sound jobs.

    python -m tests.outside.slow_ceiling --seed 2 [--runs 400]

The bound of ``slow_bound`` lets one alarm in 10,000 steps be false; a thousand sound jobs have millions of steps, and
none of them may have a rank named. Here the same test, which knows who becomes slow, by how much and the noise, is
asked for as few false alarms as that: within 1.5 times its own delay at the bound's rate, or ten steps, in how many
runs?
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.outside.slow import FEW_STEPS, SIMULATED, TIMES_BOUND, bound_of, noise_of, plan
from tests.outside.slow_draws import Drawn, own_seconds
from tests.outside.table import Line, print_table

#: Expected number of sound jobs among the thousand in which a rank is named.
NAMED = (1.0, 0.1)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=SIMULATED[0])
    chosen = parser.parse_args(words)
    slow = [drawn for drawn in plan(chosen.seed, (chosen.runs, 1), is_real=False) if drawn.who]
    sound = [drawn for drawn in plan(chosen.seed, (1, SIMULATED[1]), is_real=False) if not drawn.who]
    rank_steps = sum(drawn.steps * drawn.ranks for drawn in sound)
    found = []
    for named in NAMED:
        for who in ("one", "all"):
            drawn_so = [drawn for drawn in slow if drawn.who == who]
            within = [_is_within(drawn, rank_steps / named) for drawn in drawn_so]
            decided = [each for each in within if each is not None]
            found.append(
                Line(
                    asked=f"{who}, the test that knows all, {named:g} false in {len(sound)} sound jobs: in time",
                    measured=f"{sum(decided) / max(1, len(decided)):.0%}",
                    k_of_n=f"{sum(decided)} of {len(decided)}",
                    state="no bar",
                )
            )
    return print_table(found, f"what can be had, seed {chosen.seed}: {rank_steps} rank-steps of sound jobs")


def _is_within(drawn: Drawn, false_alarm_steps: float) -> bool | None:
    """None: the bound itself has not decided."""
    own_s, noise = own_seconds(drawn), noise_of(drawn)
    bound = bound_of(drawn, own_s, noise, drawn.step_s)
    rare = bound_of(drawn, own_s, noise, drawn.step_s, false_alarm_steps=false_alarm_steps)
    return None if bound is None else rare is not None and rare <= max(FEW_STEPS, TIMES_BOUND * bound)


if __name__ == "__main__":
    sys.exit(main())
