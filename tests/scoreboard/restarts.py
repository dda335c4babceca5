"""Learned time-outs, progress over restarts and chains of jobs against ``diagnosis/restarts``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.scoreboard.counters import json_lines
from tests.scoreboard.score import Score, Scorer
from tests.scoreboard.steps import alike, rows_scored
from whichrank.diagnosis.restarts.chain import (
    ChainView,
    Checkpoint,
    Cycle,
    EndedTask,
    Generation,
    Task,
    watch,
)
from whichrank.diagnosis.restarts.learned_timeouts import SectionMisuse, SectionWatch, Timeouts, learn
from whichrank.diagnosis.restarts.node_list import expand
from whichrank.diagnosis.restarts.restart_progress import ProgressWatch

Row = dict[str, Any]
NOW_S = 1_700_000_000.0


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


def score_chain(folder: Path) -> Score:
    rows = json_lines(folder / "nvrx" / "watch_cases.jsonl")
    for row in rows:
        row["case"] = f"{row['detector']} {row['id']}"
    return rows_scored(rows, "case", chain_wrong, other_hosts)


def other_hosts(row: Row) -> Row:
    renamed: Row = json.loads(re.sub(r"node(?=[0-9\[])", "dgx-b200-", json.dumps(row)))
    return renamed


def chain_wrong(row: Row) -> str:
    if row["detector"] == "nodelist":
        said = list(expand(row["id"]))
        return "" if said == row["expanded"] else f"expected {row['expanded']}, said {said}"
    alerts = [alert for alert in watch(view_of(row)) if alert.detector == row["detector"]]
    facts = {
        "fires": len(alerts) == row["fires"],
        "severity": all(alert.severity == row.get("severity") for alert in alerts),
        "node": any(alert.node == row.get("node") for alert in alerts),
        "action": any(alert.remedy == row.get("action") for alert in alerts),
    }
    bad = [name for name, is_right in facts.items() if name in row and not is_right]
    return f"{bad}: said {alerts}" if bad else ""


def view_of(row: Row) -> ChainView:
    cycles = [
        Cycle(
            job=each["job"], number=each["cycle"], start_s=NOW_S - 60 * each["start_min_ago"],
            end_s=None if each["duration_min"] is None else NOW_S - 60 * (each["start_min_ago"] - each["duration_min"]),
            active=expand(each["active"]), standby=expand(each["standby"]),
        )
        for each in row.get("cycles", [])
    ]  # fmt: skip
    generations = [
        Generation(
            job=each["gen"], tasks=tuple(Task(index=task["task"], state=task["state"]) for task in each["tasks"])
        )
        for each in row.get("generations", [])
    ]
    ended = [
        EndedTask(
            job=each["gen"], task=each["task"], state=each["state"], ended_s=NOW_S - each["ended_s_ago"],
            exit_code=each.get("exit_code"),
        )
        for each in row.get("terminal", [])
    ]  # fmt: skip
    saved, prior = row.get("checkpoint"), row.get("prior")
    checkpoint = None
    if saved is not None:
        age_s = saved["age_s"]
        if prior is not None and prior["value"] == saved["value"]:
            age_s = max(age_s, prior["first_seen_s_ago"])
        checkpoint = Checkpoint(value=saved["value"], since_s=NOW_S - age_s)
    return ChainView(
        now_s=NOW_S, cycles=tuple(cycles), ended=tuple(ended), checkpoint=checkpoint,
        generations=tuple(generations) if row.get("scheduler_visible", True) else None,
        max_restarts=row.get("max_restarts"), is_expected=row.get("chain_expected", False),
    )  # fmt: skip


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
    Scorer(
        name="restart chains",
        files=["nvrx/watch_cases.jsonl"],
        ask="alerts >= 95 %",
        bar=0.95,
        score=score_chain,
    ),
]

UNSCORED = {
    "nvrx/fault_restart_table.tsv": "a policy for names of injected faults: there is no input to judge; "
    "whether to restart is scored on logs",
}
