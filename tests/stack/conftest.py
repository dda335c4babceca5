"""Real parts of a telemetry stack for tests: here the OpenTelemetry Collector, built from its own modules with Go.

Built once into the user's cache directory (1 to 3 minutes), outside the repository; a change of the sources beside
this file makes a new build. Without Go the tests that need it are skipped, and say so.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parent / "collector"
#: What the Collector's modules ask for.
OLDEST_GO = (1, 25)
BUILD_TIMEOUT_S = 900
START_TIMEOUT_S = 30

CONFIGURATION = """\
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  file/logs: {{path: {folder}/logs.jsonl, flush_interval: 100ms}}
  file/metrics: {{path: {folder}/metrics.jsonl, flush_interval: 100ms}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [file/logs]}}
    metrics: {{receivers: [otlp], exporters: [file/metrics]}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """A running Collector. ``stop`` ends it, and with that everything it received is in its files."""

    endpoint: str
    folder: Path
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)

    def log_records(self) -> list[dict[str, Any]]:
        """Every log record received, each with its resource's attributes under ``resource``."""
        return [
            {**record, "resource": plain_attributes(resource["resource"])}
            for request in self._requests("logs.jsonl")
            for resource in request["resourceLogs"]
            for scope in resource["scopeLogs"]
            for record in scope["logRecords"]
        ]

    def histograms(self, name: str) -> list[dict[str, Any]]:
        """Data points of the histogram ``name`` as last reported, each with its ``unit``."""
        points: dict[str, dict[str, Any]] = {}
        for request in self._requests("metrics.jsonl"):
            for resource in request["resourceMetrics"]:
                for scope in resource["scopeMetrics"]:
                    for metric in scope["metrics"]:
                        if metric["name"] == name:
                            for point in metric["histogram"]["dataPoints"]:
                                points[json.dumps(point["attributes"])] = {**point, "unit": metric["unit"]}
        return list(points.values())

    def _requests(self, file: str) -> list[dict[str, Any]]:
        path = self.folder / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def plain_attributes(holder: dict[str, Any]) -> dict[str, str]:
    """OTLP/JSON attributes as name -> text of the value."""
    return {item["key"]: str(next(iter(item["value"].values()))) for item in holder.get("attributes", ())}


@pytest.fixture(scope="session")
def collector_program() -> Path:
    """The Collector's executable; built when it is not in the cache."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("the OpenTelemetry Collector is built with Go, which is not installed here")
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_GO:
        pytest.skip(f"the OpenTelemetry Collector needs Go {OLDEST_GO[0]}.{OLDEST_GO[1]}; here is {version.strip()}")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whichrank"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / f"otelcol-{digest}"
    with (cache / "otelcol.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            unfinished = program.with_suffix(".unfinished")
            build = subprocess.run(
                [go, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(unfinished), "."],
                cwd=SOURCES,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
            assert build.returncode == 0, f"the Collector did not build:\n{build.stderr[-4000:]}"
            unfinished.rename(program)
    return program


@pytest.fixture
def collector(collector_program: Path, tmp_path: Path) -> Iterator[Collector]:
    """A Collector that writes what it receives by OTLP/HTTP on a loopback port to files."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "collector"
    folder.mkdir()
    configuration = folder / "collector.yaml"
    configuration.write_text(CONFIGURATION.format(port=port, folder=folder))
    with (folder / "collector.log").open("wb") as log:
        process = subprocess.Popen(
            [collector_program, "--config", f"file:{configuration}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_listening(port, process, folder / "collector.log")
        yield Collector(endpoint=f"http://127.0.0.1:{port}", folder=folder, process=process)
    finally:
        process.kill()
        process.wait()


def _wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"the Collector does not listen:\n{log.read_text()[-2000:]}")
