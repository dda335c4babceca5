"""Learned time-outs and progress over restarts against ``diagnosis/restarts``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.scoreboard.counters import json_lines
from tests.scoreboard.score import Score, Scorer
from tests.scoreboard.steps import alike, rows_scored
from whichrank.diagnosis.restarts.learned_timeouts import SectionMisuse, SectionWatch, Timeouts, learn
from whichrank.diagnosis.restarts.restart_progress import ProgressWatch

Row = dict[str, Any]


def score_timeouts(folder: Path) -> Score:
    rows = json_lines(folder / "nvrx" / "timeout_cases.jsonl")
    return rows_scored(rows, "id", timeout_wrong, later)


def later(row: Row) -> Row:
    """The same events an hour later, under other names."""

    def moved(events: list[list[Any]]) -> list[list[Any]]:
        return [[what, name and f"x-{name}", t + 3600] for what, name, t in events]

    changed = {**row, "start": row.get("start", 0) + 3600, "sections": [f"x-{name}" for name in row["sections"]]}
    for key in ("section_timeouts",):
        if key in row:
            changed[key] = {f"x-{name}": seconds for name, seconds in row[key].items()}
    if "events" in row:
        changed["events"] = moved(row["events"])
    if "events_by_rank" in row:
        changed["events_by_rank"] = {rank: moved(events) for rank, events in row["events_by_rank"].items()}
    if "current" in row:
        now = row["current"]
        renamed = {f"x-{name}": value for name, value in now.items() if name not in ("oos", "learned")}
        learned = [name if name == "oos" else f"x-{name}" for name in now["learned"]]
        changed["current"] = {**renamed, "oos": now["oos"], "learned": learned}
    return changed


def timeout_wrong(row: Row) -> str:
    events = row.get("events_by_rank") or {"0": row["events"]}
    try:
        watches = [followed(row, each) for each in events.values()]
    except SectionMisuse as misuse:
        return "" if row.get("error") else f"refused: {misuse}"
    if row.get("error"):
        return "expected an error"
    said = learn(watches, before=before(row), safety_factor=row["safety_factor"])
    expected = {name: seconds for name, seconds in row["section_timeouts"].items() if seconds is not None}
    is_right = alike(dict(said.sections), expected) and alike(said.out_of_section, row["out_of_section"])
    return "" if is_right else f"expected {expected} and {row['out_of_section']}, said {said}"


def followed(row: Row, events: list[list[Any]]) -> SectionWatch:
    sections = SectionWatch(names=frozenset(row["sections"]), began_s=row.get("start", 0))
    for what, name, t in events:
        if what == "open":
            sections.open(name, t)
        elif what == "close":
            sections.close(name, t)
        else:
            sections.close_all(t)
    return sections


def before(row: Row) -> Timeouts | None:
    """What was set and never learned is a person's guess, and is replaced by the first thing learned."""
    if (now := row.get("current")) is None:
        return None
    learned = {name: float(now[name]) for name in now["learned"]}
    outside = learned.pop("oos", None)
    return Timeouts(sections=learned, out_of_section=outside)


def score_progress(folder: Path) -> Score:
    rows = json_lines(folder / "nvrx" / "progress_cases.jsonl")
    return rows_scored(rows, "id", progress_wrong, further)


def further(row: Row) -> Row:
    """The same training, a million iterations on."""
    changed = dict(row)
    for key in ("max_iteration_per_cycle", "checkpoint_file_per_cycle"):
        if key in row:
            changed[key] = [value + 10**6 if isinstance(value, int) else value for value in row[key]]
    if "last_restart_iteration" in row:
        changed["last_restart_iteration"] += 10**6
    return changed


def progress_wrong(row: Row) -> str:
    progress = ProgressWatch(
        min_iterations=row["min_progress_iterations"],
        max_cycles=row["max_no_progress_cycles"],
        mark=row.get("last_restart_iteration"),
        cycles_without=row.get("no_progress_count_start", 0),
    )
    reached: list[Any] = row.get("max_iteration_per_cycle") or row["checkpoint_file_per_cycle"]
    counts, stops = [], []
    for value in reached:
        stops.append(
            progress.end_cycle(None if isinstance(value, str) else value, is_readable=not isinstance(value, str))
        )
        counts.append(progress.cycles_without)
    is_right = counts == row["no_progress_count_after_each"] and stops == row.get("stop_after_each", stops)
    return "" if is_right else f"expected {row}, said {counts} {stops}"


SCORERS = [
    Scorer(
        name="learned time-outs",
        files=["nvrx/timeout_cases.jsonl"],
        ask="time-outs >= 95 %",
        bar=0.95,
        score=score_timeouts,
    ),
    Scorer(
        name="progress over restarts",
        files=["nvrx/progress_cases.jsonl"],
        ask="counts, stops >= 95 %",
        bar=0.95,
        score=score_progress,
    ),
]

UNSCORED = {
    "nvrx/watch_cases.jsonl": "what a scheduler shows of a chain of jobs (spares, generations in the queue) is asked "
    "by nobody here; storms, nodes that fail again and attempts without progress are concluded live, from attempts",
    "nvrx/fault_restart_table.tsv": "a policy for names of injected faults: there is no input to judge; "
    "whether to restart is scored on logs",
}
