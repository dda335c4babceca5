"""An incident as a person reads it in a terminal: a box of rows. Prints an ``IncidentView``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ...telemetry.incident_document import FirstBadPlace, IncidentDocument
from .incident_view import IncidentView, incident_view, places_of, printable

SEVERITY_STYLE = {"page": "bold red", "ticket": "yellow", "info": "cyan"}
_BOLD = frozenset({"who", "because"})
#: Of a row, and rows of one title: a screen holds less.
_MAX_CHARACTERS, _MAX_LISTED = 2_000, 100


def incident_panel(incident: IncidentDocument) -> RenderableType:
    """The whole incident in a box, for a terminal."""
    view = incident_view(incident)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in _rows(view):
        shown = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
        table.add_row(title, Text(printable(shown), style="bold" if title in _BOLD else ""))
    style = SEVERITY_STYLE.get(view.severity, "")
    head = Text(printable(view.severity), style=style)
    if style:
        head.append(printable(f" · {view.kind} · {view.state}"), style="none")
    subtitle = Text(printable(f"incident {view.id}"))
    return Panel(Group(table), title=head, subtitle=subtitle, border_style=style or "none")


def _rows(view: IncidentView) -> Iterator[tuple[str, str]]:
    yield "who", view.who_or_nobody
    if view.job_name:
        claimed = " (an id that only the job itself claims)" if view.job.is_claimed else ""
        yield "job", " · ".join(filter(None, (view.job.name, view.job.id))) + claimed
    yield "what", f"{view.what}  [{view.bucket} / {view.kind}]"
    for place, there in islice(places_of(view).items(), _MAX_LISTED):
        yield "where", place if len(view.suspects) == 1 else f"{there}: {place}"
    if view.because:
        yield "because", view.because
    if view.advice_text:
        yield "do", f"{view.advice_text}  [{view.advice_action}]"
    if first := _first_bad(view.first_bad):
        yield "first bad", first
    yield "since", _times(view)
    if view.victim_words:
        yield "victims", view.victim_words
    yield from _listed("why", [f"{row.shows}  ({row.seen_in})" for row in view.why])
    yield from _listed("not guilty", view.cleared)
    if view.seen_words:
        yield "seen", view.seen_words
    if view.confidence_text:
        yield "confidence", view.confidence_text
    if view.people_say:
        yield "people say", view.people_say


def _listed(title: str, lines: tuple[str, ...] | list[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines[:_MAX_LISTED]):
        yield title if number == 0 else "", line
    if len(lines) > _MAX_LISTED:
        yield "", f"and {len(lines) - _MAX_LISTED} more"


def _first_bad(first: FirstBadPlace) -> str:
    parts = [] if first.step is None else [f"step {first.step}"]
    if first.operation:
        sequence = f" {first.sequence}" if first.sequence is not None else ""
        parts.append(f"{first.operation}{sequence}" + (f" of group {first.group}" if first.group else ""))
    return ", ".join(parts)


def _times(view: IncidentView) -> str:
    """On this machine's clock."""
    times, after_s = view.times, view.seen_after_s
    text = time.strftime("%H:%M:%S", time.localtime(times.onset_s)) if times.onset_s else "unknown"
    if after_s is not None:
        text += f"; seen after {after_s:.1f} s"
    if times.resolved_s:
        text += f"; ended {time.strftime('%H:%M:%S', time.localtime(times.resolved_s))}"
    return text
