"""Incident events, spans and step metrics to the user's own OpenTelemetry endpoint, by the standard exporter.

Active when an ``OTEL_EXPORTER_OTLP*_ENDPOINT`` variable is set; all ``OTEL_*`` variables keep the meaning that the
OpenTelemetry SDK gives them. Runs in the process of ``whichrank run``: the calls only append to the SDK's bounded
queue or add to its sums, the SDK's own threads talk to the network. Never raises, never blocks the loop: what the
endpoint did not take is counted, and ``problem`` says so in one line.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.request import getproxies

import numpy as np

from ...telemetry import attributes as names
from ...telemetry.incident_events import event_name, incident_attributes, incident_time_ns, sentence, severity_number
from ...telemetry.missing_packages import in_words
from ...telemetry.records import Block, Incident
from ...telemetry.vocabulary import EventName, Phase
from ..otlp_out.environment import (
    LOGS,
    METRICS,
    TRACES,
    endpoints,
    extra_of,
    log_exporter,
    metric_exporter,
    own_resource,
    quieten_sdk,
    wanted_signals,
)
from ..otlp_out.otlp_sender import OtlpSender

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
    from opentelemetry.sdk.metrics import MeterProvider

#: A slow endpoint may cost this much at the end of a run, and no more.
CLOSE_TIMEOUT_S = 5.0
#: And one at which nobody listens this much, from ``flush`` on: the exporter would try again and again.
UNHEARD_S = 1.0
#: Seconds. The SDK's default bounds are made for milliseconds.
STEP_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

_NS_PER_S = 1_000_000_000


class OtlpExport:
    """``incident`` for each revision, ``step_metrics`` for each block of steps, ``request`` for each request of spans,
    ``flush`` and ``close`` at the end.

    submitted, delivered: incident events handed over, and those that the endpoint acknowledged.
    problem: one line for people, None while all is well.
    environ says whether to export; the SDK itself reads the rest from the process's environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.submitted = 0
        self._delivered = _Delivered()
        self._problem: str | None = None
        self._flushed_s: float | None = None
        self._listens = threading.Event()
        self._places = endpoints(environ)
        self._logs: _IncidentEvents | None = None
        self._metrics: _StepMetrics | None = None
        self._requests: OtlpSender | None = None
        self._extra = extra_of(environ)
        signals, self._problem = wanted_signals(environ)
        if not signals:
            return
        try:
            quieten_sdk()
            if LOGS in signals:
                self._logs = _IncidentEvents(self._delivered, environ)
            if METRICS in signals:
                self._metrics = _StepMetrics(environ)
            self._requests = OtlpSender(environ, signals & {TRACES, METRICS})
        except Exception as error:  # the edge towards the SDK: a bad OTEL_* value must not end the run
            self._fail("cannot start", error)

    @property
    def active(self) -> bool:
        """Whether anything is exported at all."""
        return self._logs is not None or self._metrics is not None or self.wants_requests

    @property
    def wants_requests(self) -> bool:
        """Whether spans, or what collectors measured, are exported: then ``request`` takes them."""
        return self._requests is not None and bool(self._requests.signals)

    @property
    def delivered(self) -> int:
        """How many incident events the endpoint has taken. Exact after ``close``."""
        return self._delivered.records

    @property
    def dropped(self) -> int:
        """How many incident events the endpoint refused, or the full queue pushed out. Exact after ``close``."""
        return self._delivered.refused

    @property
    def problem(self) -> str | None:
        """Why something was not exported, in a line; None: nothing is known to be missing."""
        if self._problem is None and self.dropped:
            return f"telemetry export: {self.dropped} of {self.submitted} incident events were not delivered"
        if self._problem is None and self._requests is not None:
            return self._requests.problem
        return self._problem

    def incident(self, incident: Incident) -> None:
        """Queue one revision as the event ``whichrank.incident.<change>``. Microseconds; never raises."""
        if self._logs is None:
            return
        try:
            self._logs.emit(incident)
            self.submitted += 1
        except Exception as error:  # the edge towards the SDK
            self._fail("incident event not sent", error)

    def step_metrics(self, block: Block) -> None:
        """Add the steps of a STEPS block to the histograms; other blocks are ignored. About 10 µs a row."""
        if self._metrics is None or block.name is not EventName.BLOCK_STEPS:
            return
        try:
            self._metrics.record(block)
        except Exception as error:  # the edge towards the SDK, and blocks come from elsewhere
            self._fail("step metrics not recorded", error)

    def request(self, topic: str, request: bytes) -> None:
        """Queue a request of spans, or of what the node's collectors measured. Microseconds; never raises."""
        if self._requests is not None:
            self._requests.send(topic, request)

    def flush(self) -> None:
        """Sends what is queued, in threads; returns at once.

        The command has ended: it goes while the last conclusions are drawn.
        """
        self._flushed_s = time.monotonic()
        for part in (self._logs, self._metrics):
            if part is not None:
                threading.Thread(target=self._guarded, args=(part.flush,), daemon=True).start()
        if self.active:
            threading.Thread(target=self._knock, daemon=True).start()

    def close(self) -> None:
        """Send what is queued, within CLOSE_TIMEOUT_S, then give up on the rest and count it."""
        if self._flushed_s is None:
            self.flush()
        closing = [part for part in (self._logs, self._metrics) if part is not None]
        self._logs = self._metrics = None
        # In threads of their own: the exporter's back-off between tries knows no deadline of ours.
        threads = [threading.Thread(target=self._guarded, args=(part.shutdown,), daemon=True) for part in closing]
        for thread in threads:
            thread.start()
        requests = self._requests
        if requests is not None:
            requests.finish()
        unheard_s = (self._flushed_s or 0.0) + min(UNHEARD_S, CLOSE_TIMEOUT_S)
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        while any(thread.is_alive() for thread in threads) or (requests is not None and requests.is_busy):
            if time.monotonic() >= (deadline_s if self._listens.is_set() else unheard_s):
                break
            time.sleep(0.01)
        if requests is not None:
            requests.close(0.0)
        self._delivered.refused = max(self._delivered.refused, self.submitted - self._delivered.records)

    def _knock(self) -> None:
        """Whether anybody is there to be waited for; behind a proxy that is not ours to find out."""
        for host, port in self._places:
            try:
                socket.create_connection((host, port), UNHEARD_S).close()
            except OSError:
                continue
            self._listens.set()
            return
        if getproxies():
            self._listens.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the edge towards the SDK
            self._fail("not everything was delivered", error)

    def _fail(self, what: str, error: Exception) -> None:
        if self._problem is None:
            self._problem = f"telemetry export: {what}: {in_words(error, self._extra)}"


