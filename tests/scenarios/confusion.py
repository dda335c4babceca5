"""The confusion table: what was true, against what was said. Plain functions over judged runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.table import Table

from .judge import Verdict
from .plan import Scenario

#: Said of a run in which nothing was to be said, or too late for anybody to wait for it.
NONE = "none"
Cells = Counter[tuple[str, str]]


def truth_of(scenario: Scenario) -> str:
    """Right answers in the table's words, the first of them for a row; "none" for a healthy job."""
    return scenario.truth.kind or NONE


def verdict_of(verdict: Verdict) -> str:
    """The kind that was said; innocents blamed and second incidents are columns of their own."""
    said = verdict.said.rsplit("/", 1)[-1]
    if verdict.incidents > 1:
        return "several incidents"
    if verdict.blames_innocents:
        return f"{said}, innocent blamed"
    return said


def confusion(results: Sequence[tuple[Scenario, Verdict]]) -> Cells:
    return Counter((truth_of(scenario), verdict_of(verdict)) for scenario, verdict in results)


def as_table(cells: Cells, title: str) -> Table:
    """Rows are true, columns said; the diagonal comes first, what should not be there after it."""
    truths = sorted({truth for truth, _ in cells})
    others = sorted({said for _, said in cells} - set(truths))
    table = Table(title=title, box=box.ASCII, title_justify="left")
    table.add_column("true \\ said", no_wrap=True)
    for said in (*truths, *others):
        table.add_column(said.replace("_", " "), justify="right", overflow="fold", min_width=5)
    for truth in truths:
        row = (cells.get((truth, said), 0) for said in (*truths, *others))
        table.add_row(truth, *(str(count) if count else "." for count in row))
    return table
