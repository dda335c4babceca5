"""JSON lines of intervals, incidents and steps, as types: what ``whichrank goodput FILE`` reads. Parsing only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...diagnosis.goodput import ml_goodput_events
from ...diagnosis.goodput.interval import Interval, of_body
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident


@dataclass(slots=True, kw_only=True)
class IntervalLines:
    """unreadable: intervals that are none."""

    intervals: list[Interval] = field(default_factory=list)
    incidents: list[IncidentDocument] = field(default_factory=list)
    unreadable: int = 0


def read_intervals(lines: Iterable[str]) -> IntervalLines | None:
    """Intervals, with incidents among them, in JSON lines as operators tell them; None where no line is one."""
    records = [record for line in lines for record in _records(line)]
    if not any("interval" in record for record in records):
        return None
    found = IntervalLines()
    for record in records:
        if "interval" in record:
            names = {name: str(record.get(name) or "") for name in ("run", "job", "attempt")}
            try:
                found.intervals.append(of_body(record["interval"], **names))
            except ValueError:
                found.unreadable += 1
        elif "revision" in record and "kind" in record:
            found.incidents.append(read_incident(record))
    return found


def read_steps(lines: Sequence[str], *, until_s: float | None, job: str) -> list[Interval] | None:
    """Intervals made of records of ml-goodput-measurement; None where no line is one.

    until_s: when a job that goes on was looked at. Raises TypeError, ValueError or KeyError for an event without its
    time or number.
    """
    records = (record for line in lines for record in _records(line))
    steps = [record for record in records if ml_goodput_events.is_record(record)]
    return ml_goodput_events.intervals_of(steps, until_s=until_s, job=job) if steps else None


def _records(line: str) -> Iterator[Mapping[str, Any]]:
    """Objects of a line; of a list all of them."""
    start = min((place for place in (line.find("{"), line.find("[")) if place >= 0), default=-1)
    if start < 0:
        return
    try:
        value: Any = json.loads(line[start:])
    except (ValueError, RecursionError):
        return
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each
