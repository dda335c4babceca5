"""Incidents in words for the page: one sentence each, then what a person asks next. Prints ``IncidentView``s. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.told_ranks import read_ranks
from ...telemetry.vocabulary import IncidentState
from ..incident_text.incident_view import IncidentView, headline, incident_view, printable
from ..incident_text.utc_time import when

_ORDER = {"page": 0, "ticket": 1, "info": 2}
_SEVERITY_WORDS = {
    "page": "page: somebody is needed now",
    "ticket": "ticket: look at it by day",
    "info": "for information",
}
_JOB_WORDS = {"running": "the job runs", "restarting": "the job is restarting", "stopped": "the job has stopped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentVerdict:
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


def last_revisions(incidents: Iterable[IncidentDocument], job: str) -> list[IncidentDocument]:
    """The last revision of each incident of the job ("": of any): the worst first, open ones before others."""
    last = {incident.id: incident for incident in incidents}
    mine = [incident for incident in last.values() if not job or job in _jobs(incident)]
    return sorted(
        mine,
        key=lambda each: (_severity(each), each.state is not IncidentState.OPEN, each.times.onset_s, each.id),
    )


def worst_job(incidents: Iterable[IncidentDocument]) -> str:
    """Id of the job whose incident is the worst; "" without any."""
    for incident in last_revisions(incidents, ""):
        if incident.state is not IncidentState.MERGED and incident.job.id:
            return incident.job.id
    return ""


def verdicts(incidents: Sequence[IncidentDocument]) -> list[IncidentVerdict]:
    """The incidents in words for the page. incidents: last revisions.

    Those that went into another one that is here are told with that one.
    """
    merged: dict[str, list[str]] = {}
    for incident in incidents:
        if incident.merged_into:
            merged.setdefault(incident.merged_into, []).append(printable(f"{incident.id}: {headline(incident)}"))
    known = {incident.id for incident in incidents}
    return [
        _verdict(incident_view(incident), tuple(merged.get(incident.id, ())))
        for incident in incidents
        if incident.merged_into not in known
    ]


def suspected_ranks(incidents: Iterable[IncidentDocument]) -> list[int]:
    """Ranks that incidents name, in their order; of a suspected node all of its ranks."""
    found: list[int] = []
    for incident in incidents:
        for suspect in incident.suspects:
            if suspect.rank is not None:
                found.append(suspect.rank)
            elif suspect.ranks:
                try:
                    found += read_ranks(suspect.ranks)
                except ValueError:  # a document of another release
                    continue
    return list(dict.fromkeys(found))


def _verdict(view: IncidentView, merged: tuple[str, ...]) -> IncidentVerdict:
    return IncidentVerdict(
        id=view.id,
        severity=view.severity if view.severity in _ORDER else "info",
        severity_words=_SEVERITY_WORDS.get(view.severity, view.severity),
        sentence=_sentence(view),
        is_open=view.state == IncidentState.OPEN.value,
        onset_s=view.times.onset_s,
        detected_s=view.times.detected_s,
        resolved_s=view.times.resolved_s,
        rows=tuple((title, printable(text)) for title, text in _rows(view)),
        evidence=tuple((when(row.time_s), printable(row.shows), printable(row.seen_in)) for row in view.why),
        suspects=tuple(
            (
                printable(row.who),
                printable(row.where) or "not known",
                "not told" if row.probability is None else f"{row.probability:.0%}",
            )
            for row in view.suspects
        ),
        cleared=tuple(map(printable, view.cleared)),
        merged=merged,
    )


def _sentence(view: IncidentView) -> str:
    """Who, what, where, because of what; since when, and whether it is over."""
    since = f"since {when(view.times.onset_s)} UTC"
    if view.times.resolved_s is not None:
        since += f"; over at {when(view.times.resolved_s)} UTC"
    elif view.state == IncidentState.OPEN.value:
        since += "; not over"
    now = _JOB_WORDS.get(view.job.now or "", "")
    return printable(f"{view.job_name or 'job unknown'}: {view.headline}, {since}{f', {now}' if now else ''}.")


def _rows(view: IncidentView) -> Iterator[tuple[str, str]]:
    if view.advice_text:
        yield "do this", f"{view.advice_text} ({view.advice_action})"
    yield "who", view.who_or_nobody
    for row in view.suspects:
        if row.where:
            yield "where", f"{row.id}: {row.where}" if len(view.suspects) > 1 else row.where
    yield "job", view.job_facts("name", "id", "run", "owner")
    yield "state", f"{view.state}; {_JOB_WORDS.get(view.job.now or '', 'how the job is, is not known')}"
    after_s = view.seen_after_s
    yield "since", f"{when(view.times.onset_s)} UTC" + ("" if after_s is None else f", told after {after_s:.1f} s")
    if view.first_bad.step is not None or view.first_bad.operation is not None:
        yield "first bad", view.first_bad_facts("step", "operation", "sequence", "group")
    if view.victims.count:
        yield "victims", f"{view.victims.count}: ranks {view.victims.ranks}"
    cost_s = view.cost_gpu_s
    yield "cost", "not known yet" if cost_s is None else f"{cost_s / 3600:.3f} GPU-hours ({cost_s:.0f} GPU-seconds)"
    if view.confidence_text:
        yield "confidence", f"{view.confidence_text}: of ten that say 0.9, nine are right"
    if view.people_say:
        yield "people say", f"{view.people_say} ({when(view.said_s)} UTC)"


def _jobs(incident: IncidentDocument) -> set[str]:
    return {str(id_) for id_ in (incident.job.id, *(job.id for job in incident.jobs))}


def _severity(incident: IncidentDocument) -> int:
    return _ORDER.get(word_of(incident.severity), len(_ORDER))
