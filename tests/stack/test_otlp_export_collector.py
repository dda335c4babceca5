"""OtlpExport against a real OpenTelemetry Collector: what arrives there is what a user's back end would get."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.stack.parts.file_collector import FileCollector, plain_attributes
from whichrank.commands.run.otlp_export import OtlpExport
from whichrank.telemetry.records import Block, Identity, Incident
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.vocabulary import EventName, Phase


def document(change: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "id": "1f0c",
        "revision": 1 if change == "opened" else 2,
        "change": change,
        "state": "resolved" if change == "resolved" else "open",
        "severity": "page",
        "cluster": "lab",
        "job": {"run": "r", "id": "job-7", "name": None, "attempt": "a1", "owner": None, "now": "running"},
        "bucket": "immediate_crash",
        "kind": "rank_died",
        "scope": "rank",
        "suspects": [{"scope": "rank", "id": "3", "rank": 3, "node": "node-02", "gpu": None, "probability": 0.99}],
        "first_bad": {"step": 41, "group": None, "sequence": None, "operation": None},
        "times": {"onset": 1000.25, "detected": 1000.5, "attributed": 1000.5, "resolved": None},
        "confidence": 0.99,
    }


@pytest.fixture
def export(collector: FileCollector, monkeypatch: pytest.MonkeyPatch) -> OtlpExport:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return OtlpExport(environ)


def test_each_revision_of_an_incident_arrives_as_an_event(collector: FileCollector, export: OtlpExport) -> None:
    changes = ["opened", "updated", "reopened", "merged", "resolved"]
    for change in changes:
        export.incident(Incident(document=document(change)))
    export.close()
    collector.stop()

    records = collector.log_records()
    assert [record["eventName"] for record in records] == [f"whichrank.incident.{change}" for change in changes]
    opened = records[0]
    assert opened["timeUnixNano"] == "1000500000000"
    assert opened["severityText"] == "ERROR"
    assert records[-1]["severityText"] == "INFO"
    assert opened["body"]["stringValue"] == "rank_died: suspect rank 3 at step 41 (immediate_crash, opened)"
    assert opened["resource"]["service.name"] == "whichrank"
    assert opened["resource"]["deployment.environment.name"] == "test"
    attributes = plain_attributes(opened)
    assert json.loads(attributes.pop("whichrank.incident.document")) == document("opened")
    assert attributes == {
        "whichrank.incident.id": "1f0c",
        "whichrank.incident.revision": "1",
        "whichrank.incident.state": "open",
        "whichrank.incident.severity": "page",
        "whichrank.incident.bucket": "immediate_crash",
        "whichrank.incident.kind": "rank_died",
        "whichrank.incident.scope": "rank",
        "whichrank.incident.confidence": "0.99",
        "whichrank.incident.suspect.rank": "3",
        "whichrank.incident.suspect.node": "node-02",
        "whichrank.cluster.id": "lab",
        "whichrank.run.id": "r",
        "whichrank.job.id": "job-7",
        "whichrank.job.attempt": "a1",
        "whichrank.step": "41",
    }
    assert (export.submitted, export.delivered, export.dropped, export.problem) == (5, 5, 0, None)


def test_steps_arrive_as_histograms_in_seconds(collector: FileCollector, export: OtlpExport) -> None:
    rows = np.zeros(6, dtype=STEPS)
    rows["rank"] = [0, 1, 0, 1, 0, 1]
    rows["step"] = [0, 0, 1, 1, 2, 2]
    rows["begin_ns"] = 10**15
    rows["end_ns"] = 10**15 + 300_000_000
    rows["phase_ns"][:, Phase.FORWARD] = 200_000_000
    identity = Identity(job="job-7", node="node-02")
    export.step_metrics(Block(name=EventName.BLOCK_STEPS, identity=identity, rows=rows))
    export.step_metrics(Block(name=EventName.BLOCK_PROGRESS, identity=identity, rows=rows))
    export.close()
    collector.stop()

    points = collector.histograms("whichrank.step.duration")
    assert [(plain_attributes(point)["whichrank.rank"], point["count"]) for point in points] == [("0", "3"), ("1", "3")]
    for point in points:
        assert point["unit"] == "s"
        assert point["sum"] == pytest.approx(0.9)
        bucket = next(index for index, bound in enumerate(point["explicitBounds"]) if bound >= 0.3)
        assert point["bucketCounts"][bucket] == "3"
        assert set(plain_attributes(point)) == {"whichrank.job.id", "whichrank.node.id", "whichrank.rank"}
    phases = collector.histograms("whichrank.step.phase.duration")
    assert {plain_attributes(point)["whichrank.step.phase"] for point in phases} == {"forward"}
    assert export.problem is None
