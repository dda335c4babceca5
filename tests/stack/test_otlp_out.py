"""OTLP straight out, without Kafka: a real watched job, and a real agent, to a real Collector, over HTTP and gRPC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.parts.file_collector import FileCollector, plain_attributes
from tests.stack.parts.service import eventually
from tests.stack.test_run_exports import TRAINING
from whichrank.commands.run.command import BOOTSTRAP

WHICHRANK = (sys.executable, "-m", "whichrank.commands.main")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
NAMED = ("--job-name", "bearings")
TIMEOUT_S = 120


def clean(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**kept, **variables}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_run_sends_incident_steps_spans_and_what_its_node_measures(
    collector: FileCollector, tmp_path: Path, protocol: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    address = collector.grpc if protocol == "grpc" else collector.endpoint
    run = subprocess.run(
        [*WHICHRANK, "run", "--out", tmp_path / "out", "--otlp", address, *NAMED, "--", *TORCHRUN, script],
        env=clean(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    collector.stop()
    assert run.returncode == 1, run.stderr[-3000:]
    assert "telemetry export" not in run.stderr

    (opened, *_) = [record for record in collector.log_records() if record["eventName"] == "whichrank.incident.opened"]
    assert plain_attributes(opened)["whichrank.incident.suspect.rank"] == "1"
    spans = collector.spans()
    by_rank: dict[str, list[str]] = {}
    for span in spans:
        by_rank.setdefault(span["resource"]["whichrank.rank"], []).append(span["name"])
    assert set(by_rank) == {"0", "1"}
    for names in by_rank.values():
        assert names.count("step") >= 5  # many a second: of every other step
        assert names.count("all_reduce") >= 5
    assert {span["resource"]["service.name"] for span in spans} == {"bearings"}
    steps = {span["spanId"] for span in spans if span["name"] == "step"}
    children = [span for span in spans if span["name"] == "all_reduce" and span.get("parentSpanId")]
    assert children
    assert sum(span["parentSpanId"] in steps for span in children) >= len(children) - 4
    assert {"whichrank.step.duration", "system.memory.linux.available"} <= collector.metric_names()
    kept = list((tmp_path / "out").rglob("capture*"))
    assert kept
    assert json.loads((tmp_path / "out/incidents.jsonl").read_text().splitlines()[0])["kind"] == "rank_raised"


def test_an_agent_without_kafka_sends_what_it_sees(collector: FileCollector, tmp_path: Path) -> None:
    script, rings, log = tmp_path / "train.py", tmp_path / "rings", tmp_path / "agent.log"
    script.write_text(TRAINING)
    (rings / "job-9").mkdir(mode=0o700, parents=True)
    with log.open("wb") as said:
        agent = subprocess.Popen(
            [*WHICHRANK, "agent", "--otlp", collector.grpc, "--rings", str(rings), "--data", str(tmp_path / "data")],
            env=clean(),
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "watches" in log.read_text(), what=f"the agent is there: {log.read_text()}")
        job = subprocess.run(
            [*TORCHRUN, script],
            env=clean(
                WHICHRANK_AUTO="1",
                PYTHONPATH=str(BOOTSTRAP),
                WHICHRANK_DIR=str(rings / "job-9"),
                WHICHRANK_JOB_ID="job-9",
            ),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert job.returncode == 1
        eventually(lambda: bool(collector.spans()), what=f"spans; the agent said {log.read_text()}", timeout_s=30)
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(30) == 0
    collector.stop()
    said_last = log.read_text()
    assert "sends logs, metrics, traces to an OpenTelemetry endpoint" in said_last
    assert "0 dropped" in said_last
    assert {span["resource"]["whichrank.rank"] for span in collector.spans()} == {"0", "1"}
    assert {"whichrank.step.duration", "system.memory.linux.available"} <= collector.metric_names()
    events = {record["eventName"] for record in collector.log_records()}
    assert {"whichrank.rank.started", "whichrank.rank.exception"} <= events
