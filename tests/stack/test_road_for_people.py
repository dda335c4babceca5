"""What whichrank puts on Kafka answers in Prometheus, VictoriaLogs and Jaeger, by the real parts of compose."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.stack.parts.exporter_page import every_name
from tests.stack.parts.kafka import Kafka, Security
from tests.stack.parts.placing import REPOSITORY
from tests.stack.parts.service import eventually
from tests.stack.parts.whole_stack import Stack, assemble
from whichrank.telemetry import attributes as names
from whichrank.telemetry.histogram_table import HistogramTable
from whichrank.telemetry.incident import complete_document, incident_id
from whichrank.telemetry.incident_events import incident_event, incident_resource
from whichrank.telemetry.metric_encode import (
    METRICS,
    Instrument,
    histogram_attributes,
    metric_entry,
    number_attributes,
    number_point,
)
from whichrank.telemetry.node_metrics import NodeMetricInstrument as NodeInstrument
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.otlp_wire import RequestBuilder, resource
from whichrank.telemetry.records import Event, Identity, Incident, Point
from whichrank.telemetry.spans import TraceScope, rank_resource, step_spans
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.topics import TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.trace_identity import step_trace_id
from whichrank.telemetry.vocabulary import EventName, Kind, TimeBucket
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import KafkaTrouble

DASHBOARDS = REPOSITORY / "grafana" / "dashboards"
#: Of attributes by which panels choose; every other one is "used", which is what panels of storage ask for.
ASKED_FOR = {"whichrank.gpu.nvlink.state": "up"}
#: What counts began so long ago.
BEGAN_NS = time.time_ns() - 600 * 10**9

#: What a document may hold besides: panels of an incident have a line for each of it.
ALL_THAT_IS_TOLD: dict[str, Any] = {
    "evidence": [
        {"source": f"source {n}", "shows": 'it "stands"', "signal": "rows", **({"trust": said} if said else {})}
        for n, said in enumerate(("kernel", "user", ""))
    ],
    "ruled_out": [{"who": "rank 2", "looks_guilty": "it waits", "because": "it waits for rank 13"}],
    "jobs": [{"id": "job-b", "role": "victim"}],
    "cost": {"gpu_seconds": 1200.5},
    "advice": {"action": "restart_job", "by": "user", "text": "start it again"},
    "history": {"suspect_incidents": 3, "last_change": None},
}


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
                "job": {"id": job, "attempt": "a", "now": "running", "owner_id": "12001"},
                "bucket": "communication_hang",
                "kind": "rank_not_entered",
                "scope": "rank",
                "suspects": [{"scope": "rank", "id": "13", "rank": 13, "node": node, "probability": 0.97}],
                "times": {"onset": now, "detected": now, "attributed": now},
                "confidence": 0.97,
            }
        )
    )


def failed_check(node: str) -> Event:
    """As ``whichrank check`` tells it."""
    said = {
        "source": "check.prolog",
        "event": "check_memory_available",
        "severity": "error",
        "text": "2 % are available",
    }
    who = Identity(cluster="lab", node=node)
    return Event(name=EventName.NODE_CONDITION, identity=who, time_ns=time.time_ns(), attributes=said)


def fresh_job() -> str:
    return f"job-{os.urandom(4).hex()}"


def alerts(stack: Stack, title: str, incident: str) -> list[dict[str, Any]]:
    """Of Prometheus, by its own rules: those that fire for this incident."""
    found = stack.prometheus.ask("alerts")["alerts"]
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
        publish(stack.kafka, TOPIC_METRICS, every_name("exporter-1:9100", time.time()))

    measure()
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, identifier, node=node))
    publish(stack.kafka, TOPIC_LOGS, as_log_record(Incident(document={**told.document, **ALL_THAT_IS_TOLD})))
    publish(stack.kafka, TOPIC_LOGS, encode_payloads([failed_check(node)]))
    given = {"job": job, "node": node, "incident": identifier, "__rate_interval": "2m", "__range": "1h"}
    eventually(lambda: bool(stack.prometheus.query(f'whichrank_rank_step{{whichrank_job_id="{job}"}}')), what="metrics")
    eventually(lambda: bool(stack.logs.query(f'whichrank.job.id:="{job}"')), what="the incident's event")

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
    is_of_logs = target["datasource"]["uid"] == "victorialogs"
    return stack.logs.query(question) if is_of_logs else stack.prometheus.query(question)


def test_an_incident_is_found_in_victorialogs_with_its_whole_document(stack: Stack) -> None:
    """Its record names the job and the cluster, and so does its resource: that alone would end VictoriaLogs."""
    told = incident(fresh_job())
    job = told.document["job"]["id"]
    publish(stack.kafka, TOPIC_LOGS, as_log_record(told))
    (row,) = logs_of(stack, job)
    assert json.loads(row["whichrank.incident.document"]) == told.document
    assert row["whichrank.incident.kind"] == "rank_not_entered"
    assert row["_msg"].startswith("rank_not_entered: suspect rank 13")
    assert row["event_name"] == "whichrank.incident.opened"
    assert row["_stream"] == '{whichrank.cluster.id="lab",whichrank.job.owner="12001"}'
    whole, _, part = row["_time"].removesuffix("Z").partition(".")  # without zeros at its end
    when = datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{part or 0}")
    assert abs(when - told.document["times"]["detected"]) < 0.001


def test_the_panels_of_an_incident_read_its_newest_revision(stack: Stack) -> None:
    told = incident(fresh_job())
    old = [{**told.document, "revision": revision, "change": "updated"} for revision in range(2, 10)]
    # As a text, 9 would come after it.
    newest = {**told.document, **ALL_THAT_IS_TOLD, "revision": 10, "change": "updated"}
    publish(stack.kafka, TOPIC_LOGS, *(as_log_record(Incident(document=each)) for each in (*old, newest)))
    chosen = str(told.document["id"])

    def is_there(revision: int) -> bool:
        question = f'whichrank.incident.id:="{chosen}" whichrank.incident.revision:={revision}'
        return bool(stack.logs.query(question))

    eventually(lambda: is_there(10) and is_there(9), what="the newest revision")
    said = said_of_incident(stack, chosen)
    assert len(said.pop("Revisions")) == len(old) + 1
    sentence = (
        f"rank_not_entered, open, page: rank 13 (node-02) - confidence 0.97 - job {newest['job']['id']} is running"
    )
    assert said == {
        "In one sentence": [sentence],
        "What to do": ["restart_job (user): start it again - 1200.5 GPU seconds lost"],
        "Evidence, in its order": [
            f'source {n}: it "stands" [rows{said}]' for n, said in enumerate((", kernel", ", user", ""))
        ],
        "Ruled out": ["rank 2 looks guilty (it waits): it waits for rank 13"],
        "Jobs": ["job-b: victim"],
        "History": ["earlier incidents of the suspect in this job: 3"],
    }
    claimed = {**newest["job"], "id_by": "claimed"}
    nobody = {**newest, "suspects": [], "evidence": [], "revision": 11, "job": claimed}
    publish(stack.kafka, TOPIC_LOGS, as_log_record(Incident(document=nobody)))
    eventually(lambda: is_there(11), what="the revision without a suspect")
    said = said_of_incident(stack, chosen)
    assert "open, page: nobody - confidence" in said["In one sentence"][0]
    assert f"job {claimed['id']} (an id that only the job itself claims) is running" in said["In one sentence"][0]
    assert said["Evidence, in its order"] == []
    assert not any(said_of_incident(stack, "").values())


def test_the_guide_s_queries_are_taken(stack: Stack) -> None:
    (block,) = re.findall(r"```logsql\n(.*?)```", (REPOSITORY / "docs" / "operations.md").read_text(), re.DOTALL)
    told = incident("4711")
    publish(stack.kafka, TOPIC_LOGS, as_log_record(told))
    assert logs_of(stack, "4711")
    first, second, third = block.splitlines()
    assert stack.logs.query(first)[0]["_msg"].startswith("rank_not_entered")
    (row,) = stack.logs.query(second.replace("2f0c9a", told.document["id"]))
    assert json.loads(row["whichrank.incident.document"]) == told.document
    stack.logs.query(third)  # an error raises


def said_of_incident(stack: Stack, identifier: str) -> dict[str, list[str]]:
    """By panel of the incident's page, its lines in their order."""
    (board,) = (board for board in dashboards() if board["uid"] == "whichrank-incident")
    given = {"incident": identifier}
    return {
        panel["title"]: [row["_msg"] for row in answer(stack, panel["targets"][0], given)]
        for panel in board["panels"]
        if panel["type"] == "logs"
    }


