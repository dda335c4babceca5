"""``make house``: is this a house to live in? What a program can count of it.

    python -m tests.house [--places NAME] [--draw SEED] [--write]

Prints asked, measured, k of n per line, and exits with 1 where one falls short. ``--places`` lists where: the name of
a line in the table, or "all". ``--draw`` prints forty public functions for a reader, who says what each one does.
``--write`` notes the counts in ``counts.json``: the tests let none of them grow.
"""

from __future__ import annotations

import argparse
import ast
import json

from tests.house.docstrings import drawn, public_functions
from tests.house.measure import RECORD, Count, measure
from tests.house.tree import modules
from tests.outside.table import Line, print_table


def line_of(count: Count) -> Line:
    wrong = len(count.places)
    if count.most:
        k_of_n = f"{wrong} of {count.most} allowed"
    else:
        k_of_n = f"{count.of - wrong} of {count.of}" if count.of else f"{wrong} of 0 allowed"
    state = "not run" if count.needs_some and not count.of else "ok" if count.is_ok else "SHORT"
    return Line(asked=count.asked, measured=f"{count.name}: {wrong}", k_of_n=k_of_n, state=state)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--places", help="where: the name of a line, or all")
    parser.add_argument("--draw", type=int, help="a seed: forty public functions for a reader")
    parser.add_argument("--write", action="store_true", help="note the counts, which the tests hold")
    asked = parser.parse_args()
    if asked.draw is not None:
        for each in drawn(public_functions(modules()), asked.draw):
            result = ast.unparse(each.node.returns) if each.node.returns is not None else "?"
            print(f"\n{each.place}({ast.unparse(each.node.args)}) -> {result}\n    {each.doc or '-'}")
        return 0
    counts = measure()
    if asked.write:
        RECORD.write_text(json.dumps({count.name: len(count.places) for count in counts}, indent=1) + "\n")
    if asked.places and asked.places not in ("all", *(count.name for count in counts)):
        parser.error(
            f"--places {asked.places}: no such line; there are all, {', '.join(count.name for count in counts)}"
        )
    if asked.places:
        for count in counts:
            if asked.places in (count.name, "all"):
                print(f"\n{count.name}", *count.places, sep="\n  ")
    return print_table([line_of(count) for count in counts], "A house to live in")


if __name__ == "__main__":
    raise SystemExit(main())
