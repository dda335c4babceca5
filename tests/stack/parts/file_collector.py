"""A Collector that writes what it receives by OTLP to files: for tests of exporters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.stack.parts.go_programs import built_collector
from tests.stack.parts.service import Service, listens

CONFIGURATION = """\
receivers:
  otlp:
    protocols:
      http: {{endpoint: "127.0.0.1:{port}"}}
      grpc: {{endpoint: "127.0.0.1:{grpc}"}}
exporters:
  file/logs: {{path: {folder}/logs.jsonl, flush_interval: 100ms}}
  file/metrics: {{path: {folder}/metrics.jsonl, flush_interval: 100ms}}
  file/traces: {{path: {folder}/traces.jsonl, flush_interval: 100ms}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [file/logs]}}
    metrics: {{receivers: [otlp], exporters: [file/metrics]}}
    traces: {{receivers: [otlp], exporters: [file/traces]}}
"""


class FileCollector:
    """A running Collector. ``stop`` ends it, and with that everything it received is in its files."""

    def __init__(self, folder: Path) -> None:
        port, grpc = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.endpoint = f"http://{self.address}"
        #: As the setting ``otlp`` has it.
        self.grpc = f"grpc://127.0.0.1:{grpc}"
        self.folder = folder
        folder.mkdir()
        configuration = folder / "collector.yaml"
        configuration.write_text(CONFIGURATION.format(port=port, grpc=grpc, folder=folder))
        self.service = Service(
            "the Collector",
            [built_collector(), "--config", f"file:{configuration}"],
            log=folder / "collector.log",
            ready=lambda: listens(self.address),
        )

    def stop(self) -> None:
        self.service.stop()

    def log_records(self) -> list[dict[str, Any]]:
        """Every log record received, each with its resource's attributes under ``resource``."""
        return [
            {**record, "resource": plain_attributes(resource["resource"])}
            for request in self._requests("logs.jsonl")
            for resource in request["resourceLogs"]
            for scope in resource["scopeLogs"]
            for record in scope["logRecords"]
        ]

    def spans(self) -> list[dict[str, Any]]:
        """Every span received, each with its resource's attributes under ``resource``."""
        return [
            {**span, "resource": plain_attributes(resource["resource"])}
            for request in self._requests("traces.jsonl")
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
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

    def metric_names(self) -> set[str]:
        """Of all metrics that came."""
        return {
            metric["name"]
            for request in self._requests("metrics.jsonl")
            for resource in request["resourceMetrics"]
            for scope in resource["scopeMetrics"]
            for metric in scope["metrics"]
        }

    def _requests(self, file: str) -> list[dict[str, Any]]:
        path = self.folder / file
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half written


def plain_attributes(holder: dict[str, Any]) -> dict[str, str]:
    """OTLP/JSON attributes as name -> text of the value."""
    return {item["key"]: str(next(iter(item["value"].values()))) for item in holder.get("attributes", ())}
