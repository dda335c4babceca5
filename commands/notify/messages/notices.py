"""What is said of an incident, the same for every receiver; each writes it in its own form. Pure functions.

Texts of jobs may hold anything: what looks like a secret is masked, what would break a line is a space.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ....telemetry.redaction import redact
from ....telemetry.vocabulary import IncidentState
from ...incident_text.incident_panel import (
    describe_cause,
    describe_kind,
    describe_place,
    describe_suspects,
    headline,
    printable,
)
from ...incident_text.utc_time import when
from .routes import Side, Urgency, side_of, urgency_of

_MAX_TITLE_CHARS, _MAX_ROW_CHARS = 300, 600


class AlertState(str, Enum):
    """How an incident stands at a receiver. Acknowledged: a person has said what it was."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """key: the name under which the receiver knows it; the incident's id, or of one that has merged into it.

    is_new: this opens it there. mark: "test" or "shadow" where nobody has to act. since: Unix seconds.
    """

    key: str
    incident: str
    revision: int
    standing: AlertState
    urgency: Urgency
    is_new: bool = False
    mark: str = ""
    title: str
    rows: tuple[tuple[str, str], ...]
    kind: str
    bucket: str
    suspect: str
    cluster: str
    job: str
    owner: str
    since: float
    merged_into: str = ""
    link: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """What a person wants to hear of when it changes: who, what, why, how urgent."""
        words = [self.standing.value, self.urgency.value, self.title, self.kind, self.suspect, self.merged_into]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def standing_of(document: Mapping[str, Any]) -> AlertState:
    if document.get("state") != IncidentState.OPEN.value or urgency_of(document) is None:
        return AlertState.CLOSED
    return AlertState.ACKNOWLEDGED if document.get("label") else AlertState.OPEN


def notice_of(
    document: Mapping[str, Any],
    *,
    key: str = "",
    link: str = "",
    cluster: str = "",
    mark: str = "",
    is_new: bool = False,
) -> Notice:
    """link: with {incident} in it. cluster: where the document names none."""
    job = document.get("job") or {}
    incident = str(document["id"])
    return Notice(
        key=key or incident,
        incident=incident,
        revision=int(document["revision"]),
        standing=standing_of(document),
        urgency=urgency_of(document) or Urgency.TICKET,
        is_new=is_new,
        mark=mark,
        title=_clean(f"{_job_words(job)}: {headline(document)}", _MAX_TITLE_CHARS),
        rows=tuple((name, _clean(text, _MAX_ROW_CHARS)) for name, text in _rows(document)),
        kind=str(document.get("kind")),
        bucket=str(document.get("bucket")),
        suspect=_clean(describe_suspects(document), _MAX_ROW_CHARS),
        cluster=_clean(str(document.get("cluster") or cluster), 100),
        job=_clean(_job_words(job), 200),
        owner=_clean(str(job.get("owner") or ""), 100),
        since=float((document.get("times") or {}).get("onset") or 0.0),
        merged_into=str(document.get("merged_into") or ""),
        link=link.replace("{incident}", incident),
        document=document,
    )


def digest_of(document: Mapping[str, Any]) -> str:
    """Of all that a receiver is told: while it stays, a later revision is no news to it."""
    return notice_of(document).topic


def withheld_notice(
    key: str,
    urgency: Urgency,
    incidents: Mapping[str, str],
    count: int,
    *,
    cluster: str,
    since: float,
    standing: AlertState,
    mark: str = "",
    is_new: bool = False,
) -> Notice:
    """One word for all that a limit has held back within an hour. incidents: title by id, of the first ones."""
    rows = [(id_, title) for id_, title in incidents.items()]
    if count > len(rows):
        rows.append(("and", f"{count - len(rows)} more: whichrank incidents"))
    return Notice(
        key=key,
        incident=key,
        revision=count,
        standing=standing,
        urgency=urgency,
        is_new=is_new,
        mark=mark,
        title=f"{count} more incidents ({urgency.value}) are not told one by one: the limit of this hour is reached",
        rows=tuple((name, _clean(text, _MAX_ROW_CHARS)) for name, text in rows),
        kind="withheld",
        bucket="telemetry",
        suspect="",
        cluster=cluster,
        job="",
        owner="",
        since=since,
    )


def test_notice(name: str, now: float, cluster: str, standing: AlertState) -> Notice:
    """What ``--test`` sends."""
    return Notice(
        key=f"whichrank-test-{name}-{int(now)}",
        incident=f"whichrank-test-{name}-{int(now)}",
        revision=1,
        standing=standing,
        urgency=Urgency.TICKET,
        is_new=standing is AlertState.OPEN,
        mark="test",
        title="whichrank notify --test: this is a test, nothing has happened",
        rows=(("what", f"receiver {name} can be reached"),),
        kind="test",
        bucket="telemetry",
        suspect="",
        cluster=cluster,
        job="",
        owner="",
        since=now,
    )


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "who", describe_suspects(document) or "nobody in particular"
    yield "what", f"{describe_kind(document)} ({document.get('bucket')} / {document.get('kind')})"
    if place := describe_place(document):
        yield "where", place
    if cause := describe_cause(document):
        yield "because of", cause
    advice = document.get("advice") or {}
    if advice.get("action"):
        yield "do", f"{advice['action']}: {advice.get('text') or ''}"
    job = document.get("job") or {}
    owner = f", owner {job['owner']}" if job.get("owner") else ""
    yield "job", _job_words(job) + owner + (f", {job['now']}" if job.get("now") else "")
    others = len(document.get("jobs") or ())
    if others > 1:
        yield "jobs", f"{others} are concerned"
    times = document.get("times") or {}
    yield "since", f"{when(times.get('onset'))} UTC"
    if times.get("resolved") is not None:
        yield "ended", f"{when(times['resolved'])} UTC"
    for item in list(document.get("evidence") or ())[:3]:
        yield "why", f"{item.get('shows') or item.get('value')}"
    if document.get("confidence") is not None:
        yield "confidence", f"{float(document['confidence']):.2f}"
    if label := document.get("label"):
        yield "a person says", "it is wrong" if label.get("wrong") else f"the cause is {label.get('cause')}"
    if document.get("merged_into"):
        yield "merged into", str(document["merged_into"])
    yield "side", "the program" if side_of(document) is Side.APPLICATION else "operations"


def _job_words(job: Mapping[str, Any]) -> str:
    name, id_ = job.get("name"), job.get("id")
    return f"{name} ({id_})" if name and id_ else str(name or id_ or "no job")


def _clean(text: str, most: int) -> str:
    clean = redact(printable(text))
    return clean if len(clean) <= most else clean[: most - 1] + "…"