class _Delivered:
    """What the endpoint took, counted on the SDK's thread and read on the loop's: plain integers, one writer."""

    def __init__(self) -> None:
        self.records = 0
        self.refused = 0


def _counting(inner: LogRecordExporter, delivered: _Delivered) -> LogRecordExporter:
    """``inner`` with its results counted."""
    from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult

    class Counting(LogRecordExporter):
        def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
            result = LogRecordExportResult.FAILURE
            try:
                result = inner.export(batch)
            finally:
                if result is LogRecordExportResult.SUCCESS:
                    delivered.records += len(batch)
                else:
                    delivered.refused += len(batch)
            return result

        def shutdown(self) -> None:
            inner.shutdown()  # type: ignore[no-untyped-call]

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return True  # the OTLP exporter keeps nothing back

    return Counting()


class _IncidentEvents:
    def __init__(self, delivered: _Delivered, environ: Mapping[str, str]) -> None:
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

        self._processor = BatchLogRecordProcessor(_counting(log_exporter(environ), delivered))
        provider = LoggerProvider(resource=own_resource(), shutdown_on_exit=False)
        provider.add_log_record_processor(self._processor)
        self._logger = provider.get_logger(names.SCOPE_NAME)

    def emit(self, incident: Incident) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber

        document = incident.document
        severity = SeverityNumber(severity_number(document))
        self._logger.emit(
            LogRecord(
                timestamp=incident_time_ns(document) or time.time_ns(),
                observed_timestamp=time.time_ns(),
                severity_number=severity,
                severity_text=severity.name,
                body=sentence(document),
                attributes=incident_attributes(document),
                event_name=event_name(document),
            )
        )

    def flush(self) -> None:
        self._processor.force_flush()

    def shutdown(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]


class _StepMetrics:
    """Histograms by job, node, rank (and phase). Step numbers are never attributes: they would make a series each."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(metric_exporter(environ))
        self._provider: MeterProvider = MeterProvider([reader], resource=own_resource(), shutdown_on_exit=False)
        meter = self._provider.get_meter(names.SCOPE_NAME)
        self._step = meter.create_histogram(
            names.METRIC_STEP_DURATION,
            unit=names.METRIC_UNITS[names.METRIC_STEP_DURATION],
            description="Wall time of one training step of one rank, waiting included",
            explicit_bucket_boundaries_advisory=STEP_BOUNDS_S,
        )
        self._phase = meter.create_histogram(
            names.METRIC_PHASE_DURATION,
            unit=names.METRIC_UNITS[names.METRIC_PHASE_DURATION],
            description="Time of one step spent in one phase, waiting included",
            explicit_bucket_boundaries_advisory=STEP_BOUNDS_S,
        )

    def record(self, block: Block) -> None:
        rows = block.rows
        durations_s = (rows["end_ns"] - rows["begin_ns"]) / _NS_PER_S
        phases_s = rows["phase_ns"] / _NS_PER_S
        for rank, duration_s, row_phases_s in zip(rows["rank"], durations_s, phases_s, strict=True):
            attributes: dict[str, str | int] = {
                names.JOB_ID: block.identity.job,
                names.NODE_ID: block.identity.node,
                names.RANK: int(rank),
            }
            self._step.record(float(duration_s), attributes)
            for phase in np.flatnonzero(row_phases_s):
                phase_attributes = {**attributes, names.PHASE: Phase(int(phase)).name.lower()}
                self._phase.record(float(row_phases_s[phase]), phase_attributes)

    def flush(self) -> None:
        self._provider.force_flush()

    def shutdown(self) -> None:
        self._provider.shutdown()
