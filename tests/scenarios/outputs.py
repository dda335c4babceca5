"""What a command leaves for people in ``build/scenarios/seed-N``: tables, picture of delays, verdicts to read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from whichrank.commands.incident_text.incident_panel import incident_panel
from whichrank.telemetry.incident_reading import read_incident

from . import report
from .catalogue import FAMILIES
from .confusion import as_table, confusion
from .judge import Verdict, latest_by_id
from .plan import Plan, Scenario
from .runner import Outcome

VERDICTS_DRAWN = 10
PAGE_COLUMNS = 110
#: Tables in files are as wide as they need to be.
FILE_COLUMNS = 200

Told = tuple[Scenario, Plan, Mapping[str, Any]]


def told(scenario: Scenario, outcome: Outcome) -> list[Told]:
    """The last revision of each incident of a run."""
    return [(scenario, outcome.plan, document) for document in latest_by_id(outcome.revisions)]


def write_all(
    folder: Path,
    title: str,
    results: Sequence[tuple[Scenario, Verdict]],
    verdicts: Sequence[Told],
    lines: Sequence[report.Line],
    console: Console,
    *,
    quick: bool = False,
) -> bool:
    """Prints the tables, writes all (quick: but for the picture). False when anything asked was SHORT."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = as_table(confusion(results), "what was true, and what was said (runs)")
    report.print_scenarios(console, results)
    console.print(cells)
    good = report.print_lines(console, title, lines)
    with (folder / "tables.txt").open("w") as file:
        page = Console(file=file, width=FILE_COLUMNS)
        report.print_scenarios(page, results)
        page.print(cells)
        report.print_lines(page, title, lines)
    with (folder / "verdicts.txt").open("w") as file:
        write_verdicts(Console(file=file, width=PAGE_COLUMNS), verdicts, title)
    written = ["tables.txt", "verdicts.txt"]
    if not quick:
        from . import picture  # it takes a second to load, five times in `make test`

        caption = f"onset to incident: {title}, {len(results)} runs"
        written += ["delays.png"] if picture.draw(results, FAMILIES, caption, folder / "delays.png") else []
    console.print(f"written to {folder}: {', '.join(written)}", soft_wrap=True)
    return good


def write_verdicts(console: Console, verdicts: Sequence[Told], title: str) -> None:
    """Ten incidents drawn at random as a person sees them, with the truth above each."""
    drawn = random.Random(title).sample(list(verdicts), min(VERDICTS_DRAWN, len(verdicts)))
    for scenario, plan, document in drawn:
        truth = f"{scenario.truth.kind or 'nothing'} on {list(plan.guilty) or 'nobody'}"
        console.print(
            f"TRUE: {scenario.name} #{plan.repeat}: {truth}, {plan.workload}, {plan.world_size} ranks, "
            f"step {plan.onset_step} of {plan.step_s} s",
            markup=False,
            highlight=False,
        )
        console.print(incident_panel(read_incident(document)))
        console.print()
