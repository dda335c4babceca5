"""Incidents and the pipeline for people, as the service publishes them; decoded with opentelemetry-proto."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.agents.people_messages import plain, points_of, spans_of
from tests.processors.runner_examples import Clock, make_operators, open_bus, rank_event
from tests.processors.test_trace_writer import STEP_NS, begin, document, identity, run_step
from whichrank.processors.cluster.case_row import published_documents
from whichrank.processors.cluster.charged_accounts import Account
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.observability_export.processor_export import (
    METRIC_OF,
    PipelineCounts,
    ProcessorExporter,
    Telling,
)
from whichrank.processors.operator import Operator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry import attributes as names
from whichrank.telemetry.incident_document import IncidentDocument
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Block, Broken, Event, Identity, Incident, Record
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.trace_identity import step_trace_id
from whichrank.telemetry.vocabulary import EventName

SECOND_NS = 10**9
NOW_NS = 1_700_000_100 * SECOND_NS


def people() -> ProcessorExporter:
    return ProcessorExporter(cluster="lab", instance="processors-0", node="node-p", started_ns=NOW_NS - SECOND_NS)


def values(telling: list[Telling], topic: str) -> list[bytes]:
    return [each.value for each in telling if each.topic == topic]


def gauges(telling: list[Telling]) -> dict[tuple[str, str], int]:
    """Value by incident and severity."""
    return {
        (attributes[names.INCIDENT_ID], attributes[names.INCIDENT_SEVERITY]): point.as_int
        for _, name, attributes, point in points_of(values(telling, TOPIC_METRICS))
        if name == names.METRIC_INCIDENT_ACTIVE
    }


def revision(change: str, number: int, **others: Any) -> IncidentDocument:
    state = change if change in ("resolved", "merged") else "open"
    return document(
        **{
            "revision": number,
            "change": change,
            "state": state,
            "severity": "page",
            "bucket": "communication_hang",
            "kind": "rank_not_entered",
            "cluster": "lab",
            **others,
        }
    )


def test_an_incident_is_told_as_event_trace_and_gauge_at_once() -> None:
    telling = people()
    # The trace writer's own tests say which spans these are.
    begin(telling.traces)
    for step in range(6):
        run_step(telling.traces, step)
    telling.incident(revision("opened", 1), 6 * STEP_NS, NOW_NS)
    out = telling.take(NOW_NS, PipelineCounts)
    (record,) = [
        record
        for raw in values(out, TOPIC_LOGS)
        for part in ExportLogsServiceRequest.FromString(raw).resource_logs
        for record in part.scope_logs[0].log_records
    ]
    assert record.event_name == "whichrank.incident.opened"
    spans = spans_of(values(out, TOPIC_SPANS))
    assert (record.trace_id, record.span_id) in {(span.trace_id, span.span_id) for _, span in spans}
    assert gauges(out) == {("1f0c", "page"): 1}
    assert {each.key for each in out} == {"lab"}
    assert telling.failures == 0


def test_a_life_is_a_span_that_links_to_the_step() -> None:
    telling = people()
    begin(telling.traces)
    run_step(telling.traces, 4)
    telling.incident(revision("opened", 1), 6 * STEP_NS, NOW_NS)
    telling.take(NOW_NS, PipelineCounts)
    telling.incident(revision("resolved", 2), 6 * STEP_NS, NOW_NS + SECOND_NS)
    ((resource, span),) = spans_of(values(telling.take(NOW_NS + SECOND_NS, PipelineCounts), TOPIC_SPANS))
    assert span.name == "incident rank_not_entered"
    assert [link.trace_id for link in span.links] == [step_trace_id("job-7", "feed/0", 4)]
    assert resource["service.name"] == "job-7"


def test_the_gauge_goes_to_zero_and_ends_some_minutes_later() -> None:
    telling = people()
    telling.incident(revision("opened", 1), 0, NOW_NS)
    assert gauges(telling.take(NOW_NS, PipelineCounts)) == {("1f0c", "page"): 1}
    assert gauges(telling.take(NOW_NS + SECOND_NS, PipelineCounts)) == {}, "every ten seconds"
    assert gauges(telling.take(NOW_NS + 10 * SECOND_NS, PipelineCounts)) == {("1f0c", "page"): 1}
    end_ns = NOW_NS + 11 * SECOND_NS
    telling.incident(revision("resolved", 2), 0, end_ns)
    assert gauges(telling.take(end_ns, PipelineCounts)) == {("1f0c", "page"): 0}
    assert gauges(telling.take(end_ns + 299 * SECOND_NS, PipelineCounts)) == {("1f0c", "page"): 0}
    assert gauges(telling.take(end_ns + 310 * SECOND_NS, PipelineCounts)) == {}


def test_another_severity_is_another_series_and_the_old_one_ends() -> None:
    telling = people()
    telling.incident(revision("opened", 1, severity="info"), 0, NOW_NS)
    telling.incident(revision("updated", 2), 0, NOW_NS)
    assert gauges(telling.take(NOW_NS, PipelineCounts)) == {("1f0c", "info"): 0, ("1f0c", "page"): 1}
    telling.incident(revision("merged", 3, merged_into="2"), 0, NOW_NS)
    assert gauges(telling.take(NOW_NS, PipelineCounts)) == {("1f0c", "info"): 0, ("1f0c", "page"): 0}
    telling.incident(revision("reopened", 4), 0, NOW_NS)
    assert gauges(telling.take(NOW_NS, PipelineCounts)) == {("1f0c", "info"): 0, ("1f0c", "page"): 1}


def test_after_a_restart_open_incidents_are_still_shown_and_told_no_second_time() -> None:
    telling = people()
    telling.lead([revision("opened", 1), revision("resolved", 2, id="over")], NOW_NS)
    out = telling.take(NOW_NS, PipelineCounts)
    assert gauges(out) == {("1f0c", "page"): 1}
    assert not values(out, TOPIC_LOGS)
    assert not values(out, TOPIC_SPANS)


def test_a_standby_tells_of_itself_alone_until_it_leads() -> None:
    telling = people()
    telling.lead([revision("opened", 1), revision("opened", 1, id="2")], NOW_NS)
    telling.follow()
    out = telling.take(NOW_NS, PipelineCounts)
    assert gauges(out) == {}
    assert names.METRIC_PIPELINE_RECORDS_IN in {name for _, name, *_ in points_of(values(out, TOPIC_METRICS))}
    # Meanwhile the other one has told that the second is over.
    telling.lead([revision("opened", 1), revision("resolved", 2, id="2")], NOW_NS)
    assert gauges(telling.take(NOW_NS + 10 * SECOND_NS, PipelineCounts)) == {("1f0c", "page"): 1}


def test_gauges_are_bounded_and_what_ended_first_goes_first() -> None:
    telling = people()
    for number in range(1024):
        telling.incident(revision("opened", 1, id=str(number)), 0, NOW_NS)
    telling.incident(revision("resolved", 2, id="7"), 0, NOW_NS)
    telling.incident(revision("opened", 1, id="one more"), 0, NOW_NS)
    shown = gauges(telling.take(NOW_NS, PipelineCounts))
    assert len(shown) == 1024
    assert ("7", "page") not in shown
    assert telling.incidents.gauges_dropped == 1


def test_beside_real_operators_and_after_a_restart(tmp_path: Path) -> None:
    """A rank dies; what it was doing is told, and the incident is still shown by the next life of the service."""
    clock = Clock()
    bus = open_bus(tmp_path / "bus", clock)
    telling = people()

    def on_output(record: Record) -> None:
        if isinstance(record.payload, Incident):
            telling.incident(read_incident(record.payload.document), record.stamp_ns, NOW_NS)

    def runner(on_input: Callable[[Record], None] | None) -> EmbeddedRunner:
        operators: list[Operator] = [JobOperator(), ClusterOperator()]
        return EmbeddedRunner(bus, tmp_path / "state", operators, on_output, live=True, on_input=on_input)

    first = runner(lambda record: telling.see(record.payload, record.stamp_ns))
    who = Identity(cluster="lab", job="job-7", run="job-7", node="node-0", attempt="launch", rank=0)
    rows = np.zeros(2, STEPS)
    rows["step"], rows["begin_ns"], rows["end_ns"] = [0, 1], [0, SECOND_NS], [SECOND_NS, 2 * SECOND_NS]
    started = {"pid": 100, "local_rank": 0, "world_size": 1, "job_name": "llama"}
    died = {"signal": 9, "step": 1, "phase": "forward", "exit_state": 0, "exception": False}
    for payload in (
        Event(name=EventName.RANK_STARTED, identity=who, time_ns=NOW_NS, mono_ns=1, attributes=started),
        Block(name=EventName.BLOCK_STEPS, identity=replace(who, rank=-1), rows=rows, clock_offset_ns=NOW_NS),
        Event(name=EventName.RANK_EXIT, identity=who, time_ns=NOW_NS + 3 * SECOND_NS, mono_ns=3, attributes=died),
    ):
        bus.append(TOPIC_BLOCKS, "job-7", encode_payloads([payload]))
        clock.advance(0.25)
        first.drain()
    for _ in range(20):
        clock.advance(0.25)
        first.drain()
    out = telling.take(NOW_NS, PipelineCounts)
    ((incident, severity),) = gauges(out)
    steps = [(who, span) for who, span in spans_of(values(out, TOPIC_SPANS)) if span.name == "step"]
    assert [plain(span)[names.STEP] for _, span in steps] == [0, 1]
    assert {who[names.SERVICE_NAME] for who, _ in steps} == {"llama"}
    (event,) = values(out, TOPIC_LOGS)
    assert plain(ExportLogsServiceRequest.FromString(event).resource_logs[0].resource)[names.SERVICE_NAME] == "llama"
    assert telling.failures == 0
    assert first.state_rows > 0
    assert first.published >= 2, "finding and incident"
    first.close()

    telling = people()
    second = runner(None)
    telling.lead(published_documents(second.rows("cluster", "incidents")), NOW_NS)
    assert gauges(telling.take(NOW_NS, PipelineCounts)) == {(incident, severity): 1}
    second.close()
    bus.close()


def test_what_people_are_told_of_silence_does_not_end_it(tmp_path: Path) -> None:
    """The events lie on a topic that is an input, too: for what somebody's collector has carried there."""
    clock = Clock()
    bus = open_bus(tmp_path / "bus", clock)
    telling = people()
    heard: list[str] = []

    def on_output(record: Record) -> None:
        if isinstance(record.payload, Incident):
            heard.append(record.payload.document["id"])
            telling.incident(revision("opened", 1, **record.payload.document), record.stamp_ns, NOW_NS)

    topics = [TOPIC_BLOCKS, TOPIC_LOGS]
    runner = EmbeddedRunner(bus, None, make_operators(), on_output, live=True, input_topics=topics)
    bus.append(TOPIC_BLOCKS, "j", encode_payloads([rank_event(0)]))
    told = 0
    for _ in range(400):
        clock.advance(0.25)
        runner.drain()
        for each in telling.take(NOW_NS, PipelineCounts):
            if each.topic == TOPIC_LOGS:
                told += 1
                bus.append(TOPIC_LOGS, each.key, each.value)
    assert heard == ["j absent 0", "input silent"], "once each"
    assert told == 2
    assert telling.failures == 0
    runner.close()
    bus.close()


