"""Incidents as events and spans, decoded with opentelemetry-proto: what people see is what the document says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from whichrank.telemetry.incident_events import (
    SpanPlace,
    incident_attributes,
    incident_event,
    incident_resource,
    incident_span,
    incident_time_ns,
    is_over,
    sentence,
)
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.otlp_wire import RequestBuilder
from whichrank.telemetry.records import Incident

BAD_STEP = SpanPlace(trace_id=bytes(range(16)), span_id=0x0123_4567_89AB_CDEF)


def document(change: str = "opened", **others: Any) -> dict[str, Any]:
    ended = change in ("resolved", "merged")
    return {
        "id": "1f0c",
        "revision": {"opened": 1, "updated": 2, "reopened": 4}.get(change, 3),
        "change": change,
        "state": change if ended else "open",
        "severity": "page",
        "cluster": "lab",
        "job": {"run": "r", "id": "job-7", "name": "llama", "attempt": "a1", "owner": None, "now": "running"},
        "bucket": "immediate_crash",
        "kind": "rank_died",
        "scope": "rank",
        "suspects": [{"scope": "rank", "id": "3", "rank": 3, "node": "node-02", "gpu": None, "probability": 0.99}],
        "first_bad": {"step": 41, "group": None, "sequence": None, "operation": None},
        "times": {"onset": 1000.25, "detected": 1000.5, "attributed": 1000.5, "resolved": 1090.0 if ended else None},
        "confidence": 0.99,
        **others,
    }


def request(entry: bytes, resource: bytes = b"") -> bytes:
    builder = RequestBuilder("whichrank", 900_000)
    builder.add(resource, [entry])
    (raw,) = builder.take()
    return raw


def event_of(of: dict[str, Any], bad_step: SpanPlace | None = None) -> LogRecord:
    decoded = ExportLogsServiceRequest.FromString(request(incident_event(of, bad_step)))
    return decoded.resource_logs[0].scope_logs[0].log_records[0]


def span_of(of: dict[str, Any], bad_step: SpanPlace | None = None) -> Span:
    decoded = ExportTraceServiceRequest.FromString(request(incident_span(of, bad_step)))
    return decoded.resource_spans[0].scope_spans[0].spans[0]


def plain(holder: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes}


def test_a_revision_is_an_event_that_leads_to_the_step() -> None:
    record = event_of(document(), BAD_STEP)
    assert record.event_name == "whichrank.incident.opened"
    assert (record.time_unix_nano, record.severity_number, record.severity_text) == (1000_500_000_000, 17, "ERROR")
    assert record.body.string_value == "rank_died: suspect rank 3 at step 41 (immediate_crash, opened)"
    assert (record.trace_id, record.span_id) == (bytes(range(16)), bytes.fromhex("efcdab8967452301"))
    shown = plain(record)
    assert json.loads(shown.pop("whichrank.incident.document")) == document()
    assert shown == {
        "whichrank.incident.id": "1f0c",
        "whichrank.incident.revision": 1,
        "whichrank.incident.state": "open",
        "whichrank.incident.severity": "page",
        "whichrank.incident.bucket": "immediate_crash",
        "whichrank.incident.kind": "rank_died",
        "whichrank.incident.scope": "rank",
        "whichrank.incident.confidence": 0.99,
        "whichrank.incident.suspect.rank": 3,
        "whichrank.incident.suspect.node": "node-02",
        "whichrank.cluster.id": "lab",
        "whichrank.run.id": "r",
        "whichrank.job.id": "job-7",
        "whichrank.job.name": "llama",
        "whichrank.job.attempt": "a1",
        "whichrank.step": 41,
    }


def test_the_sdk_and_we_say_the_same_of_severity() -> None:
    numbers = [event_of(document(severity=word)).severity_number for word in ("page", "ticket", "info", "new word")]
    assert numbers == [17, 13, 9, 9]
    assert event_of(document("resolved")).severity_number == 9


def test_a_program_reads_the_document_back_from_either_topic() -> None:
    for raw in (request(incident_event(document())), encode_payloads([Incident(document=document())])):
        (payload,) = decode_logs("otlp_logs", raw)
        assert isinstance(payload, Incident)
        assert payload.document == document()


def test_a_life_is_a_span_from_onset_to_end() -> None:
    resolved = document("resolved")
    span = span_of(resolved, BAD_STEP)
    assert is_over(resolved)
    assert span.name == "incident rank_died"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1000_250_000_000, 1090_000_000_000)
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, sentence(resolved))
    assert [(link.trace_id, link.span_id.hex()) for link in span.links] == [(bytes(range(16)), "efcdab8967452301")]
    assert plain(span)["whichrank.incident.id"] == "1f0c"
    assert "whichrank.incident.document" not in plain(span)
    # Told again, it is the same span; ended a second time, it is another one of the same trace.
    again, later = span_of(document("resolved")), span_of(document("resolved", revision=5))
    assert (again.trace_id, again.span_id) == (span.trace_id, span.span_id)
    assert later.trace_id == span.trace_id
    assert later.span_id != span.span_id


@pytest.mark.parametrize("change", ["opened", "updated", "reopened"])
def test_what_goes_on_is_not_over(change: str) -> None:
    assert not is_over(document(change))


def test_without_a_step_the_event_is_in_the_incidents_own_trace() -> None:
    assert event_of(document()).trace_id == span_of(document("resolved")).trace_id


def test_time_of_the_event_is_the_time_of_its_news() -> None:
    times = {"onset": 3.0, "detected": 5.5, "attributed": 6.0, "resolved": 9.0}
    assert incident_time_ns(document(times=times)) == 5_500_000_000
    assert incident_time_ns(document("resolved", times=times)) == 9_000_000_000
    assert incident_time_ns(document("updated", times={"attributed": 6.0})) == 6_000_000_000
    assert incident_time_ns({"change": "opened"}) == 0


def test_what_is_unknown_is_left_out() -> None:
    unknown = {"id": "1", "change": "opened", "kind": "deadlock", "bucket": "communication_hang", "suspects": []}
    shown = incident_attributes(unknown)
    assert "whichrank.incident.suspect.rank" not in shown
    assert "whichrank.job.id" not in shown
    assert sentence(unknown) == "deadlock: suspect nobody (communication_hang, opened)"
    assert event_of(unknown).event_name == "whichrank.incident.opened"
    assert span_of({**unknown, "change": "resolved"}).start_time_unix_nano == 0


@pytest.mark.parametrize(
    ("job", "service"),
    [({"id": "job-7", "name": "llama"}, "llama"), ({"id": "job-7"}, "job-7"), (None, "whichrank")],
)
def test_the_resource_is_the_job(job: dict[str, str] | None, service: str) -> None:
    raw = request(incident_event(document(job=job)), incident_resource(document(job=job)))
    found = plain(ExportLogsServiceRequest.FromString(raw).resource_logs[0].resource)
    assert found["service.name"] == service
    assert found.get("whichrank.job.id") == (job or {}).get("id")
