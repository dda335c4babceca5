"""OtlpSender: bounded, never in the way, and each request delivered or counted, whatever the endpoint does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from whichrank.commands.otlp_out.otlp_sender import OtlpSender
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_SPANS

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def spans(size: int = 0) -> bytes:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    span.name = "n" * size
    return request.SerializeToString()


class Endpoint(BaseHTTPRequestHandler):
    status = 200
    release: threading.Event
    paths: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.paths.append(self.path)
        self.release.wait(20)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # the base class's name for it
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Endpoint]]:
    class Handler(Endpoint):
        release = threading.Event()
        paths: list[str] = []  # noqa: RUF012 - of this test's class alone

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_address[1]}")
    yield Handler
    Handler.release.set()
    server.shutdown()
    server.server_close()


def environ() -> dict[str, str]:
    import os

    return dict(os.environ)


@pytest.mark.parametrize(("status", "delivered"), [(200, 5), (400, 0)])
def test_each_request_is_delivered_or_counted(endpoint: type[Endpoint], status: int, delivered: int) -> None:
    endpoint.status = status
    endpoint.release.set()
    sender = OtlpSender(environ())
    assert sender.signals == {"LOGS", "METRICS", "TRACES"}
    for _ in range(5):
        sender.send(TOPIC_SPANS, spans())
    sender.send(TOPIC_BLOCKS, b"of no signal")
    sender.close(10.0)
    assert (sender.delivered, sender.dropped) == (delivered, 5 - delivered)
    assert set(endpoint.paths) == {"/v1/traces"}
    assert sender.stats == {"otlp.delivered": delivered, "otlp.dropped": 5 - delivered}
    told = None if delivered else "telemetry export: requests that were not delivered: 5 of 5 of traces"
    assert sender.problem == told


def test_an_endpoint_that_hangs_costs_no_time_and_the_oldest(endpoint: type[Endpoint]) -> None:
    sender = OtlpSender(environ(), queue_bytes=3500)
    began = time.monotonic()
    for _ in range(100):
        sender.send(TOPIC_SPANS, spans(1000))
    assert time.monotonic() - began < 1.0
    assert 96 <= sender.dropped <= 97  # one is on its way, three wait
    sender.close(0.2)
    assert (sender.delivered, sender.dropped) == (0, 100)
    assert time.monotonic() - began < 5.0
    sender.send(TOPIC_SPANS, spans())
    assert sender.dropped == 101


def test_what_is_no_request_is_counted_and_the_next_one_goes(endpoint: type[Endpoint]) -> None:
    endpoint.release.set()
    sender = OtlpSender(environ())
    sender.send(TOPIC_SPANS, b"\xff\xff\xff")
    sender.send(TOPIC_SPANS, spans())
    sender.close(10.0)
    assert (sender.delivered, sender.dropped) == (1, 1)


def test_without_an_endpoint_nothing_happens() -> None:
    sender = OtlpSender({})
    sender.send(TOPIC_SPANS, spans())
    sender.close(1.0)
    assert (sender.signals, sender.stats, sender.problem) == (frozenset(), {}, None)
