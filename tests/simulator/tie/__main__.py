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

from rich.console import Console
from rich.table import Table

from whichrank.simulator.scoring.summary import Line

from .comparison import Tied
from .kinds import KINDS
from .lines import RESULTS, lines_of
from .one_kind import ONSET_FILE, simulate_again, tie


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.tie", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="kinds whose name contains this; may be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--simulate-only", action="store_true", help="real runs are those that lie there")
    options = parser.parse_args(arguments)
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
        return 2
    return show(lines_of(tied))


def show(lines: Sequence[Line]) -> int:
    table = Table("", "asked", "measured", "k of n", "", box=None, pad_edge=False)
    for line in lines:
        table.add_row(line.name, line.asked or "-", line.measured, line.share, _verdict(line))
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    return 0 if all(line.ok for line in lines) else 1


def _verdict(line: Line) -> str:
    return "" if not line.asked and line.ok else "ok" if line.ok else "SHORT"


if __name__ == "__main__":
    sys.exit(main())
