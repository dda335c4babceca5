"""``python -m tests.docs_commands``: how each command of the documents is tried, and which are not, with the reason."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.docs_commands.collect import Command, all_commands, is_of_whichrank
from tests.docs_commands.coverage import Cover, Elsewhere, Here, InClone, InStack, NotHere, Why, cover_of
from tests.docs_commands.parse import wrong_with
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

_WIDTH = 180


def main() -> int:
    commands = all_commands()
    covers = {command.text: cover_of(command.text) for command in commands}
    _print_exceptions(commands, covers)
    lines = _lines(commands, covers)
    print_lines(lines, "Commands of README, CONTRIBUTING, ARCHITECTURE and docs")
    print(in_short(lines))
    return exit_code(lines)


def _print_exceptions(commands: Sequence[Command], covers: dict[str, Cover | None]) -> None:
    table = Table("not executed", "why", "of it is executed", box=None, pad_edge=False)
    for text in dict.fromkeys(command.text for command in commands):
        cover = covers[text]
        if isinstance(cover, NotHere):
            table.add_row(escape(text), cover.why.value, cover.runs or "-")
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def _lines(commands: Sequence[Command], covers: dict[str, Cover | None]) -> Sequence[ScoreLine]:
    count = Counter(type(cover) for cover in covers.values())
    why = Counter(cover.why for cover in covers.values() if isinstance(cover, NotHere))
    untried, whole = count[type(None)], len(covers)
    ours = [command for command in commands if is_of_whichrank(command)]
    taken = sum(not wrong_with(command.text, is_named=command.is_named) for command in ours)
    tried = (
        ("executed here", Here),
        ("executed in a clone", InClone),
        ("executed with a real broker", InStack),
        ("executed by another test", Elsewhere),
    )
    return [
        *(
            ScoreLine(name=name, asked="", measured=str(count[kind]), share=f"{count[kind]} of {whole}")
            for name, kind in tried
        ),
        ScoreLine(
            name="not executed, with the reason",
            asked="",
            measured="; ".join(f"{reason.value} {why[reason]}" for reason in Why if why[reason]),
            share=f"{count[NotHere]} of {whole}",
        ),
        ScoreLine(
            name="tried, or excused by name",
            asked="all",
            measured=f"{untried} neither",
            share=f"{whole - untried} of {whole}",
            ok=not untried,
        ),
        ScoreLine(
            name="command lines that the real program takes (flags, values, sub-commands)",
            asked="all",
            measured=f"{len(ours) - taken} refused",
            share=f"{taken} of {len(ours)}",
            ok=taken == len(ours),
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
