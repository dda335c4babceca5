"""Incidents in words for the page: one sentence each, then what a person asks next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...telemetry.incident import Document
from ...telemetry.ring_layout import parse_ranks
from ..incident_text.incident_panel import cleared_words, describe_suspects, describe_where, headline, printable
from ..incident_text.utc_time import when
from ..run_folder.labels import label_words

_ORDER = {"page": 0, "ticket": 1, "info": 2}
_SEVERITY_WORDS = {
    "page": "page: somebody is needed now",
    "ticket": "ticket: look at it by day",
    "info": "for information",
}
_JOB_WORDS = {"running": "the job runs", "restarting": "the job is restarting", "stopped": "the job has stopped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One incident. rows: (what is asked, answer); evidence: (time, what it shows, where it was seen)."""

    id: str
    severity: str
    severity_words: str
    sentence: str
    is_open: bool
    onset_s: float
    detected_s: float | None
    resolved_s: float | None
    rows: tuple[tuple[str, str], ...]
    evidence: tuple[tuple[str, str, str], ...]
    suspects: tuple[tuple[str, str, str], ...]
    cleared: tuple[str, ...]
    merged: tuple[str, ...]


def last_revisions(documents: Iterable[Document], job: str) -> list[Document]:
    """Of each incident of the job (any, without a job), what is said last: the worst first, open ones before others."""
    last = {str(document["id"]): document for document in documents}
    mine = [document for document in last.values() if not job or job in _jobs(document)]
    return sorted(mine, key=lambda each: (_severity(each), each.get("state") != "open", _onset(each), str(each["id"])))


def worst_job(documents: Iterable[Document]) -> str:
    """Whose incident is the worst; empty without any."""
    for document in last_revisions(documents, ""):
        if document.get("state") != "merged" and (id_ := (document.get("job") or {}).get("id")):
            return str(id_)
    return ""


def verdicts(documents: Sequence[Document]) -> list[Verdict]:
    """documents: last revisions. Those that went into another incident are told with that one."""
    merged: dict[str, list[str]] = {}
    for document in documents:
        if document.get("merged_into"):
            merged.setdefault(str(document["merged_into"]), []).append(
                printable(f"{document['id']}: {headline(document)}")
            )
    known = {str(document["id"]) for document in documents}
    return [
        _verdict(document, tuple(merged.get(str(document["id"]), ())))
        for document in documents
        if document.get("merged_into") not in known
    ]


def suspected_ranks(documents: Iterable[Document]) -> list[int]:
    """Ranks that incidents name, in their order; of a suspected node all of its ranks."""
    found: list[int] = []
    for document in documents:
        for suspect in document.get("suspects") or ():
            if isinstance(suspect.get("rank"), int):
                found.append(suspect["rank"])
            elif suspect.get("ranks"):
                try:
                    found += parse_ranks(str(suspect["ranks"]))
                except ValueError:  # a document of another release
                    continue
    return list(dict.fromkeys(found))


def _verdict(document: Document, merged: tuple[str, ...]) -> Verdict:
    times = document.get("times") or {}
    severity = str(document.get("severity"))
    return Verdict(
        id=str(document["id"]),
        severity=severity if severity in _ORDER else "info",
        severity_words=_SEVERITY_WORDS.get(severity, severity),
        sentence=_sentence(document),
        is_open=document.get("state") == "open",
        onset_s=_onset(document),
        detected_s=times.get("detected"),
        resolved_s=times.get("resolved"),
        rows=tuple((title, printable(text)) for title, text in _rows(document)),
        evidence=tuple(
            (
                when(item.get("time")),
                printable(str(item.get("shows") or item.get("value") or "")),
                printable(f"{item.get('source')}: {item.get('signal')}"),
            )
            for item in document.get("evidence") or ()
        ),
        suspects=tuple(_suspect(each) for each in document.get("suspects") or ()),
        cleared=tuple(printable(line) for line in cleared_words(document.get("ruled_out") or ())),
        merged=merged,
    )


def _sentence(document: Document) -> str:
    """Who, what, where, because of what; since when, and whether it is over."""
    times = document.get("times") or {}
    since = f"since {when(times.get('onset'))} UTC"
    if times.get("resolved") is not None:
        since += f"; over at {when(times['resolved'])} UTC"
    elif document.get("state") == "open":
        since += "; not over"
    job = document.get("job") or {}
    name = str(job.get("name") or job.get("id") or "job unknown")
    now = _JOB_WORDS.get(str(job.get("now")), "")
    text = headline(document)
    return printable(f"{name}: {text}, {since}{f', {now}' if now else ''}.")


def _rows(document: Document) -> Iterator[tuple[str, str]]:
    advice = document.get("advice") or {}
    if advice.get("text"):
        yield "do this", f"{advice['text']} ({advice.get('action')})"
    yield "who", describe_suspects(document) or "nobody in particular"
    for suspect in document.get("suspects") or ():
        if place := describe_where(suspect):
            yield "where", f"{suspect.get('id')}: {place}" if len(document["suspects"]) > 1 else place
    job = document.get("job") or {}
    yield "job", ", ".join(f"{name} {job[name]}" for name in ("name", "id", "run", "owner") if job.get(name))
    yield "state", f"{document.get('state')}; {_JOB_WORDS.get(str(job.get('now')), 'how the job is, is not known')}"
    times = document.get("times") or {}
    onset, detected = times.get("onset"), times.get("detected")
    told = f", told after {max(0.0, detected - onset):.1f} s" if onset and detected else ""
    yield "since", f"{when(onset)} UTC{told}"
    first = document.get("first_bad") or {}
    if any(first.get(name) is not None for name in ("step", "operation")):
        named = ("step", "operation", "sequence", "group")
        yield "first bad", ", ".join(f"{name} {first[name]}" for name in named if first.get(name) is not None)
    victims = document.get("victims") or {}
    if victims.get("count"):
        yield "victims", f"{victims['count']}: ranks {victims.get('ranks')}"
    cost = (document.get("cost") or {}).get("gpu_seconds")
    yield "cost", "not known yet" if cost is None else f"{cost / 3600:.3f} GPU-hours ({cost:.0f} GPU-seconds)"
    if document.get("confidence") is not None:
        yield "confidence", f"{float(document['confidence']):.2f}: of ten that say 0.9, nine are right"
    if said := label_words(document.get("label")):
        yield "people say", f"{said} ({when(document['label'].get('time'))} UTC)"


def _suspect(suspect: Mapping[str, Any]) -> tuple[str, str, str]:
    """Who, where in the code, how likely."""
    who = printable(describe_suspects({"suspects": [suspect]}))
    probability = suspect.get("probability")
    likely = f"{float(probability):.0%}" if isinstance(probability, int | float) else "not told"
    return who, printable(describe_where(suspect)) or "not known", likely


def _jobs(document: Document) -> set[str]:
    named = [document.get("job") or {}, *(document.get("jobs") or ())]
    return {str(each.get("id")) for each in named}


def _severity(document: Document) -> int:
    return _ORDER.get(str(document.get("severity")), len(_ORDER))


def _onset(document: Document) -> float:
    return float((document.get("times") or {}).get("onset") or 0.0)
