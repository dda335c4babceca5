"""What whichrank puts on Kafka answers in Prometheus, in Loki, and where spans go, by the real parts of compose."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stack.parts.kafka import Kafka, Security
from tests.stack.parts.placing import REPOSITORY
from tests.stack.parts.service import eventually, get_json
from tests.stack.parts.whole_stack import Stack, assemble
from whichrank.telemetry import attributes as names
from whichrank.telemetry.histogram_table import HistogramTable
from whichrank.telemetry.incident import complete_document, incident_id
from whichrank.telemetry.metric_encode import (
    METRICS,
    Instrument,
    histogram_attributes,
    metric_entry,
    number_attributes,
    number_point,
)
from whichrank.telemetry.node_metrics import Instrument as NodeInstrument
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.otlp_wire import RequestBuilder, resource
from whichrank.telemetry.records import Identity, Incident, Point
from whichrank.telemetry.spans import TraceScope, rank_resource, step_spans
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.topics import TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.trace_identity import step_trace_id
from whichrank.telemetry.vocabulary import Kind, TimeBucket
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import KafkaTrouble

DASHBOARDS = REPOSITORY / "grafana" / "dashboards"
#: Of attributes by which panels choose; every other one is "used", which is what panels of storage ask for.
ASKED_FOR = {"whichrank.gpu.nvlink.state": "up"}
#: What counts began so long ago.
BEGAN_NS = time.time_ns() - 600 * 10**9


def publish(kafka: Kafka, topic: str, *values: bytes) -> None:
    producer = make_client(kafka.settings("admin")).producer()
    troubles: list[KafkaTrouble | None] = []
    for value in values:
        producer.send(topic, b"job", value, on_done=lambda _, trouble: troubles.append(trouble))
    assert producer.flush(60.0) == 0
    producer.close(5.0)
    assert troubles == [None] * len(values)


def metrics_message(*entries: bytes, service: str = "whichrank") -> bytes:
    builder = RequestBuilder("whichrank", 900_000)
    builder.add(resource({names.SERVICE_NAME: service}), entries)
    (message,) = builder.take()
    return message


def incident_gauge(job: str, identifier: str, value: int = 1, *, rank: str = "13", node: str = "node-02") -> bytes:
    attributes = number_attributes(
        {
            names.JOB_ID: job,
            names.INCIDENT_ID: identifier,
            names.INCIDENT_SEVERITY: "page",
            names.INCIDENT_BUCKET: "communication_hang",
            names.INCIDENT_KIND: "rank_not_entered",
            names.SUSPECT_RANK: rank,
            names.SUSPECT_NODE: node,
        }
    )
    point = number_point(attributes, value, time_ns=time.time_ns(), start_ns=time.time_ns() - 10**9)
    return metrics_message(metric_entry(names.METRIC_INCIDENT_ACTIVE, [point]))


def every_metric(job: str, node: str, now: int) -> list[bytes]:
    """A point of each metric that whichrank has, with all of its attributes; counters have grown since the last."""
    age_s = (now - BEGAN_NS) / 1e9
    entries = []
    for name, metric in METRICS.items():
        if name == names.METRIC_INCIDENT_ACTIVE:
            continue
        known = {names.JOB_ID: job, names.NODE_ID: node}
        values = {key: known.get(key, "1") for key in metric.attributes}
        if metric.instrument is Instrument.HISTOGRAM:
            table = HistogramTable(10)
            row = table.series("one", histogram_attributes(values), BEGAN_NS)
            table.record(np.full(round(age_s), row), np.full(round(age_s), 0.3))
            points = table.points(now)
        else:
            of_buckets = [{**values, names.GOODPUT_BUCKET: bucket.value} for bucket in TimeBucket]
            series = of_buckets if names.GOODPUT_BUCKET in values else [values]
            value = age_s if metric.instrument is Instrument.COUNTER else 2.0
            points = [number_point(number_attributes(each), value, time_ns=now, start_ns=BEGAN_NS) for each in series]
        entries.append(metric_entry(name, points))
    measured = [
        Point(
            name=name,
            value=age_s if metric.instrument is NodeInstrument.COUNTER else 2.0,
            attributes={key: ASKED_FOR.get(key, "used") for key in metric.attributes},
            time_ns=now,
            start_ns=BEGAN_NS,
        )
        for name, metric in node_metrics().items()
    ]
    of_node = encode_points(Identity(cluster="lab", node=node), measured, limit_bytes=900_000)
    return [metrics_message(*entries, service="whichrank-processors"), *of_node]


def incident(job: str, node: str = "node-02") -> Incident:
    now = time.time()
    return Incident(
        document=complete_document(
            {
                "id": incident_id(job, "a", Kind.RANK_NOT_ENTERED, "dp 97"),
                "revision": 1,
                "change": "opened",
                "state": "open",
                "severity": "page",
                "cluster": "lab",
                "job": {"id": job, "attempt": "a", "now": "running"},
                "bucket": "communication_hang",
                "kind": "rank_not_entered",
                "scope": "rank",
                "suspects": [{"scope": "rank", "id": "13", "rank": 13, "node": node, "probability": 0.97}],
                "times": {"onset": now, "detected": now, "attributed": now},
                "confidence": 0.97,
            }
        )
    )


def fresh_job() -> str:
    return f"job-{os.urandom(4).hex()}"


def alerts(stack: Stack, title: str, incident: str) -> list[dict[str, Any]]:
    """Of Prometheus, by its own rules: those that fire for this incident."""
    found = get_json(f"http://{stack.prometheus.address}/api/v1/alerts")["data"]["alerts"]
    return [
        a for a in found if (a["labels"]["alertname"], a["labels"].get("whichrank_incident_id")) == (title, incident)
    ]


def test_an_incident_fires_one_alert_whoever_is_suspected(stack: Stack) -> None:
    job, identifier = fresh_job(), os.urandom(6).hex()
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, identifier))
    eventually(lambda: bool(alerts(stack, "WhichrankIncident", identifier)), what="the alert fires")
    (alert,) = alerts(stack, "WhichrankIncident", identifier)
    assert alert["labels"] == {
        "alertname": "WhichrankIncident",
        "severity": "page",
        "whichrank_incident_id": identifier,
        "whichrank_incident_severity": "page",
        "whichrank_incident_bucket": "communication_hang",
    }
    told = {name: alert["annotations"][name] for name in ("kind", "job", "suspect_rank", "suspect_node")}
    assert told == {"kind": "rank_not_entered", "job": job, "suspect_rank": "13", "suspect_node": "node-02"}
    assert alert["annotations"]["dashboard"].endswith(f"var-incident={identifier}")
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, identifier, value=0))
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, identifier, rank="14"))

    def is_revised() -> bool:
        return [a["annotations"]["suspect_rank"] for a in alerts(stack, "WhichrankIncident", identifier)] == ["14"]

    eventually(is_revised, what="the same alert names the other rank")
    assert not alerts(stack, "WhichrankTicket", identifier)


def test_every_panel_answers_of_what_is_sent(stack: Stack) -> None:
    """Each metric that whichrank has, an incident and its document; every query of every dashboard."""
    job, node = fresh_job(), f"node-{os.urandom(2).hex()}"
    told = incident(job, node)
    identifier = str(told.document["id"])

    def measure() -> None:
        publish(stack.kafka, TOPIC_METRICS, *every_metric(job, node, time.time_ns()))

    measure()
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, identifier, node=node))
    publish(stack.kafka, TOPIC_LOGS, encode_payloads([told]))
    given = {"job": job, "node": node, "incident": identifier, "__rate_interval": "2m", "__range": "1h"}
    eventually(lambda: bool(stack.prometheus.query(f'whichrank_rank_step{{whichrank_job_id="{job}"}}')), what="metrics")
    eventually(lambda: bool(stack.loki.query(f'{{whichrank_job_id="{job}"}}')), what="the incident's event")

    def unanswered() -> set[tuple[str, str]]:
        return {
            (board["uid"], panel["title"])
            for board in dashboards()
            for panel in board["panels"]
            if panel.get("targets") and not any(answer(stack, target, given) for target in panel["targets"])
        }

    # Rates need points that keep coming, and what Prometheus works out comes every 30 s.
    deadline = time.monotonic() + 180.0
    while unanswered() != EMPTY and time.monotonic() < deadline:
        time.sleep(5.0)
        measure()
    assert unanswered() == EMPTY


#: What is empty where all is well: nothing was thrown away, nobody is blind, nobody has labelled the incident.
EMPTY = {
    ("whichrank-fleet", "Collectors that are blind"),
    ("whichrank-pipeline", "What people said"),
}


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))]


def answer(stack: Stack, target: dict[str, Any], given: dict[str, str]) -> list[Any]:
    """An error in the query raises."""
    question = target["expr"]
    for name, value in given.items():
        question = question.replace(f"${name}", value)
    return stack.loki.query(question) if target["datasource"]["uid"] == "loki" else stack.prometheus.query(question)


def test_an_incident_is_found_in_loki_with_its_whole_document(stack: Stack) -> None:
    told = incident(fresh_job())
    publish(stack.kafka, TOPIC_LOGS, encode_payloads([told]))
    found = logs_of(stack, told.document["job"]["id"])
    (stream,) = found
    ((_, line),) = stream["values"]
    assert json.loads(line) == told.document
    assert stream["stream"]["whichrank_incident_kind"] == "rank_not_entered"


def logs_of(stack: Stack, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def arrived() -> bool:
        found[:] = stack.loki.query(f'{{whichrank_job_id="{job}"}} | whichrank_incident_id != ""')
        return bool(found)

    eventually(arrived, what=f"the incident of {job} is in Loki")
    return found


def test_a_step_s_span_arrives_where_tempo_would_be(stack: Stack) -> None:
    job = fresh_job()
    send_step(stack, job)
    (span,) = spans_of(stack, job)
    trace = step_trace_id(job, "a", 41)
    assert span["traceId"] == (trace.hex() if isinstance(trace, bytes) else format(trace, "032x"))
    assert span["name"] == "step"
    assert span["resource"]["whichrank.rank"] == "5"


def send_step(stack: Stack, job: str) -> None:
    rows = np.zeros(1, STEPS)
    rows["rank"], rows["step"], rows["begin_ns"], rows["end_ns"] = 5, 41, 1_000, 300_001_000
    builder = RequestBuilder("whichrank", 900_000)
    scope = TraceScope(job=job, attempt="a", clock_offset_ns=time.time_ns())
    builder.add(rank_resource(Identity(job=job, attempt="a", node="node-02", rank=5)), step_spans(rows, scope))
    publish(stack.kafka, TOPIC_SPANS, *builder.take())


def spans_of(stack: Stack, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def arrived() -> bool:
        found[:] = [span for span in stack.tempo.spans() if span["resource"].get("whichrank.job.id") == job]
        return bool(found)

    eventually(arrived, what=f"a span of {job} has arrived")
    return found


@pytest.mark.parametrize("poison", [b"\xff" * 64, os.urandom(2048), b""], ids=["tags", "random", "empty"])
def test_what_is_no_otlp_holds_nobody_up(stack: Stack, poison: bytes) -> None:
    told, job = incident(fresh_job()), fresh_job()
    publish(stack.kafka, TOPIC_LOGS, poison, encode_payloads([told]))
    publish(stack.kafka, TOPIC_METRICS, poison, incident_gauge(job, "2f0c"))
    assert logs_of(stack, told.document["job"]["id"])
    question = f'whichrank_incident_active{{whichrank_job_id="{job}"}}'
    eventually(lambda: bool(stack.prometheus.query(question)), what="what came after the poison has arrived")


def test_a_prometheus_that_was_away_gets_what_it_missed_and_events_do_not_wait(stack: Stack) -> None:
    stack.prometheus.service.kill()
    told, job = incident(fresh_job()), fresh_job()
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, "3f0c"))
    publish(stack.kafka, TOPIC_LOGS, encode_payloads([told]))
    assert logs_of(stack, told.document["job"]["id"])
    stack.prometheus.service.start()
    question = f'last_over_time(whichrank_incident_active{{whichrank_job_id="{job}"}}[1h])'
    eventually(lambda: bool(stack.prometheus.query(question)), what="what Prometheus missed has arrived")


@pytest.fixture
def locked_stack(fresh_kafka: Callable[..., Kafka], tmp_path: Path) -> Iterator[Stack]:
    kafka = fresh_kafka(Security(tls=True, sasl=True))
    kafka.grant()
    stack = assemble(kafka, tmp_path)
    try:
        stack.start()
        yield stack
    finally:
        stack.kill()


def test_the_road_is_the_same_with_tls_and_passwords(locked_stack: Stack) -> None:
    told = incident(fresh_job())
    publish(locked_stack.kafka, TOPIC_LOGS, encode_payloads([told]))
    assert logs_of(locked_stack, told.document["job"]["id"])
    assert "collector" in locked_stack.kafka.passwords