def test_people_see_what_the_seconds_were_spent_on() -> None:
    telling, account = people(), Account(run="r", begin_ns=NOW_NS - 60 * SECOND_NS, end_ns=NOW_NS)
    account.ns, account.gpu_ns = (
        {"productive": 50 * SECOND_NS, "rework": 10 * SECOND_NS},
        {"productive": 400 * SECOND_NS},
    )
    out = values(telling.take(NOW_NS, PipelineCounts, lambda: [("j", account)]), TOPIC_METRICS)
    told = {
        (name, words[names.GOODPUT_BUCKET]): (point.as_double, words[names.JOB_ID], point.start_time_unix_nano)
        for _, name, words, point in points_of(out)
        if names.GOODPUT_BUCKET in words
    }
    since = NOW_NS - 60 * SECOND_NS
    assert told == {
        (names.METRIC_GOODPUT_TIME, "productive"): (50.0, "j", since),
        (names.METRIC_GOODPUT_TIME, "rework"): (10.0, "j", since),
        (names.METRIC_GOODPUT_GPU_TIME, "productive"): (400.0, "j", since),
    }
    assert telling.failures == 0


def test_the_pipeline_tells_how_it_does() -> None:
    telling = people()
    counts = PipelineCounts(
        lag_s=1.5,
        records_in=7,
        records_out=6,
        decode_errors=1,
        dead_letters=2,
        state_rows=9,
        timers_late_s=3.0,
        cpu_s=0.5,
        unpublished=4,
    )
    out = values(telling.take(NOW_NS, lambda: counts), TOPIC_METRICS)
    points = list(points_of(out))
    drops = {words[names.DROP_REASON]: point.as_int for _, name, words, point in points if words}
    assert drops == {"kafka": 4, "spans_over_rate": 0, "gauges_over_limit": 0, "failed": 0}
    found = {name: point for _, name, words, point in points if not words}
    assert {name: point.as_double or point.as_int for name, point in found.items()} == {
        "whichrank.pipeline.lag": 1.5,
        "whichrank.pipeline.records.in": 7,
        "whichrank.pipeline.records.out": 6,
        "whichrank.pipeline.decode.errors": 1,
        "whichrank.pipeline.dead_letters": 2,
        "whichrank.pipeline.state.rows": 9,
        "whichrank.pipeline.timers.late": 3.0,
        "process.cpu.time": 0.5,
    }
    assert found["whichrank.pipeline.lag"].start_time_unix_nano == 0
    assert found["whichrank.pipeline.records.in"].start_time_unix_nano == NOW_NS - SECOND_NS
    ((resource, *_), *_) = points_of(out)
    assert resource == {
        "service.name": "whichrank-processors",
        "service.instance.id": "processors-0",
        "host.name": "node-p",
        "whichrank.cluster.id": "lab",
    }


