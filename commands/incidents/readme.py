"""An incident as plain text for a ticket: who, since when, why, who only looks guilty, what to do.

Prints ``IncidentView``s. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...telemetry.incident_document import IncidentCause, IncidentDocument
from ...telemetry.redaction import redact
from ..incident_text.incident_view import IncidentView, incident_view, printable
from ..incident_text.utc_time import when
from ..run_folder.run_description import RunDescription
from .chosen import Chosen

_INDENT = 12


def readme(chosen: Chosen, run: RunDescription | None, files: Iterable[str], missing: Sequence[str]) -> str:
    """The incident as plain text for a ticket. files, missing: lines on what is in the archive and what is not.

    run: None where nothing is known of the run.
    """
    view = incident_view(chosen.last)
    lines = [
        f"Incident {view.id}, revision {view.revision}: {view.severity}, {view.state}",
        "",
        *(_row(title, text) for title, text in _rows(view)),
        *_of_run(run),
        "",
    ]
    if chosen.merged:
        lines += ["Part of it, told apart at first:", *(f"  {_short(other)}" for other in chosen.merged), ""]
    lines += ["How it became known (UTC):", *(f"  {_revision(each)}" for each in chosen.revisions), ""]
    lines += ["In this archive:", *(f"  {line}" for line in files), ""]
    if missing:
        lines += ["Missing:", *(f"  {line}" for line in missing), ""]
    lines.append("Times are of the nodes' clocks, UTC. What looks like a secret has been removed from texts.")
    return "\n".join(lines) + "\n"


def _rows(view: IncidentView) -> Iterator[tuple[str, str]]:
    yield "who", view.who_or_nobody
    yield "what", f"{view.what} ({view.bucket} / {view.kind})"
    for row in view.suspects:
        if row.where:
            yield "where", row.where if len(view.suspects) == 1 else f"{row.id}: {row.where}"
    if first := view.first_bad_facts("step", "operation", "sequence", "group"):
        yield "first bad", first
    yield "since", f"{when(view.times.onset_s)} UTC"
    yield "told", f"{when(view.times.detected_s)} UTC"
    if view.times.resolved_s is not None:
        yield "ended", f"{when(view.times.resolved_s)} UTC"
    if view.victim_words:
        yield "victims", view.victim_words
    if view.cause is not None:
        yield "cause", _cause(view.cause)
    yield from _listed("why", [f"{when(row.time_s)}  {row.shows} ({row.seen_in})" for row in view.why])
    yield from _listed("not guilty", view.cleared)
    yield "advice", f"{view.advice_action}: {view.advice_text}" if view.advice_action else "none given"
    if view.confidence_text:
        yield "confidence", view.confidence_text
    if view.seen_words:
        yield "seen", view.seen_words
    yield "job", view.job_facts("name", "id", "run", "attempt", "owner") or "unknown"
    if view.people_say:
        yield "people say", f"{view.people_say} ({when(view.said_s)} UTC)"
    if view.cluster:
        yield "cluster", view.cluster


def _of_run(run: RunDescription | None) -> Iterator[str]:
    if run is not None:
        told = (("host", run.host), ("exit_code", run.exit_code), ("whichrank", run.whichrank))
        facts = [f"{name} {value}" for name, value in told if value is not None]
        yield _row("run", ", ".join([*facts, f"started {when(run.started)} UTC"]))


def _cause(cause: IncidentCause) -> str:
    if cause.device_kind == "code":
        return f"the program, at {cause.device}: no fault of {cause.entity} was seen"
    device = f" {cause.device_kind} {cause.device}" if cause.device else ""
    return f"{cause.condition} of {cause.entity}{device}, since {when(cause.since_s)} UTC"


def _listed(title: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines):
        yield title if number == 0 else "", line


def _row(title: str, text: str) -> str:
    return f"{title:<{_INDENT}}{_clean(text)}"


def _short(incident: IncidentDocument) -> str:
    return _clean(f"{incident.id}: {incident_view(incident).verdict}")


def _revision(incident: IncidentDocument) -> str:
    view = incident_view(incident)
    return _clean(f"{view.revision:>3} {view.change}, {view.severity}: {view.who or 'nobody'}: {view.kind}")


def _clean(text: str) -> str:
    """One line, without secrets; in this order: a space in place of what is not seen would hide a name."""
    return printable(redact(text))
