"""Lines for people and for programs: a table, or one JSON object."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ...simulator.scoring.summary import ScoreLine

EXIT_SHORT, EXIT_USAGE = 1, 2
#: In a file or a pipe.
_WIDTH = 180


def print_lines(lines: Sequence[ScoreLine], heading: str = "") -> None:
    """Prints lines as a table on stdout, as wide as the terminal; in a pipe no cell is cut off.

    heading: of the first column.
    """
    table = Table(heading, "asked", "measured", "k of n", "", box=None, pad_edge=False)
    for line in lines:
        table.add_row(line.name, line.asked or "-", line.measured, line.share, line.verdict)
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def in_short(lines: Sequence[ScoreLine]) -> str:
    """In words how many of the lines that ask for something are ok, SHORT or not run."""
    count = Counter(line.verdict for line in lines)
    asked = count["ok"] + count["SHORT"] + count["not run"]
    others = [f"{count[verdict]} {verdict}" for verdict in ("SHORT", "not run") if count[verdict]]
    return ", ".join([f"{count['ok']} of {asked} ok", *others])


def exit_code(lines: Sequence[ScoreLine], *, whole: bool = False) -> int:
    """1 where a line is SHORT, else 0. whole: also where one was not run; a single bench may leave lines to others."""
    bad = ("SHORT", "not run") if whole else ("SHORT",)
    return EXIT_SHORT if any(line.verdict in bad for line in lines) else 0
