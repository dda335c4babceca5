"""Event logs of Google's two goodput libraries against ``diagnosis/goodput``."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tests.scoreboard.counters import json_lines
from tests.scoreboard.score import Score, Scorer
from tests.scoreboard.steps import rows_scored
from whichrank.diagnosis.goodput import ml_goodput_events, resiliency_events
from whichrank.diagnosis.goodput.interval import Interval
from whichrank.telemetry.vocabulary import TimeBucket

Row = dict[str, Any]
#: Percentage points between two figures that count as the same.
CLOSE_PCT = 0.02
CLOSE_S = 0.001
BEGIN = datetime(2025, 1, 1, tzinfo=timezone.utc)


def score_calculator(folder: Path) -> Score:
    rows = [row for row in json_lines(folder / "google-resiliency" / "calculator_cases.jsonl") if is_there(folder, row)]
    rows.append({"id": "fsdp_readme_event_log", "path": str(folder / "google-resiliency/fsdp_readme_event_log.jsonl")})
    for row in rows:
        if "file" in row:
            row["path"] = str(folder / "google-resiliency" / row["file"])
    return rows_scored(rows, "id", calculator_wrong, other_names)


def is_there(folder: Path, row: Row) -> bool:
    """A log that is kept apart for acceptance cannot be read here."""
    return "file" not in row or (folder / "google-resiliency" / row["file"]).is_file()


def other_names(row: Row) -> Row:
    """Another job, lines of other programs around its events, and one node more that starts earlier."""
    return {**row, "around": True}


def calculator_lines(row: Row) -> list[str]:
    if "path" in row:
        lines = Path(row["path"]).read_text().splitlines()
    else:
        lines = [
            json.dumps({**event, "timestamp": (BEGIN + timedelta(minutes=event["minute"])).isoformat()})
            for event in row["events"]
        ]
    if row.get("around"):
        lines = [text for line in lines for text in ("INFO step 3 {not json}", f"0: {line}")]
    return lines


def calculator_wrong(row: Row) -> str:
    read = [event for line in calculator_lines(row) if (event := resiliency_events.parse_event(line))]
    events = resiliency_events.one_of_each(read)
    intervals = resiliency_events.intervals_of(events)
    if sum(each.ns for each in intervals) != events[-1].time_ns - events[0].time_ns:
        return "buckets do not sum to wall time"
    if "expected_timeline" in row:
        begin_ns = int(BEGIN.timestamp()) * 10**9
        said = [[event.kind, (event.time_ns - begin_ns) / 60e9] for event in events]
        return "" if said == row["expected_timeline"] else f"expected {row['expected_timeline']}, said {said}"
    if "expected" not in row:
        return fsdp_wrong(intervals)
    expected: Row = row["expected"]
    figure = resiliency_events.published(events, row["reference_step_s"])
    said_of = {
        "min_loaded_step": figure.min_loaded_step,
        "max_saved_step": figure.max_saved_step,
        "total_runtime_s": figure.total_s,
        "effective_s": figure.effective_s,
        "goodput_pct": None if figure.goodput is None else 100 * figure.goodput,
        "total_events_after_dedupe": len(events),
        "job_starts": sum(event.kind == resiliency_events.STARTED for event in events),
        "checkpoints_saved": sum(event.kind == resiliency_events.SAVED for event in events),
    }
    bad = [name for name, value in said_of.items() if name in expected and not near(value, expected[name])]
    return f"{bad}: expected {expected}, said {said_of}" if bad else ""


def near(said: float | None, expected: float) -> bool:
    return said is not None and abs(said - expected) <= 1e-6 * max(1.0, abs(expected))


def fsdp_wrong(intervals: list[Interval]) -> str:
    """The log that the source's README shows has no figure beside it; a step of it counts once, whatever was redone."""
    newest = max(interval.last_step for interval in intervals)
    kept = sum(
        interval.steps * interval.of(TimeBucket.PRODUCTIVE) / interval.ns for interval in intervals if interval.steps
    )
    return "" if round(kept) == newest + 1 else f"{kept} steps kept of {newest + 1}"


def score_ml_goodput(folder: Path) -> Score:
    rows = json_lines(folder / "google-resiliency" / "ml_goodput_cases.jsonl")
    return rows_scored(rows, "id", ml_goodput_wrong, a_year_later)


def a_year_later(row: Row) -> Row:
    """The same events at times as they really are, not from zero."""
    shift = 1_700_000_000.0

    def moved(record: Row) -> Row:
        return {
            name: value + shift if name.endswith("_time") or name == "t" else value for name, value in record.items()
        }

    changed = dict(row)
    for key in ("events", "slice_counts"):
        if key in row:
            changed[key] = [moved(record) for record in row[key]]
    for key in ("query_time", "end"):
        if key in row:
            changed[key] = row[key] + shift
    if "exclude" in row:
        changed["exclude"] = [[first + shift, last + shift] for first, last in row["exclude"]]
    return changed


def ml_goodput_wrong(row: Row) -> str:
    expected: Row = row["expected"]
    if "slice_counts" in row:
        said = ml_goodput_events.efficiency(row["slice_counts"], row["end"])
        right = said is not None and near(said.stepping, expected["stepping_efficiency"])
        right = right and said is not None and near(said.available, expected["available_efficiency"])
        return "" if right else f"expected {expected}, said {said}"
    exclude = [(first, last) for first, last in row.get("exclude", ())]
    intervals = ml_goodput_events.intervals_of(row["events"], until_s=row.get("query_time"), exclude_s=exclude)
    wall_ns = intervals[-1].end_ns - intervals[0].begin_ns
    if sum(each.ns for each in intervals) != wall_ns:
        return "buckets do not sum to wall time"
    words = ml_goodput_events.by_word(intervals)
    excluded_ns = words.pop(ml_goodput_events.EXCLUDED, 0)
    counted_ns = wall_ns - excluded_ns
    productive_ns = sum(each.of(TimeBucket.PRODUCTIVE) for each in intervals)
    wrong = []
    truth = (row.get("by_construction") or expected).get("goodput_pct")
    if truth is not None and abs(100 * productive_ns / counted_ns - truth) > CLOSE_PCT:
        wrong.append(f"goodput {100 * productive_ns / counted_ns:.3f}, expected {truth}")
    if "excluded_s" in expected and abs(excluded_ns / 1e9 - expected["excluded_s"]) > CLOSE_S:
        wrong.append(f"excluded {excluded_ns / 1e9} s")
    for word, value in flat(dict(expected.get("badput_pct") or {})).items():
        if abs(100 * words.get(word, 0) / counted_ns - value) > CLOSE_PCT:
            wrong.append(f"{word} {100 * words.get(word, 0) / counted_ns:.3f} %, expected {value}")
    for word, value in (expected.get("badput_s") or {}).items():
        if abs(words.get(word, 0) / 1e9 - value) > CLOSE_S:
            wrong.append(f"{word} {words.get(word, 0) / 1e9} s, expected {value}")
    return "; ".join(wrong)


def flat(badput: Row) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, value in badput.items():
        out |= value if isinstance(value, dict) else {name: value}
    return out


SCORERS = [
    Scorer(
        name="goodput from checkpoints",
        files=["google-resiliency/calculator_cases.jsonl", "google-resiliency/fsdp_readme_event_log.jsonl"],
        ask="timelines, figures >= 95 %",
        bar=0.95,
        score=score_calculator,
    ),
    Scorer(
        name="goodput from steps",
        files=["google-resiliency/ml_goodput_cases.jsonl"],
        ask="the true share >= 95 %",
        bar=0.95,
        score=score_ml_goodput,
    ),
]
