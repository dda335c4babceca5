"""``python -m tests.simulator.tie``: faults in real jobs and in simulated ones; ends with 1 where they differ.

Real jobs go one at a time, at their usual priority. What they leave lies in build/tie/KIND/REPEAT: real/, simulated/
and tie.json; ``--simulate-only`` simulates and compares again what was really run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from whichrank.evaluation.bench.bench_report import EXIT_USAGE, exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

from .comparison import Tied
from .kinds import KINDS
from .lines import RESULTS, lines_of, tie_lines
from .one_kind import ONSET_FILE, simulate_again, tie


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.tie", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="kinds whose name contains this; may be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--simulate-only", action="store_true", help="real runs are those that lie there")
    parser.add_argument(
        "--stored", action="store_true", help="run nothing: only what lies there, as faultbench shows it"
    )
    options = parser.parse_args(arguments)
    if options.stored:
        return show(tie_lines(options.results))
    kinds = [kind for kind in KINDS if not options.only or any(word in kind.name for word in options.only)]
    tied: list[Tied] = []
    for repeat in range(options.repeats):
        for kind in kinds:
            folder = options.results / re.sub(r"[^a-z0-9]+", "-", kind.name) / str(repeat)
            if options.simulate_only:
                if (folder / ONSET_FILE).exists():
                    tied.append(simulate_again(kind, folder))
            else:
                tied.append(tie(kind, repeat, options.seed, folder))
    if not tied:
        print("nothing to run", file=sys.stderr)
        return EXIT_USAGE
    return show(lines_of(tied))


def show(lines: Sequence[ScoreLine]) -> int:
    print_lines(lines)
    print(f"faults in real jobs and in simulated ones: {in_short(lines)}")
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
