"""The accounting against the simulator's ledger, by hand: ``python -m tests.simulator.accounting --show``.

The comparison itself is ``whichrank.evaluation.bench.accounting_run``; here the two are laid beside each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from whichrank.evaluation.bench.accounting_run import LongRun, lines_of, long_run


def _show(run: LongRun) -> None:
    """Where they differ is seen by laying one beside the other."""
    lines: list[tuple[float, str]] = []
    last = ""
    for span in run.ledger.spans:
        if (what := f"{span.attempt} {span.bucket.value}") != last and span.end_ns - span.begin_ns > 500_000_000:
            lines.append((span.begin_ns / 1e9, f"ledger       {what} step {span.step}"))
            last = what
    for each in run.intervals:
        parts = ", ".join(f"{part.bucket.value} {part.ns / 1e9:.1f} {part.cause[-24:]}" for part in each.parts)
        where = f"{each.first_step}-{each.last_step} saved {each.saved_step}"
        begin_s = (each.begin_ns - run.start_unix_ns) / 1e9
        lines.append((begin_s, f"accounting   to {begin_s + each.ns / 1e9:.1f} steps {where}: {parts}"))
    for at_s, line in sorted(lines):
        print(f"{at_s:10.1f} {line}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all within their limits."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.accounting")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--hours", type=float, default=8.0, help="of each run, of which its job takes nine tenths")
    parser.add_argument("--show", action="store_true", help="stretches of both, second by second of their begin")
    options = parser.parse_args(arguments)
    runs = [long_run(seed, options.hours) for seed in range(1, options.seeds + 1)]
    if options.show:
        for run in runs:
            _show(run)
    lines = lines_of(runs)
    for line in lines:
        print(f"{line.name} | {line.asked} | {line.measured} | {line.share} | {line.verdict}")
    return 0 if all(line.ok for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
