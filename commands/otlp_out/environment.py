"""What ``OTEL_*`` variables ask to be exported, and the OpenTelemetry SDK's own exporters that do it.

The variables mean what the SDK says that they do; headers, certificates, compression and time-outs it reads itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...telemetry import attributes as names
from ...telemetry.redaction import redact_command, redact_data

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

LOGS, METRICS, TRACES = "LOGS", "METRICS", "TRACES"
SIGNALS = (LOGS, METRICS, TRACES)
HTTP, GRPC = "http/protobuf", "grpc"
#: The extra that brings what an agent needs, and the one that brings gRPC.
EXTRA, EXTRA_GRPC = "agent", "grpc"
#: The SDK warns here on every failed request; the count of them at the end says as much, once.
SDK_LOGGERS = ("opentelemetry.exporter", "opentelemetry.sdk")
_ENDPOINT, _PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
_PORTS = {HTTP: 80, GRPC: 4317}
_COMMAND_LINES = frozenset({"process.command_args", "process.command_line"})
#: Of the setting ``otlp``: what stands before "://", and what it means.
_SCHEMES = {"http": ("http", ""), "https": ("https", ""), "grpc": ("http", GRPC), "grpcs": ("https", GRPC)}


def check_otlp_url(url: str) -> None:
    """Raises ValueError for a value of the setting ``otlp`` that is no address."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname or not (parts.port is None or parts.port):
        raise ValueError("an address as http://HOST:4318, https://HOST, grpc://HOST:4317 or grpcs://HOST:4317")
    if parts.username is not None or parts.password is not None:
        raise ValueError("no password in the address: OTEL_EXPORTER_OTLP_HEADERS is for that")


def use_endpoint(url: str, environ: MutableMapping[str, str]) -> None:
    """Lets the variables name this endpoint (``otlp`` of the settings) for all signals; "" changes nothing."""
    if not url:
        return
    scheme, protocol = _SCHEMES[urlsplit(url).scheme]
    environ[_ENDPOINT] = f"{scheme}://{url.partition('://')[2]}"
    for signal in SIGNALS:
        environ.pop(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", None)
        if protocol:
            environ.pop(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", None)
    if protocol:
        environ[_PROTOCOL] = protocol


def wanted_signals(environ: Mapping[str, str]) -> tuple[frozenset[str], str | None]:
    """Which of SIGNALS the environment asks to export; and one line if it asks for what is not to be had."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset(), None
    signals = set()
    problem = None
    for signal in SIGNALS:
        endpoint = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environ.get(_ENDPOINT)
        if not endpoint or environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip() not in ("", "otlp"):
            continue
        protocol = protocol_of(signal, environ)
        if protocol not in (HTTP, GRPC):
            problem = f"telemetry export: protocol {protocol!r} is not supported, only {HTTP} and {GRPC}"
            continue
        signals.add(signal)
    return frozenset(signals), problem


def protocol_of(signal: str, environ: Mapping[str, str]) -> str:
    """HTTP where nothing is said."""
    said = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environ.get(_PROTOCOL) or ""
    return said.strip() or HTTP


def extra_of(environ: Mapping[str, str]) -> str:
    """The extra whose absence keeps an exporter from being made."""
    return EXTRA_GRPC if any(protocol_of(signal, environ) == GRPC for signal in SIGNALS) else EXTRA


def endpoints(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Host and port of the OTLP endpoints that the environment names; what is no address is left out."""
    found = []
    for signal in (*SIGNALS, ""):
        name = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT" if signal else _ENDPOINT
        try:
            url = urlsplit(environ.get(name, "").strip())
            usual = 443 if url.scheme == "https" else _PORTS.get(protocol_of(signal, environ), 80)
            place = url.hostname, url.port or usual
        except ValueError:
            continue
        if place[0]:
            found.append((place[0], place[1]))
    return found


def span_exporter(environ: Mapping[str, str]) -> SpanExporter:
    """The SDK's, as the variables ask for it. Raises ImportError for a package that is not there."""
    if protocol_of(TRACES, environ) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def metric_exporter(environ: Mapping[str, str]) -> MetricExporter:
    """As ``span_exporter``."""
    if protocol_of(METRICS, environ) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def log_exporter(environ: Mapping[str, str]) -> LogRecordExporter:
    """As ``span_exporter``."""
    if protocol_of(LOGS, environ) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

    return OTLPLogExporter()


def own_resource() -> Resource:
    """Who we are; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over our own name.

    Detectors that the user has switched on may add the command line of this process, which is also the job's.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    found = Resource.create({names.SERVICE_NAME: "whichrank"}).merge(OTELResourceDetector().detect())
    attributes = dict(found.attributes)
    for name in _COMMAND_LINES & attributes.keys():
        arguments = attributes[name]
        if isinstance(arguments, tuple):
            attributes[name] = redact_command(tuple(map(str, arguments)))
    return Resource(redact_data(attributes), found.schema_url)


def quieten_sdk() -> None:
    """Lets nothing of the SDK's own warnings onto the terminal of a job."""
    for name in SDK_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
