"""What whichrank puts on Kafka answers in Prometheus, in Loki, and where spans go, by the real parts of compose."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.stack.parts.kafka import Kafka, Security
from tests.stack.parts.placing import DEPLOY
from tests.stack.parts.service import eventually
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
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.otlp_wire import RequestBuilder, resource
from whichrank.telemetry.records import Identity, Incident
from whichrank.telemetry.spans import TraceScope, rank_resource, step_spans
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.topics import TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.trace_identity import step_trace_id
from whichrank.telemetry.vocabulary import Kind
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import KafkaTrouble

DASHBOARD = DEPLOY / "grafana" / "dashboards" / "whichrank-overview.json"
ALERTS = DEPLOY / "grafana" / "provisioning" / "alerting" / "incidents.yaml"


def publish(kafka: Kafka, topic: str, *values: bytes) -> None:
    producer = make_client(kafka.settings("admin")).producer()
    troubles: list[KafkaTrouble | None] = []
    for value in values:
        producer.send(topic, b"job", value, on_done=lambda _, trouble: troubles.append(trouble))
    assert producer.flush(60.0) == 0
    producer.close(5.0)
    assert troubles == [None] * len(values)


def metrics_message(*entries: bytes) -> bytes:
    builder = RequestBuilder("whichrank", 900_000)
    builder.add(resource({names.SERVICE_NAME: "whichrank"}), entries)
    (message,) = builder.take()
    return message


def incident_gauge(job: str, identifier: str, value: int = 1) -> bytes:
    attributes = number_attributes(
        {
            names.JOB_ID: job,
            names.INCIDENT_ID: identifier,
            names.INCIDENT_SEVERITY: "page",
            names.INCIDENT_BUCKET: "communication_hang",
            names.INCIDENT_KIND: "rank_not_entered",
            names.SUSPECT_RANK: "13",
            names.SUSPECT_NODE: "node-02",
        }
    )
    point = number_point(attributes, value, time_ns=time.time_ns(), start_ns=time.time_ns() - 10**9)
    return metrics_message(metric_entry(names.METRIC_INCIDENT_ACTIVE, [point]))


def every_metric(job: str) -> bytes:
    """One point of each metric that whichrank has, with all of its attributes."""
    now = time.time_ns()
    entries = []
    for name, metric in METRICS.items():
        values = {key: job if key == names.JOB_ID else "1" for key in metric.attributes}
        if metric.instrument is Instrument.HISTOGRAM:
            table = HistogramTable(10)
            row = table.series("one", histogram_attributes(values), now - 10**10)
            table.record(np.full(8, row), np.full(8, 0.3))
            points = table.points(now)
        else:
            points = [number_point(number_attributes(values), 2.0, time_ns=now, start_ns=now - 10**10)]
        entries.append(metric_entry(name, points))
    return metrics_message(*entries)


def incident(job: str) -> Incident:
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
                "suspects": [{"scope": "rank", "id": "13", "rank": 13, "node": "node-02", "probability": 0.97}],
                "times": {"onset": now, "detected": now, "attributed": now},
                "confidence": 0.97,
            }
        )
    )


def fresh_job() -> str:
    return f"job-{os.urandom(4).hex()}"


def test_an_incident_s_gauge_answers_and_so_does_its_alert(stack: Stack) -> None:
    job = fresh_job()
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, "1f0c"))
    rule = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"][0]
    question = rule["data"][0]["model"]["expr"]
    mine: list[dict[str, str]] = []

    def answered() -> bool:
        mine[:] = [
            row["metric"] for row in stack.prometheus.query(question) if row["metric"]["whichrank_job_id"] == job
        ]
        return bool(mine)

    eventually(answered, what="the alert's query answers")
    assert mine == [
        {
            "whichrank_job_id": job,
            "whichrank_incident_id": "1f0c",
            "whichrank_incident_severity": "page",
            "whichrank_incident_bucket": "communication_hang",
            "whichrank_incident_kind": "rank_not_entered",
        }
    ]
    words = json.dumps([rule["labels"], rule["annotations"]])
    assert set(re.findall(r"labels\.(\w+)", words)) <= set(mine[0]), "the alert speaks of labels that it does not have"
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, "1f0c", value=0))
    eventually(lambda: not answered(), what="the alert ends with the incident")


def test_every_metric_of_the_dashboard_is_one_that_arrives(stack: Stack) -> None:
    job = fresh_job()
    publish(stack.kafka, TOPIC_METRICS, every_metric(job))
    selector = f'{{whichrank_job_id="{job}"}}'
    eventually(lambda: bool(stack.prometheus.query(f"whichrank_rank_step{selector}")), what="the metrics arrive")

    (row,) = stack.prometheus.query(f"histogram_quantile(0.5, whichrank_step_duration_seconds{selector})")
    assert float(row["value"][1]) == pytest.approx(0.3, rel=0.1)
    known = {
        row["metric"]["__name__"] for row in stack.prometheus.query('count by (__name__) ({__name__=~"whichrank.*"})')
    }
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        panel["title"]: panel["targets"][0]["expr"].replace("$__rate_interval", "1m").replace("$job", ".*")
        for panel in panels
        if panel["datasource"]["uid"] == "prometheus"
    }
    plain = [re.sub(r"\bby \([^)]*\)|\{[^}]*\}", "", question) for question in asked.values()]
    used = {name for question in plain for name in re.findall(r"\bwhichrank_\w+", question)}
    assert len(used) == len(asked)
    assert used - known == set()
    for question in asked.values():
        stack.prometheus.query(question)  # an error of syntax raises


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
