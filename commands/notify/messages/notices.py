"""What is said of an incident, the same for every receiver; each writes it in its own form. Pure functions.

Texts of jobs may hold anything: what looks like a secret is masked, what would break a line is a space.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ....telemetry.incident_document import IncidentDocument
from ....telemetry.redaction import redact
from ....telemetry.vocabulary import IncidentState
from ...incident_text.incident_view import IncidentView, incident_view, printable
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
    document: IncidentDocument | None = None

    @property
    def topic(self) -> str:
        """A digest of what a person wants to hear of when it changes: who, what, why, how urgent."""
        words = [self.standing.value, self.urgency.value, self.title, self.kind, self.suspect, self.merged_into]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def standing_of(incident: IncidentDocument) -> AlertState:
    """How an incident stands: closed, where nobody has to be told.

    Acknowledged, where a person has said anything of it.
    """
    if incident.state is not IncidentState.OPEN or urgency_of(incident) is None:
        return AlertState.CLOSED
    return AlertState.ACKNOWLEDGED if incident.label is not None else AlertState.OPEN


def notice_of(
    incident: IncidentDocument,
    *,
    key: str = "",
    link: str = "",
    cluster: str = "",
    mark: str = "",
    is_new: bool = False,
) -> Notice:
    """What a receiver is told of an incident. key "": its id. link: a URL with {incident} in it.

    cluster: where the document names none. mark: "test" or "shadow". is_new: this opens it there.
    """
    view = incident_view(incident)
    job = _job_words(view)
    return Notice(
        key=key or view.id,
        incident=view.id,
        revision=view.revision,
        standing=standing_of(incident),
        urgency=urgency_of(incident) or Urgency.TICKET,
        is_new=is_new,
        mark=mark,
        title=_clean(f"{job}: {view.headline}", _MAX_TITLE_CHARS),
        rows=tuple((name, _clean(text, _MAX_ROW_CHARS)) for name, text in _rows(view, incident)),
        kind=_clean(view.kind, 100),
        bucket=_clean(view.bucket, 100),
        suspect=_clean(view.who, _MAX_ROW_CHARS),
        cluster=_clean(view.cluster or cluster, 100),
        job=_clean(job, 200),
        owner=_clean(view.job.owner or "", 100),
        since=view.times.onset_s,
        merged_into=_clean(view.merged_into, 100),
        link=link.replace("{incident}", view.id),
        document=incident,
    )


def digest_of(incident: IncidentDocument) -> str:
    """A digest of all that a receiver is told: while it stays, a later revision is no news to it."""
    return notice_of(incident).topic


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
    """One notice for all that a limit has held back within an hour. since: Unix seconds.

    incidents: title by id, of the first ones; count: of all.
    """
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
    """The notice that ``--test`` sends to the receiver ``name``. now: Unix seconds."""
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


def _rows(view: IncidentView, incident: IncidentDocument) -> Iterator[tuple[str, str]]:
    yield "who", view.who_or_nobody
    yield "what", f"{view.what} ({view.bucket} / {view.kind})"
    if view.place:
        yield "where", view.place
    if view.because:
        yield "because of", view.because
    if view.advice_action:
        yield "do", f"{view.advice_action}: {view.advice_text}"
    owner = f", owner {view.job.owner}" if view.job.owner else ""
    yield "job", _job_words(view) + owner + (f", {view.job.now}" if view.job.now else "")
    if view.job_count > 1:
        yield "jobs", f"{view.job_count} are concerned"
    yield "since", f"{when(view.times.onset_s)} UTC"
    if view.times.resolved_s is not None:
        yield "ended", f"{when(view.times.resolved_s)} UTC"
    for row in view.why[:3]:
        yield "why", row.shows
    if view.confidence_text:
        yield "confidence", view.confidence_text
    if incident.label is not None:
        yield "a person says", "it is wrong" if incident.label.wrong else f"the cause is {incident.label.cause}"
    if view.merged_into:
        yield "merged into", view.merged_into
    yield "side", "the program" if side_of(incident) is Side.APPLICATION else "operations"


def _job_words(view: IncidentView) -> str:
    name, id_ = view.job.name, view.job.id
    return f"{name} ({id_})" if name and id_ else name or id_ or "no job"


def _clean(text: str, most: int) -> str:
    clean = printable(redact(text))  # in this order: a space in place of what is not seen would hide a name
    return clean if len(clean) <= most else clean[: most - 1] + "…"
