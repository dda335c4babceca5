"""Requests of spans, metrics and log records to the user's OpenTelemetry endpoint, in threads of their own.

``send`` puts a request into a bounded queue of its signal and returns: it takes microseconds and never raises. A thread
for each signal hands what waits to an exporter of the SDK, which tries as long as its time-out says. One that is slow
or away costs what does not fit, the oldest first, counted; ``problem`` says so in one line.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ...telemetry.missing_packages import in_words
from ...telemetry.topics import TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from .environment import (
    LOGS,
    METRICS,
    TRACES,
    extra_of,
    log_exporter,
    metric_exporter,
    quieten_sdk,
    span_exporter,
    wanted_signals,
)

#: Of each signal, in bytes of requests.
QUEUE_BYTES = 4 << 20
SIGNAL_OF = {TOPIC_SPANS: TRACES, TOPIC_METRICS: METRICS, TOPIC_LOGS: LOGS}
#: A request as it is exported: whether the endpoint took it. May raise, and may take as long as it likes.
Export = Callable[[bytes], bool]


class OtlpSender:
    """environ: whether to export what, and how. signals: of these alone, whatever else is asked for. Thread-safe."""

    def __init__(
        self,
        environ: Mapping[str, str],
        signals: frozenset[str] = frozenset(SIGNAL_OF.values()),
        *,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        wanted, self._problem = wanted_signals(environ)
        self._lines: dict[str, _Line] = {}
        try:
            for signal in sorted(wanted & signals):
                export, end = _exporter_of(signal, environ)
                self._lines[signal] = _Line(signal, export, end, queue_bytes)
        except Exception as error:  # the edge towards the SDK: a bad OTEL_* value must not end anything
            self._problem = f"telemetry export: cannot start: {in_words(error, extra_of(environ))}"

    @property
    def signals(self) -> frozenset[str]:
        """What is exported at all."""
        return frozenset(self._lines)

    @property
    def delivered(self) -> int:
        """How many requests the endpoint has taken."""
        return sum(line.delivered for line in self._lines.values())

    @property
    def dropped(self) -> int:
        """How many requests did not fit, or were refused. Exact after ``close``."""
        return sum(line.dropped for line in self._lines.values())

    @property
    def problem(self) -> str | None:
        """Why something was not exported, in a line; None: nothing is known to be missing."""
        if self._problem is None and self.dropped:
            told = ", ".join(
                f"{line.dropped} of {line.dropped + line.delivered} of {name.lower()}"
                for name, line in self._lines.items()
                if line.dropped
            )
            return f"telemetry export: requests that were not delivered: {told}"
        return self._problem

    @property
    def stats(self) -> Mapping[str, int]:
        """Counters by name, for the agent's own health."""
        return {"otlp.delivered": self.delivered, "otlp.dropped": self.dropped} if self._lines else {}

    def send(self, topic: str, request: bytes) -> None:
        """Queues a request, as it would go to this topic of Kafka; of other topics and signals nothing."""
        line = self._lines.get(SIGNAL_OF.get(topic, ""))
        if line is not None:
            line.put(request)

    @property
    def is_busy(self) -> bool:
        """After ``finish``: whether anything waits, or is on its way."""
        return any(line.is_busy for line in self._lines.values())

    def finish(self) -> None:
        """Takes nothing more, and sends what waits; returns at once."""
        for line in self._lines.values():
            line.finish()

    def close(self, patience_s: float) -> None:
        """Sends what waits for so long at most; what is left then counts as dropped."""
        deadline_s = time.monotonic() + patience_s
        self.finish()
        for line in self._lines.values():
            line.wait(deadline_s)


class _Line:
    """One signal: its queue and its thread, which starts with the first request."""

    def __init__(self, signal: str, export: Export, end: Callable[[], None], queue_bytes: int) -> None:
        self.delivered = self.dropped = 0
        self._export, self._end_export, self._most = export, end, queue_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._turn = threading.Condition()
        self._finishes = self._given_up = False
        self._thread = threading.Thread(target=self._run, name=f"whichrank-otlp-{signal.lower()}", daemon=True)

    def put(self, request: bytes) -> None:
        with self._turn:
            if self._finishes:
                self.dropped += 1
                return
            self._waiting.append(request)
            self._bytes += len(request)
            while self._bytes > self._most:
                self._bytes -= len(self._waiting.popleft())
                self.dropped += 1
            if not self._thread.ident:
                self._thread.start()
            self._turn.notify()

    @property
    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> None:
        with self._turn:
            self._finishes = True
            self._turn.notify()

    def wait(self, deadline_s: float) -> None:
        if self._thread.ident:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        with self._turn:
            if self._given_up:
                return
            in_hand = int(self._thread.is_alive())  # the one that the endpoint has not answered
            self._given_up = True
            self.dropped += len(self._waiting) + in_hand
            self._waiting.clear()

    def _run(self) -> None:
        while (request := self._next()) is not None:
            try:
                taken = self._export(request)
            except Exception:  # the edge towards the SDK, and the network behind it
                taken = False
            with self._turn:
                if self._given_up:
                    return  # counted already
                self.delivered += taken
                self.dropped += not taken
        try:
            self._end_export()
        except Exception:  # the edge towards the SDK: what counts is counted
            return

    def _next(self) -> bytes | None:
        with self._turn:
            while not self._waiting:
                if self._finishes:
                    return None
                self._turn.wait()
            request = self._waiting.popleft()
            self._bytes -= len(request)
            return request


def _exporter_of(signal: str, environ: Mapping[str, str]) -> tuple[Export, Callable[[], None]]:
    """How a request of this signal is exported, and what ends that. Raises ImportError, or what the SDK raises."""
    quieten_sdk()
    from opentelemetry.sdk._logs.export import LogRecordExportResult
    from opentelemetry.sdk.metrics.export import MetricExportResult
    from opentelemetry.sdk.trace.export import SpanExportResult

    from .sdk_objects import logs_of, metrics_of, spans_of

    exporter: Any
    if signal == TRACES:
        exporter = span_exporter(environ)
        return lambda request: exporter.export(spans_of(request)) is SpanExportResult.SUCCESS, exporter.shutdown
    if signal == METRICS:
        exporter = metric_exporter(environ)
        return lambda request: exporter.export(metrics_of(request)) is MetricExportResult.SUCCESS, exporter.shutdown
    exporter = log_exporter(environ)
    return lambda request: exporter.export(logs_of(request)) is LogRecordExportResult.SUCCESS, exporter.shutdown
