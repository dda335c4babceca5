"""An incident for telemetry back ends: each revision as a log event, its life as a span. Documents in, bytes out.

The event's trace is that of the first bad step where that is known, so that one click leads from the line to the step;
the life is a span of a trace of its own that links there. The names are the same wherever an incident is told (here,
and by the SDK in ``commands/run/otlp_export``). Pure functions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import attributes as names
from .otlp_wire import attributes, bytes_field, entry, fixed64_field, resource, text_field, varint_field
from .trace_identity import STEP, incident_trace_id, span_ids, trace_word
from .vocabulary import Change, EventName, IncidentState, Severity

_NS_PER_S = 1_000_000_000
#: OTLP's ERROR, WARN and INFO.
SEVERITY_NUMBERS = {Severity.PAGE.value: 17, Severity.TICKET.value: 13, Severity.INFO.value: 9}
_SEVERITY_WORDS = {17: "ERROR", 13: "WARN", 9: "INFO"}

#: Field numbers of LogRecord (opentelemetry/proto/logs/v1/logs.proto); 1 is the string of an AnyValue.
_LOG_TIME, _LOG_SEVERITY, _LOG_SEVERITY_TEXT, _LOG_BODY, _LOG_ATTRIBUTES = 1, 2, 3, 5, 6
_LOG_TRACE_ID, _LOG_SPAN_ID, _LOG_EVENT_NAME = 9, 10, 12
#: Of Span, its Link and its Status (opentelemetry/proto/trace/v1/trace.proto).
_TRACE_ID, _SPAN_ID, _NAME, _KIND, _START, _END, _ATTRIBUTES, _LINKS, _STATUS = 1, 2, 5, 6, 7, 8, 9, 13, 15
_INTERNAL, _ERROR = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlace:
    """A span somewhere: 16 bytes and a number of 64 bits."""

    trace_id: bytes
    span_id: int


def severity_number(document: Mapping[str, Any]) -> int:
    """OTLP's number for an incident's severity; that of information once it is resolved, and for unknown ones."""
    if document.get("state") == IncidentState.RESOLVED.value:
        return SEVERITY_NUMBERS[Severity.INFO.value]
    return SEVERITY_NUMBERS.get(str(document.get("severity")), SEVERITY_NUMBERS[Severity.INFO.value])


def event_name(document: Mapping[str, Any]) -> str:
    """Name of the event of an incident's revision: ``whichrank.incident.opened`` and so on.

    Raises KeyError for a document without a change.
    """
    return f"{EventName.INCIDENT.value}.{document['change']}"


def sentence(document: Mapping[str, Any]) -> str:
    """One line for log viewers on an incident: kind, suspects, step, bucket and what has changed."""
    suspects = document.get("suspects") or ()
    who = ", ".join(f"{suspect.get('scope')} {suspect.get('id')}" for suspect in suspects) or "nobody"
    first_bad = document.get("first_bad") or {}
    step = first_bad.get("step")
    where = "" if step is None else f" at step {step}"
    return f"{document.get('kind')}: suspect {who}{where} ({document.get('bucket')}, {document.get('change')})"


def incident_attributes(document: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Attributes of an incident event: what people filter on, and the whole document as JSON."""
    job = document.get("job") or {}
    suspect: Mapping[str, Any] = next(iter(document.get("suspects") or ()), {})
    first_bad = document.get("first_bad") or {}
    found = {
        names.INCIDENT_ID: document.get("id"),
        names.INCIDENT_REVISION: document.get("revision"),
        names.INCIDENT_STATE: document.get("state"),
        names.INCIDENT_SEVERITY: document.get("severity"),
        names.INCIDENT_BUCKET: document.get("bucket"),
        names.INCIDENT_KIND: document.get("kind"),
        names.INCIDENT_SCOPE: document.get("scope"),
        names.INCIDENT_CONFIDENCE: document.get("confidence"),
        names.SUSPECT_RANK: suspect.get("rank"),
        names.SUSPECT_NODE: suspect.get("node"),
        names.SUSPECT_GPU: suspect.get("gpu"),
        names.CLUSTER_ID: document.get("cluster"),
        names.RUN_ID: job.get("run"),
        names.JOB_ID: job.get("id"),
        names.JOB_NAME: job.get("name"),
        names.JOB_ATTEMPT: job.get("attempt"),
        names.JOB_OWNER: job.get("owner_id"),
        names.STEP: first_bad.get("step"),
        names.INCIDENT_DOCUMENT: json.dumps(document, separators=(",", ":"), default=str),
    }
    return {name: value for name, value in found.items() if value is not None and value != ""}


