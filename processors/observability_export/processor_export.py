"""What the processors tell people: incidents, the steps around them, and how the pipeline itself does.

Beside the operators, not one of them: nothing here is part of their state or of what they conclude, and all of it may
be lost or told twice. The service that runs the operators calls ``see`` with each record that they are given,
``incident`` with each revision that is published, and publishes what ``take`` returns. No thread, no I/O, no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...telemetry import attributes as names
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.metric_encode import METRICS, Instrument, metric_entry, number_attributes, number_point
from ...telemetry.otlp_wire import RequestBuilder, resource
from ...telemetry.records import Payload
from ...telemetry.topics import TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from ..cluster.charged_accounts import Account
from .incident_telemetry import IncidentTelemetry
from .trace_writer import TraceWriter, TraceWriterSettings

_log = logging.getLogger(__name__)
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCounts:
    """How the pipeline does. Counts run since the service started; None is not known and not told."""

    lag_s: float | None = None
    records_in: int = 0
    records_out: int = 0
    decode_errors: int = 0
    dead_letters: int = 0
    state_rows: int | None = None
    timers_late_s: float | None = None
    cpu_s: float = 0.0
    #: Messages for people that could not be published.
    unpublished: int = 0


#: By field of PipelineCounts; what was dropped has one metric with a reason.
METRIC_OF: Mapping[str, str] = {
    "lag_s": names.METRIC_PIPELINE_LAG,
    "records_in": names.METRIC_PIPELINE_RECORDS_IN,
    "records_out": names.METRIC_PIPELINE_RECORDS_OUT,
    "decode_errors": names.METRIC_PIPELINE_DECODE_ERRORS,
    "dead_letters": names.METRIC_PIPELINE_DEAD_LETTERS,
    "state_rows": names.METRIC_PIPELINE_STATE_ROWS,
    "timers_late_s": names.METRIC_PIPELINE_TIMERS_LATE,
    "cpu_s": names.METRIC_PROCESS_CPU_TIME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """A message for people: one serialized OTLP request."""

    topic: str
    key: str
    value: bytes


class ProcessorExporter:
    """All that the processors tell people. instance: what tells this service from others of its cluster, the same after
    a restart; node: its host.

    Raises nothing: what goes wrong here is counted in ``failures`` and logged once.
    """

    def __init__(
        self,
        *,
        cluster: str,
        instance: str,
        node: str,
        started_ns: int,
        metrics_period_s: float = 10.0,
        trace_writer: TraceWriterSettings | None = None,
    ) -> None:
        settings = trace_writer or TraceWriterSettings()
        self._cluster = cluster
        self._started_ns = started_ns
        self._period_ns = int(metrics_period_s * _SECOND_NS)
        self._next_ns = 0
        self._request_bytes = settings.request_bytes
        self.traces = TraceWriter(settings)
        self.incidents = IncidentTelemetry(gauges_period_s=metrics_period_s, request_bytes=settings.request_bytes)
        self._resource = resource(
            {
                names.SERVICE_NAME: "whichrank-processors",
                names.SERVICE_INSTANCE_ID: instance,
                names.HOST_NAME: node,
                names.CLUSTER_ID: cluster,
            }
        )
        self.failures = 0

    def lead(self, incidents: Iterable[IncidentDocument], time_ns: int) -> None:
        """This instance publishes from now on: sets the gauges of these incidents, last revisions of each, in place of
        all.

        time_ns: Unix.
        """

        def remember() -> None:
            self.incidents.forget()
            for incident in incidents:
                self.incidents.remember(incident, time_ns)

        self._guarded(remember)

    def follow(self) -> None:
        """Another instance publishes: drops the gauges of incidents; this one only tells of itself."""
        self.incidents.forget()

    def see(self, payload: Payload, stamp_ns: int) -> None:
        """Keeps a record of the blocks topic, from which spans may be made. stamp_ns: its arrival."""
        self._guarded(lambda: self.traces.see(payload, stamp_ns))

    def incident(self, incident: IncidentDocument, stamp_ns: int, time_ns: int) -> None:
        """Queues a revision that is published now, with spans of the steps around it.

        stamp_ns: the pipeline's time, time_ns: Unix time.
        """

        def tell() -> None:
            bad_step = self.traces.incident(incident, stamp_ns)
            self.incidents.revision(incident, bad_step, time_ns)

        self._guarded(tell)

    def take(
        self,
        time_ns: int,
        counts: Callable[[], PipelineCounts],
        accounts: Callable[[], Iterable[tuple[str, Account]]] = tuple,
    ) -> list[Telling]:
        """Removes and returns what is to be published now. time_ns: Unix. Cheap where nothing is due.

        counts, accounts (of jobs that run, by job): called only for a report.
        """
        telling: list[Telling] = []

        def gather() -> None:
            incidents = self.incidents
            for topic, requests in (
                (TOPIC_LOGS, incidents.take_events()),
                (TOPIC_SPANS, [*self.traces.take(), *incidents.take_spans()]),
                (TOPIC_METRICS, [*incidents.take_metrics(time_ns), *self._report(time_ns, counts, accounts)]),
            ):
                telling.extend(Telling(topic=topic, key=self._cluster, value=value) for value in requests)

        self._guarded(gather)
        return telling

    def _report(
        self,
        time_ns: int,
        counts: Callable[[], PipelineCounts],
        accounts: Callable[[], Iterable[tuple[str, Account]]],
    ) -> list[bytes]:
        if time_ns < self._next_ns:
            return []
        self._next_ns = time_ns + self._period_ns
        builder = RequestBuilder(names.SCOPE_NAME, self._request_bytes)
        now = counts()
        drops = {
            "kafka": now.unpublished,
            "spans_over_rate": self.traces.dropped,
            "gauges_over_limit": self.incidents.gauges_dropped,
            "failed": self.failures,
        }
        points = [
            number_point(
                number_attributes({names.DROP_REASON: reason}), count, time_ns=time_ns, start_ns=self._started_ns
            )
            for reason, count in drops.items()
        ]
        builder.add(self._resource, pipeline_metrics(now, start_ns=self._started_ns, time_ns=time_ns))
        builder.add(self._resource, [metric_entry(names.METRIC_PIPELINE_DROPS, points)])
        builder.add(self._resource, goodput_metrics(accounts(), time_ns=time_ns))
        return builder.take()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the edge towards the operators: a bug here must not cost them a record
            self.failures += 1
            if self.failures == 1:
                _log.warning("telling people failed: %s: %s", type(error).__name__, error)


def pipeline_metrics(counts: PipelineCounts, *, start_ns: int, time_ns: int) -> list[bytes]:
    """A serialized metric for ``RequestBuilder`` for each count that is known. start_ns, time_ns: Unix."""
    entries = []
    no_attributes = number_attributes({})
    for field, name in METRIC_OF.items():
        value = getattr(counts, field)
        if value is None:
            continue
        start = 0 if METRICS[name].instrument is Instrument.GAUGE else start_ns
        entries.append(metric_entry(name, [number_point(no_attributes, value, time_ns=time_ns, start_ns=start)]))
    return entries


def goodput_metrics(accounts: Iterable[tuple[str, Account]], *, time_ns: int) -> list[bytes]:
    """Serialized metrics for ``RequestBuilder``: seconds and GPU-seconds of each job by bucket. time_ns: Unix."""
    points: dict[str, list[bytes]] = {}
    for job, account in accounts:
        for name, sums in ((names.METRIC_GOODPUT_TIME, account.ns), (names.METRIC_GOODPUT_GPU_TIME, account.gpu_ns)):
            for bucket, ns in sums.items():
                shown = {names.RUN_ID: account.run, names.JOB_ID: job, names.GOODPUT_BUCKET: bucket}
                point = number_point(
                    number_attributes(shown), ns / _SECOND_NS, time_ns=time_ns, start_ns=account.begin_ns
                )
                points.setdefault(name, []).append(point)
    return [metric_entry(name, each) for name, each in points.items()]
