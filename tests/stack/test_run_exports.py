"""A real watched job whose incident and steps arrive in a real OpenTelemetry Collector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.stack.parts.file_collector import FileCollector, plain_attributes

TRAINING = """\
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    if step == 20 and dist.get_rank() == 1:
        raise RuntimeError("the bearing is hot")
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""
RUN_TIMEOUT_S = 120


def test_a_watched_job_reports_to_the_collector(collector: FileCollector, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    out = tmp_path / "out"
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(out)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    run = subprocess.run(
        [*whichrank, "--", *torchrun],
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_SERVICE_NAME": "bearing-test"},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    collector.stop()

    assert run.returncode == 1, run.stderr[-3000:]
    written = [json.loads(line) for line in (out / "incidents.jsonl").read_text().splitlines()]
    events = [record for record in collector.log_records() if record["eventName"].startswith("whichrank.incident.")]
    assert [json.loads(plain_attributes(event)["whichrank.incident.document"]) for event in events] == written
    opened = plain_attributes(events[0])
    assert opened["whichrank.incident.kind"] == "rank_raised"
    assert opened["whichrank.incident.suspect.rank"] == "1"
    assert events[0]["resource"]["service.name"] == "bearing-test"
    steps = {
        plain_attributes(point)["whichrank.rank"]: int(point["count"])
        for point in collector.histograms("whichrank.step.duration")
    }
    assert set(steps) == {"0", "1"}
    assert all(15 <= count <= 20 for count in steps.values()), steps
