"""OtlpExport without a Collector: what the environment switches on, and endpoints that fail in every way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from whichrank.commands.otlp_out.environment import check_otlp_url, endpoints, use_endpoint, wanted_signals
from whichrank.commands.run.otlp_export import UNHEARD_S, OtlpExport
from whichrank.telemetry.records import Block, Identity, Incident
from whichrank.telemetry.tables import STEPS
from whichrank.telemetry.vocabulary import EventName

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ALL = {"LOGS", "METRICS", "TRACES"}
DOCUMENT: dict[str, Any] = {
    "id": "1",
    "change": "opened",
    "state": "open",
    "severity": "page",
    "kind": "deadlock",
    "bucket": "communication_hang",
    "suspects": [],
    "times": {"onset": 3.0, "detected": 5.5, "attributed": 6.0, "resolved": 9.0},
}


@pytest.mark.parametrize(
    ("environ", "signals"),
    [
        ({}, set()),
        ({ENDPOINT: ""}, set()),
        ({ENDPOINT: "http://127.0.0.1:1"}, ALL),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://127.0.0.1:1/v1/logs"}, {"LOGS"}),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1/v1/metrics"}, {"METRICS"}),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, set()),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "none"}, {"LOGS", "TRACES"}),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_LOGS_EXPORTER": "otlp"}, ALL),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ALL),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ALL),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, {"TRACES"}),
    ],
)
def test_environment_decides_what_is_exported(environ: dict[str, str], signals: set[str]) -> None:
    found, problem = wanted_signals(environ)
    assert set(found) == signals
    assert problem is None


def test_a_protocol_that_is_not_there_is_named() -> None:
    export = OtlpExport({ENDPOINT: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    assert not export.active
    assert export.problem == "telemetry export: protocol 'http/json' is not supported, only http/protobuf and grpc"


def test_the_setting_names_the_endpoint_of_all_signals() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://elsewhere:4318/v1/traces",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
    }
    use_endpoint("", environ)
    assert len(environ) == 2
    use_endpoint("grpcs://otel.example:4317", environ)
    assert environ == {ENDPOINT: "https://otel.example:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    use_endpoint("http://otel.example:4318/base", environ)
    assert environ[ENDPOINT] == "http://otel.example:4318/base"


@pytest.mark.parametrize("url", ["otel.example:4317", "http://", "ftp://otel.example", "http://me:secret@otel.example"])
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        check_otlp_url(url)


def test_without_an_endpoint_nothing_happens() -> None:
    threads = threading.active_count()
    export = OtlpExport({})
    export.incident(Incident(document=DOCUMENT))
    export.step_metrics(Block(name=EventName.BLOCK_STEPS, identity=Identity(), rows=np.zeros(1, dtype=STEPS)))
    export.close()
    assert not export.active
    assert (export.submitted, export.dropped, export.problem) == (0, 0, None)
    assert threading.active_count() == threads


class Endpoint(BaseHTTPRequestHandler):
    """Answers every request with ``status``, after ``release`` is set."""

    status = 200
    release = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.release.wait(20)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # the base class's name for it
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Endpoint]]:
    class Handler(Endpoint):
        release = threading.Event()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_address[1]}")
    yield Handler
    Handler.release.set()
    server.shutdown()
    server.server_close()


def environ() -> dict[str, str]:
    return dict(os.environ)


@pytest.mark.parametrize("status", [200, 400])
def test_every_event_is_delivered_or_counted(endpoint: type[Endpoint], status: int) -> None:
    endpoint.status = status
    endpoint.release.set()
    export = OtlpExport(environ())
    for _ in range(10):
        export.incident(Incident(document=DOCUMENT))
    export.close()
    delivered = 10 if status == 200 else 0
    assert (export.submitted, export.delivered, export.dropped) == (10, delivered, 10 - delivered)
    expected = None if status == 200 else "telemetry export: 10 of 10 incident events were not delivered"
    assert export.problem == expected


def test_an_endpoint_that_hangs_never_blocks_the_caller(
    endpoint: type[Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "100")
    monkeypatch.setenv("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "10")
    monkeypatch.setattr("whichrank.commands.run.otlp_export.CLOSE_TIMEOUT_S", 0.3)
    export = OtlpExport(environ())
    slowest_s = 0.0
    for _ in range(2000):
        began = time.perf_counter()
        export.incident(Incident(document=DOCUMENT))
        slowest_s = max(slowest_s, time.perf_counter() - began)
    assert slowest_s < 1.0
    began = time.perf_counter()
    export.close()
    assert time.perf_counter() - began < 1.5
    assert (export.submitted, export.delivered, export.dropped) == (2000, 0, 2000)
    assert export.problem is not None


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")  # the discard port: nothing listens there
    export = OtlpExport(environ())
    export.incident(Incident(document=DOCUMENT))
    began = time.perf_counter()
    export.flush()
    export.close()
    assert time.perf_counter() - began < UNHEARD_S + 0.3
    assert export.dropped == 1


def test_who_listens_and_is_slow_is_waited_for(endpoint: type[Endpoint]) -> None:
    """Longer than for one that is not there."""
    threading.Timer(UNHEARD_S + 0.5, endpoint.release.set).start()
    export = OtlpExport(environ())
    export.incident(Incident(document=DOCUMENT))
    export.flush()
    export.close()
    assert (export.delivered, export.dropped, export.problem) == (1, 0, None)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, [("collector", 4318)]),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://logs.example/v1/logs"}, [("logs.example", 443)]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:4318/"}, [("::1", 4318)]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:many"}, []),
        ({}, []),
    ],
)
def test_where_endpoints_are(variables: dict[str, str], found: list[tuple[str, int]]) -> None:
    assert endpoints(variables) == found


@pytest.mark.usefixtures("endpoint")
def test_what_cannot_be_read_is_told_once() -> None:
    export = OtlpExport(environ())
    export.incident(Incident(document={"id": "no change"}))
    export.step_metrics(Block(name=EventName.BLOCK_STEPS, identity=Identity(), rows=np.zeros(1, dtype="<i8")))
    assert export.problem is not None
    assert export.problem.startswith("telemetry export: incident event not sent: KeyError")