def as_log_record(told: Incident) -> bytes:
    """One revision as the processor puts it on the topic of events."""
    builder = RequestBuilder("whichrank", 900_000)
    builder.add(incident_resource(told.document), [incident_event(told.document)])
    (message,) = builder.take()
    return message


def logs_of(stack: Stack, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def arrived() -> bool:
        found[:] = stack.logs.query(f'whichrank.job.id:="{job}" whichrank.incident.id:*')
        return bool(found)

    eventually(arrived, what=f"the incident of {job} is in VictoriaLogs")
    return found


def test_a_step_s_span_is_found_in_jaeger_by_its_trace_and_by_what_it_is_of(stack: Stack) -> None:
    job = fresh_job()
    trace = step_trace_id(job, "a", 41).hex()
    assert stack.jaeger.spans_of_trace(trace) == []
    send_step(stack, job)
    (span,) = spans_of(stack, job)
    assert span["traceId"] == trace
    assert span["name"] == "step"
    assert span["resource"]["whichrank.rank"] == "5"
    assert stack.jaeger.spans_of_trace(trace) == [span]
    assert stack.jaeger.spans({names.JOB_ID: job, names.RANK: "5", names.STEP: "41"}) == [span]
    assert stack.jaeger.spans({names.JOB_ID: job, names.RANK: "6"}) == []


def test_a_span_delivered_twice_is_stored_once(stack: Stack) -> None:
    """The agent and the processor tell the same step; what a killed processor had written comes again."""
    job, other, clock_ns = fresh_job(), fresh_job(), time.time_ns()
    send_step(stack, job, clock_ns)
    send_step(stack, job, clock_ns)
    send_step(stack, other)
    assert len(spans_of(stack, other)) == 1
    assert len(spans_of(stack, job)) == 1


def send_step(stack: Stack, job: str, clock_offset_ns: int | None = None) -> None:
    rows = np.zeros(1, STEPS)
    rows["rank"], rows["step"], rows["begin_ns"], rows["end_ns"] = 5, 41, 1_000, 300_001_000
    builder = RequestBuilder("whichrank", 900_000)
    scope = TraceScope(job=job, attempt="a", clock_offset_ns=clock_offset_ns or time.time_ns())
    builder.add(rank_resource(Identity(job=job, attempt="a", node="node-02", rank=5)), step_spans(rows, scope))
    publish(stack.kafka, TOPIC_SPANS, *builder.take())


def spans_of(stack: Stack, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def arrived() -> bool:
        found[:] = stack.jaeger.spans_of_job(job)
        return bool(found)

    eventually(arrived, what=f"a span of {job} has arrived")
    return found


@pytest.mark.parametrize("poison", [b"\xff" * 64, os.urandom(2048), b""], ids=["tags", "random", "empty"])
def test_what_is_no_otlp_holds_nobody_up(stack: Stack, poison: bytes) -> None:
    told, job = incident(fresh_job()), fresh_job()
    publish(stack.kafka, TOPIC_LOGS, poison, as_log_record(told))
    publish(stack.kafka, TOPIC_METRICS, poison, incident_gauge(job, "2f0c"))
    assert logs_of(stack, told.document["job"]["id"])
    question = f'whichrank_incident_active{{whichrank_job_id="{job}"}}'
    eventually(lambda: bool(stack.prometheus.query(question)), what="what came after the poison has arrived")


def test_an_attribute_that_is_there_twice_ends_no_store(stack: Stack) -> None:
    """OTLP forbids it in a resource; VictoriaLogs alone would end, and again at each try of the Collector."""
    told = incident(fresh_job())
    request = ExportLogsServiceRequest.FromString(as_log_record(told))
    (resource_logs,) = request.resource_logs
    for key in (names.SERVICE_NAME, names.JOB_ID, names.CLUSTER_ID):
        resource_logs.resource.attributes.add(key=key).value.string_value = "another"
        for record in resource_logs.scope_logs[0].log_records:
            record.attributes.add(key=key).value.string_value = "a third"
    publish(stack.kafka, TOPIC_LOGS, request.SerializeToString(), as_log_record(incident(job := fresh_job())))
    assert logs_of(stack, job)
    assert stack.logs.service.running
    question = f'whichrank.incident.id:="{told.document["id"]}"'
    eventually(lambda: bool(stack.logs.query(question)), what="what was there twice is there as well")


@pytest.mark.parametrize("store", ["victorialogs", "jaeger"])
def test_a_store_that_was_away_gets_what_it_missed_and_metrics_do_not_wait(stack: Stack, store: str) -> None:
    """Meanwhile the alert of a part that is down looks at it, and tries are counted: some, not thousands."""
    away = stack.logs.service if store == "victorialogs" else stack.jaeger.service
    counter = "log_records" if store == "victorialogs" else "spans"
    away.kill()
    told, job = incident(fresh_job()), fresh_job()
    publish(stack.kafka, TOPIC_LOGS, as_log_record(told))
    send_step(stack, job)
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, "4f0c"))
    question = f'whichrank_incident_active{{whichrank_job_id="{job}"}}'
    eventually(lambda: bool(stack.prometheus.query(question)), what="metrics")
    alert = f'ALERTS{{alertname="WhichrankPartDown", job="{store}"}}'  # pending for a minute, then firing
    eventually(lambda: bool(stack.prometheus.query(alert)), what="it is seen to be down")
    tries = f'increase(otelcol_exporter_send_failed_{counter}{{exporter="otlp_http/{store}"}}[1m]) > 0'
    eventually(lambda: bool(stack.prometheus.query(tries)), what="tries are counted")
    assert all(float(row["value"][1]) < 100 for row in stack.prometheus.query(tries))
    away.start()
    assert logs_of(stack, told.document["job"]["id"])
    assert spans_of(stack, job)


def test_a_prometheus_that_was_away_gets_what_it_missed_and_events_do_not_wait(stack: Stack) -> None:
    stack.prometheus.service.kill()
    told, job = incident(fresh_job()), fresh_job()
    publish(stack.kafka, TOPIC_METRICS, incident_gauge(job, "3f0c"))
    publish(stack.kafka, TOPIC_LOGS, as_log_record(told))
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
    told, job = incident(fresh_job()), fresh_job()
    publish(locked_stack.kafka, TOPIC_LOGS, as_log_record(told))
    publish(locked_stack.kafka, TOPIC_METRICS, incident_gauge(job, "5f0c"))
    assert logs_of(locked_stack, told.document["job"]["id"])
    question = f'whichrank_incident_active{{whichrank_job_id="{job}"}}'
    eventually(lambda: bool(locked_stack.prometheus.query(question)), what="metrics")
    assert "collector" in locked_stack.kafka.passwords
    assert locked_stack.prometheus.headers
    itself = 'up{job="prometheus"} == 1'
    eventually(lambda: bool(locked_stack.prometheus.query(itself)), what="Prometheus scrapes itself")