def incident_time_ns(document: Mapping[str, Any]) -> int:
    """When this revision's news happened, Unix ns: the end for a resolved one, else the newest time known; 0: none."""
    times = document.get("times") or {}
    order = ("resolved", "attributed", "detected") if document.get("change") != "opened" else ("detected", "onset")
    seconds = next((times[name] for name in order if times.get(name) is not None), None)
    return 0 if seconds is None else int(float(seconds) * _NS_PER_S)  # a text would be repeated so often


def incident_resource(document: Mapping[str, Any]) -> bytes:
    """Serialized OTLP Resource of an incident: its job, or whichrank where it is of none."""
    job = document.get("job") or {}
    return resource(
        {
            names.SERVICE_NAME: _word(job.get("name") or job.get("id")) or names.SCOPE_NAME,
            names.CLUSTER_ID: _word(document.get("cluster")),
            names.RUN_ID: _word(job.get("run")),
            names.JOB_OWNER: _word(job.get("owner_id")),
            names.JOB_ID: _word(job.get("id")),
            names.JOB_ATTEMPT: _word(job.get("attempt")),
        }
    )


def incident_event(document: Mapping[str, Any], bad_step: SpanPlace | None = None) -> bytes:
    """This revision as a LogRecord, an entry for ``RequestBuilder``.

    bad_step: the suspect's span of the first bad step.
    """
    number = severity_number(document)
    place = bad_step or incident_place(document)
    return entry(
        fixed64_field(_LOG_TIME, incident_time_ns(document))
        + varint_field(_LOG_SEVERITY, number)
        + text_field(_LOG_SEVERITY_TEXT, _SEVERITY_WORDS[number])
        + bytes_field(_LOG_BODY, text_field(1, sentence(document)))
        + attributes(_LOG_ATTRIBUTES, incident_attributes(document))
        + bytes_field(_LOG_TRACE_ID, place.trace_id)
        + bytes_field(_LOG_SPAN_ID, _span_id(place))
        + text_field(_LOG_EVENT_NAME, event_name(document))
    )


def is_over(document: Mapping[str, Any]) -> bool:
    """Whether an incident's life can be told as a span: it has ended, by itself or in another one."""
    return document.get("change") in (Change.RESOLVED.value, Change.MERGED.value)


def incident_place(document: Mapping[str, Any]) -> SpanPlace:
    """Trace and span id of the span of an incident's life.

    One that is reopened has another span when it ends again.
    """
    trace_id = incident_trace_id(str(document.get("id")))
    revision = int(document.get("revision") or 0) if is_over(document) else 0
    return SpanPlace(trace_id=trace_id, span_id=int(span_ids(trace_word(trace_id), STEP, 0, revision)[0]))


def incident_span(document: Mapping[str, Any], bad_step: SpanPlace | None = None) -> bytes:
    """An incident's life, from onset to this revision's time, as a span; an entry for ``RequestBuilder``.

    bad_step: the suspect's span of the first bad step, to which it links.
    """
    place = incident_place(document)
    end_ns = incident_time_ns(document)
    onset_s = (document.get("times") or {}).get("onset")
    begin_ns = min(int(float(onset_s) * _NS_PER_S), end_ns) if onset_s is not None else end_ns
    shown = incident_attributes(document)
    del shown[names.INCIDENT_DOCUMENT]  # told by its events
    link = b""
    if bad_step is not None:
        inside = bytes_field(1, bad_step.trace_id) + bytes_field(2, _span_id(bad_step))
        link = bytes_field(_LINKS, inside)
    return entry(
        bytes_field(_TRACE_ID, place.trace_id)
        + bytes_field(_SPAN_ID, _span_id(place))
        + text_field(_NAME, f"incident {document.get('kind')}")
        + varint_field(_KIND, _INTERNAL)
        + fixed64_field(_START, begin_ns)
        + fixed64_field(_END, end_ns)
        + attributes(_ATTRIBUTES, shown)
        + link
        + bytes_field(_STATUS, text_field(2, sentence(document)) + varint_field(3, _ERROR))
    )


_pack_span_id = struct.Struct("<Q").pack


def _span_id(place: SpanPlace) -> bytes:
    return _pack_span_id(place.span_id)


def _word(value: Any) -> str:
    return "" if value is None else str(value)
