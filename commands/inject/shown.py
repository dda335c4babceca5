"""A game day for people, and as JSON."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.incident_writing import write_incident
from .game_day import Answer, GameDay
from .injected_kinds import FACTS

SCHEMA = 1


def print_day(day: GameDay) -> None:
    """Prints what was done beside what was concluded."""
    verdict = day.verdict or IncidentDocument()
    table = Table(title=f"inject: {day.kind.value}, {day.target}", title_justify="left")
    for name in ("", "injected", "verdict"):
        table.add_column(name)
    kinds = " or ".join(sorted(kind.value for kind in FACTS[day.kind].kinds))
    rank = "-" if day.rank is None else str(day.rank)
    table.add_row("rank", rank, ", ".join(str(each.rank) for each in verdict.suspects) or "-")
    table.add_row("kind", kinds, word_of(verdict.kind) or "-")
    step = verdict.first_bad.step
    table.add_row("step", "-" if day.step < 0 else str(day.step), "-" if step is None else str(step))
    table.add_row("seen after", "", "-" if day.seen_after_s is None else f"{day.seen_after_s:.2f} s")
    undone = {None: "nothing can be", True: FACTS[day.kind].undone, False: "IT COULD NOT BE"}[day.undone]
    table.add_row("undone", undone, "")
    console = Console()
    console.print(table)
    for problem in day.wrong:
        console.print(f"{day.answer.value.upper()}: {problem}", style="bold red", markup=False)
    console.print("ok" if day.answer is Answer.RIGHT else "SHORT", f"the run is in {day.run}", markup=False)


def day_as_json(day: GameDay) -> str:
    """The same as one JSON object. Times are Unix seconds."""
    told = {
        "schema": SCHEMA,
        "ok": day.answer is Answer.RIGHT,
        "answer": day.answer.value,
        "kind": day.kind.value,
        "rank": day.rank,
        "target": day.target,
        "step": None if day.step < 0 else day.step,
        "injected": day.done_s,
        "undone": day.undone,
        "seen_after_s": day.seen_after_s,
        "expected": sorted(kind.value for kind in FACTS[day.kind].kinds),
        "verdict": None if day.verdict is None else write_incident(day.verdict),
        "wrong": day.wrong,
        "run": str(day.run),
    }
    return json.dumps(told)
