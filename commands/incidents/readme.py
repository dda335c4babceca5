"""An incident as plain text for a ticket: who, since when, why, who only looks guilty, what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...telemetry.incident import Document
from ..incident_text.incident_panel import cleared_words, describe_kind, describe_suspects, describe_where, printable
from ..incident_text.utc_time import when
from ..run_folder.labels import label_words
from .chosen import Chosen

_INDENT = 12


def readme(chosen: Chosen, run: Mapping[str, Any] | None, files: Iterable[str], missing: Sequence[str]) -> str:
    """The text; files and missing: a line each."""
    document = chosen.last
    lines = [
        f"Incident {document['id']}, revision {document['revision']}: {document['severity']}, {document['state']}",
        "",
        *_rows(document, run),
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


def _rows(document: Document, run: Mapping[str, Any] | None) -> Iterator[str]:
    suspects: Sequence[Mapping[str, Any]] = document.get("suspects") or ()
    yield _row("who", describe_suspects(document) or "nobody in particular")
    yield _row("what", f"{describe_kind(document)} ({document.get('bucket')} / {document.get('kind')})")
    for suspect in suspects:
        if place := describe_where(suspect):
            yield _row("where", place if len(suspects) == 1 else f"{suspect.get('id')}: {place}")
    first = document.get("first_bad") or {}
    parts = [
        f"{name} {first[name]}" for name in ("step", "operation", "sequence", "group") if first.get(name) is not None
    ]
    if parts:
        yield _row("first bad", ", ".join(parts))
    times = document.get("times") or {}
    yield _row("since", f"{when(times.get('onset'))} UTC")
    yield _row("told", f"{when(times.get('detected'))} UTC")
    if times.get("resolved") is not None:
        yield _row("ended", f"{when(times['resolved'])} UTC")
    victims = document.get("victims") or {}
    if victims.get("count"):
        plural = "s" if victims["count"] != 1 else ""
        yield _row("victims", f"{victims['count']}: rank{plural} {victims.get('ranks')}")
    yield from _cause(document.get("cause"))
    yield from _list("why", [_evidence(item) for item in document.get("evidence") or ()])
    yield from _list("not guilty", cleared_words(document.get("ruled_out") or ()))
    advice = document.get("advice") or {}
    yield _row("advice", f"{advice['action']}: {advice.get('text') or ''}" if advice.get("action") else "none given")
    if document.get("confidence") is not None:
        yield _row("confidence", f"{float(document['confidence']):.2f}")
    coverage = document.get("coverage") or {}
    if coverage.get("ranks_seen") is not None:
        yield _row("seen", f"{coverage['ranks_seen']} of {coverage.get('ranks_expected')} ranks")
    job = document.get("job") or {}
    named = [f"{name} {job[name]}" for name in ("name", "id", "run", "attempt", "owner") if job.get(name)]
    yield _row("job", ", ".join(named) or "unknown")
    if said := label_words(document.get("label")):
        yield _row("people say", f"{said} ({when(document['label'].get('time'))} UTC)")
    if document.get("cluster"):
        yield _row("cluster", str(document["cluster"]))
    if run is not None:
        facts = [f"{name} {run[name]}" for name in ("host", "exit_code", "whichrank") if run.get(name) is not None]
        yield _row("run", ", ".join([*facts, f"started {when(run.get('started'))} UTC"]))


def _cause(cause: Any) -> Iterator[str]:
    if isinstance(cause, Mapping) and cause.get("device_kind") == "code":
        yield _row("cause", f"the program, at {cause.get('device')}: no fault of {cause.get('entity')} was seen")
    elif isinstance(cause, Mapping):
        device = f" {cause.get('device_kind')} {cause['device']}" if cause.get("device") else ""
        text = f"{cause.get('condition')} of {cause.get('entity')}{device}, since {when(cause.get('since'))} UTC"
        yield _row("cause", text)


def _evidence(item: Mapping[str, Any]) -> str:
    shows = item.get("shows") or item.get("value")
    return f"{when(item.get('time'))}  {shows} ({item.get('source')}: {item.get('signal')})"


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield _row(title if number == 0 else "", line)


def _row(title: str, text: str) -> str:
    return f"{title:<{_INDENT}}{printable(text)}"


def _short(document: Document) -> str:
    who = describe_suspects(document)
    return printable(f"{document['id']}: {' '.join(filter(None, (who, describe_kind(document))))}")


def _revision(document: Document) -> str:
    number, change, severity = (document.get(name) for name in ("revision", "change", "severity"))
    return printable(
        f"{number:>3} {change}, {severity}: {describe_suspects(document) or 'nobody'}: {document.get('kind')}"
    )
