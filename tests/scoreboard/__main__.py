"""``make scoreboard``: every file of ../shared/corpora with k of n, or why it cannot be scored.

Prints a table and one summary line; exits 1 if a line falls short or a file is accounted for by nobody, 77 where the
corpora are absent.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.scoreboard.score import Score, Scorer

ROOT = Path(__file__).parents[2]
CORPORA = ROOT.parent / "shared" / "corpora"
#: Modules beside this one, each with SCORERS and, where it has any, UNSCORED (glob -> why).
PARTS: tuple[str, ...] = (
    "kernel",
    "kernel_catalogues",
    "kernel_repeats",
    "job_log",
    "flight_recorder",
    "counters",
    "steps",
    "health_checks",
    "restarts",
    "goodput",
)
EXIT_ABSENT = 77
#: Losing more than this share by mechanical changes is a failure.
MAX_LOSS = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scoreboard", description=__doc__)
    parser.add_argument("--corpora", type=Path, default=CORPORA, help="folder of the labelled cases")
    parser.add_argument("--only", default="", help="scorers whose name contains this")
    parser.add_argument("--wrong", action="store_true", help="print each wrong row")
    options = parser.parse_args(arguments)
    folder: Path = options.corpora
    if not folder.is_dir():
        print("scoreboard: the corpora are not there (../shared/corpora); name them with --corpora DIR")
        return EXIT_ABSENT
    scorers, unscored = parts()
    chosen = [scorer for scorer in scorers if options.only in scorer.name]
    console = Console(width=150)
    table = Table("file", "asked", "measured", "k of n", "changed", "s", "", box=None, pad_edge=False)
    short = 0
    wrong: list[str] = []
    for scorer in chosen:
        began = time.monotonic()
        try:
            score = scorer.score(folder)
        except Exception:
            score = Score(right=0, total=1, wrong=[traceback.format_exc(limit=3)])
        is_ok = reaches(scorer, score)
        short += not is_ok
        table.add_row(*row(scorer, score, time.monotonic() - began, is_ok=is_ok))
        wrong += [f"{scorer.name}: {line}" for line in score.wrong]
    if not options.only:
        for path in files_of(folder):
            name = path.relative_to(folder).as_posix()
            if any(fnmatch(name, glob) for scorer in scorers for glob in scorer.files):
                continue
            why = next((why for glob, why in unscored.items() if fnmatch(name, glob)), None)
            short += why is None
            table.add_row(name, "", why or "accounted for by nobody", "", "", "", "-" if why else "SHORT")
    console.print(table)
    if options.wrong:
        print("\n".join(wrong))
    more = "" if options.wrong else " (--wrong)"
    print(f"scoreboard: {len(chosen)} lines, {short} SHORT, {len(wrong)} wrong rows{more}")
    return 1 if short else 0


def parts() -> tuple[list[Scorer], dict[str, str]]:
    scorers: list[Scorer] = []
    unscored: dict[str, str] = {}
    for name in PARTS:
        module = import_module(f"tests.scoreboard.{name}")
        scorers += module.SCORERS
        unscored |= getattr(module, "UNSCORED", {})
    return scorers, unscored


def measured(scorer: Scorer, score: Score) -> float:
    if score.measure is not None:
        return score.measure
    return score.right / score.total if score.total else 0.0


def reaches(scorer: Scorer, score: Score) -> bool:
    value = measured(scorer, score)
    held = value <= scorer.bar if scorer.at_most else value >= scorer.bar
    if score.changed is not None and score.total:
        right, total = score.changed
        held = held and total > 0 and right / total >= score.right / score.total - MAX_LOSS
    return held and score.total > 0


def row(scorer: Scorer, score: Score, took_s: float, *, is_ok: bool) -> list[str]:
    changed = "" if score.changed is None else f"{score.changed[0]} of {score.changed[1]}"
    value = measured(scorer, score)
    figure = f"{value:.3f}" if score.measure is not None else f"{100 * value:.1f} %"
    files = ", ".join(scorer.files)
    return [
        f"{scorer.name}: {files}",
        scorer.ask,
        figure,
        f"{score.right} of {score.total}",
        changed,
        f"{took_s:.1f}",
        "ok" if is_ok else "SHORT",
    ]


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "README.md")


if __name__ == "__main__":
    sys.exit(main())