def test_what_is_not_known_is_not_told() -> None:
    out = values(people().take(NOW_NS, PipelineCounts), TOPIC_METRICS)
    assert names.METRIC_PIPELINE_LAG not in {name for _, name, *_ in points_of(out)}


def test_every_count_has_a_metric() -> None:
    assert {*METRIC_OF, "unpublished"} == set(PipelineCounts.__slots__)


def test_counts_are_asked_only_when_they_are_due() -> None:
    telling = people()
    asked: list[int] = []

    def counts() -> PipelineCounts:
        asked.append(1)
        return PipelineCounts()

    for second in range(25):
        telling.take(NOW_NS + second * SECOND_NS, counts)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"id": "x", "suspects": [3]},
        {"job": "none"},
        {"times": {"resolved": "soon"}},
        {"times": {"onset": "soon", "resolved": 3.0}},
    ],
)
def test_of_a_document_that_is_wrong_in_parts_the_rest_is_told(bad: dict[str, Any]) -> None:
    telling = people()
    telling.incident(read_incident({"change": "resolved", **bad}), 0, NOW_NS)
    telling.incident(revision("opened", 1), 0, NOW_NS)
    assert telling.failures == 0
    assert gauges(telling.take(NOW_NS, PipelineCounts)) == {("1f0c", "page"): 1}


def test_a_document_that_cannot_be_told_costs_nothing_else() -> None:
    telling = people()
    begin(telling.traces)
    telling.incident(revision("opened", 1, id="x", kind=["slow"], suspects=[{"ranks": "1 to 3"}]), 6 * STEP_NS, NOW_NS)
    assert telling.failures == 1
    telling.incident(revision("opened", 1), 0, NOW_NS)
    assert gauges(telling.take(NOW_NS, PipelineCounts)) == {("1f0c", "page"): 1}


def test_other_records_are_passed_over() -> None:
    telling = people()
    telling.see(Broken(topic="whichrank.blocks", reason="no", value=b""), 0)
    odd = {"restart_count": "three", "pid": None}
    telling.see(Event(name=EventName.RANK_STARTED, identity=identity(0), time_ns=0, attributes=odd), 0)
    assert telling.failures == 1
