"""The page: one HTML file that asks nobody for anything. All text from a job is escaped (autoescape); the only script
is ours, and the policy in the page names its hash, so that nothing else can run."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ...telemetry.incident_document import IncidentDocument
from ..incident_text.incident_view import printable
from ..incident_text.utc_time import when
from ..run_folder.losses import AGENT_WORDS
from .accounts import accounts_of
from .heat_map import HeatMap, heat_maps
from .reading import JobReading
from .timeline import WIDTH, timeline_of
from .verdict import suspected_ranks, verdicts

VIEWS = (
    ("steady", "self time against the others, over 9 steps"),
    ("apart", "the same in each step"),
    ("own", "self time"),
    ("waited", "wait"),
)


def render(reading: JobReading, documents: Sequence[IncidentDocument], *, now_s: float | None = None) -> str:
    """The page as HTML. documents: last revisions of the job's incidents, the worst first.

    now_s: Unix seconds at which it was made; None: now.
    """
    told = verdicts(documents)
    accounts, intervals = accounts_of(reading.intervals, documents)
    steps = reading.steps
    maps = heat_maps(steps.grid, suspected_ranks(documents))
    script = _part("heat_map.js")
    return (
        _environment()
        .from_string(_part("page.html.j2"))
        .render(
            style=Markup(_part("page.css")),  # ours, like the script
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            data=_embedded(maps),
            maps=maps,
            views=VIEWS,
            job=printable(reading.name or reading.job or "unknown job"),
            job_id=printable(reading.job),
            where=printable(reading.where),
            ranks=max(reading.world_size, steps.grid.ranks),
            seen=steps.grid.ranks,
            columns=steps.grid.columns,
            begin=when(reading.begin_s) if reading.begin_s else "unknown",
            end=when(reading.end_s) if reading.end_s else "unknown",
            written=when(time.time() if now_s is None else now_s),
            verdicts=told,
            timeline=timeline_of(
                begin_s=reading.begin_s,
                end_s=reading.end_s,
                attempts=steps.attempts,
                columns=steps.grid.columns,
                intervals=intervals,
                verdicts=told,
            ),
            width=WIDTH,
            happenings=[(when(at), printable(words)) for at, words in sorted(reading.happenings)],
            accounts=accounts,
            missing=_missing(reading),
        )
    )


def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _embedded(maps: Sequence[HeatMap]) -> Markup:
    """JSON within a script element: no "</" may end it early."""
    text = json.dumps([{"head": asdict(each.head), "body": each.body} for each in maps], separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # numbers, base64 and our own titles only


def _missing(reading: JobReading) -> list[str]:
    """What the report does not know, in a line each."""
    lines = [printable(problem) for problem in reading.problems]
    for name, count in sorted(reading.losses.items()):
        if count:
            lines.append(f"{count} {AGENT_WORDS.get(name, name.replace('_', ' '))}")
    if reading.unreadable:
        lines.append(f"{reading.unreadable} records could not be read")
    if reading.steps.rows_left_out:
        lines.append(f"{reading.steps.rows_left_out} calls lie in no step, and are left out")
    grid = reading.steps.grid
    if reading.world_size > grid.ranks:
        lines.append(f"of {reading.world_size} ranks, {grid.ranks} told of a step")
    if not grid.columns:
        lines.append("no rank told of a step: there is no heat map")
    if merged := sum(column.steps > 1 for column in grid.columns):
        lines.append(
            f"{merged} columns of the heat map stand for several steps: each rank's is the step in which it was least "
            "like the others"
        )
    if reading.other_jobs:
        names = ", ".join(sorted(reading.other_jobs)[:20])
        lines.append(printable(f"other jobs in the same records, each with a report of its own (--job): {names}"))
    return lines
