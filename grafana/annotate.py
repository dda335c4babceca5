"""Incidents as annotations: a region from onset to end, found again by its tag, so that a restart writes none twice."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ..telemetry.vocabulary import IncidentState
from .elements.dashboard import TAG
from .site import GrafanaSite

MAX_TEXT = 2000
#: Of a job's tag, in characters, and jobs of one incident that are tags.
MAX_TAG, MAX_JOBS = 256, 500


def tag_of(incident: str) -> str:
    """The tag by which an incident's annotation is found again."""
    return f"incident:{incident}"


def put(site: GrafanaSite, document: Mapping[str, Any], about: str) -> str:
    """Makes the annotation of this incident, or changes it. about: one sentence.

    Returns "made" or "changed"; "" nothing.

    An incident that merged ends where it merged; its leader's region goes on. Raises GrafanaTrouble.
    """
    begin_ms, end_ms = _span_ms(document)
    tags = tags_of(document)
    text = text_of(document, about)
    there = site.annotations([tag_of(str(document["id"]))])
    if not there:
        site.annotate(begin_ms=begin_ms, end_ms=end_ms, tags=tags, text=text)
        return "made"
    known = there[0]
    # Grafana tells a region that has no end as one that ends where it begins.
    same_end = (known.get("timeEnd") or 0) in ((end_ms,) if end_ms is not None else (0, begin_ms, known.get("time")))
    # Tags that people added stay.
    kept = [*tags, *(tag for tag in known.get("tags", ()) if tag not in tags and not _is_ours(tag))]
    if same_end and known.get("text") == text and sorted(known.get("tags", ())) == sorted(kept):
        return ""
    site.change_annotation(int(known["id"]), begin_ms=begin_ms, end_ms=end_ms, tags=kept, text=text)
    return "changed"


def tags_of(document: Mapping[str, Any]) -> list[str]:
    """The tags of an incident's annotation, by which dashboards choose: ``whichrank``, ``incident:ID``, ``kind:KIND``,
    ``severity:WORD`` and ``job:ID`` for each job. Raises KeyError for a document without an id.
    """
    job = document.get("job") or {}
    jobs = {str(each.get("id")) for each in document.get("jobs") or () if each.get("id")} | {str(job.get("id") or "")}
    return [
        TAG,
        tag_of(str(document["id"])),
        f"kind:{document.get('kind')}"[:MAX_TAG],
        f"severity:{document.get('severity')}"[:MAX_TAG],
        *sorted(f"job:{name}"[:MAX_TAG] for name in jobs - {""})[:MAX_JOBS],
    ]


def text_of(document: Mapping[str, Any], about: str) -> str:
    """The text of an incident's annotation, with a link to its page. about: one sentence; it is escaped.

    Grafana shows annotations as HTML.
    """
    plain = about.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    state = html.escape(str(document.get("state")))
    identifier = str(document["id"])
    shown, address = html.escape(identifier), quote(identifier, safe="")
    return f'{plain[:MAX_TEXT]} ({state}) <a href="/d/whichrank-incident?var-incident={address}">{shown}</a>'


def _span_ms(document: Mapping[str, Any]) -> tuple[int, int | None]:
    times = document.get("times") or {}
    begin = float(times.get("onset") or times.get("detected") or 0.0)
    over = document.get("state") != IncidentState.OPEN.value
    end = float(times.get("resolved") or times.get("attributed") or times.get("detected") or begin)
    return int(begin * 1000), max(int(end * 1000), int(begin * 1000)) if over else None


def _is_ours(tag: str) -> bool:
    return tag == TAG or tag.partition(":")[0] in ("incident", "kind", "severity", "job")
