"""Metrics as OTLP: what each metric is, and its points as bytes.

Everything that counts is cumulative with the time at which it began, because Prometheus's OTLP receiver takes nothing
else unasked; a counter that begins anew (its agent was restarted, its rank came back) has a later start. What tells two
series apart is in the attributes of the points: of a resource's attributes Prometheus keeps only those that somebody
promoted. Written straight as protobuf, like spans (``otlp_wire``). Pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from . import attributes as names
from .otlp_wire import (
    AttributeValue,
    attributes,
    bytes_field,
    double_field,
    entry,
    fixed64_field,
    sint_field,
    text_field,
    varint_field,
)

#: Field numbers (opentelemetry/proto/metrics/v1/metrics.proto).
_NAME, _DESCRIPTION, _UNIT, _GAUGE, _SUM, _EXPONENTIAL = 1, 2, 3, 5, 7, 10
_POINTS, _TEMPORALITY, _MONOTONIC = 1, 2, 3
_CUMULATIVE = 2
_NUMBER_ATTRIBUTES, _HISTOGRAM_ATTRIBUTES, _START, _TIME, _AS_DOUBLE, _AS_INT = 7, 1, 2, 3, 4, 6
_SCALE, _ZERO_COUNT, _POSITIVE, _BUCKET_OFFSET, _BUCKET_COUNTS = 6, 7, 8, 1, 2
#: Tags of a histogram point's start, time, count and sum.
_START_TAG, _TIME_TAG, _COUNT_TAG, _SUM_TAG = b"\x11", b"\x19", b"\x21", b"\x29"


_pack_count_sum = struct.Struct("<cQcQcQcd").pack


class Instrument(Enum):
    """What a metric's values are, as OTLP has it."""

    GAUGE = "gauge"
    #: A sum that only grows.
    COUNTER = "counter"
    #: A sum that also shrinks: of things that are there now.
    UP_DOWN_COUNTER = "up_down_counter"
    #: Exponential: 2^(1/8) between bounds, so that steps of 10 ms and of 10 minutes are told equally well.
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``attributes``: those that its points may have; never a step, a sequence number or a trace id."""

    instrument: Instrument
    description: str
    attributes: tuple[str, ...]


_RANK = (names.JOB_ID, names.WORLD, names.NODE_ID, names.RANK)
_AGENT = (names.JOB_ID, names.NODE_ID)
_GOODPUT = (names.RUN_ID, names.JOB_ID, names.GOODPUT_BUCKET)
_GAUGE_OF, _COUNTER_OF = Instrument.GAUGE, Instrument.COUNTER

#: Every metric that is sent over Kafka, by name; units are in ``attributes.METRIC_UNITS``.
METRICS: Mapping[str, Metric] = {
    names.METRIC_STEP_DURATION: Metric(
        instrument=Instrument.HISTOGRAM,
        description="Wall time of one training step of one rank, waiting included",
        attributes=_RANK,
    ),
    names.METRIC_PHASE_DURATION: Metric(
        instrument=Instrument.HISTOGRAM,
        description="Time of one step spent in one phase, waiting included",
        attributes=(*_RANK, names.PHASE),
    ),
    names.METRIC_COLLECTIVE_DURATION: Metric(
        instrument=Instrument.HISTOGRAM,
        description="Time from the call of a collective to its end, waiting for the others included",
        attributes=(*_RANK, names.GROUP_NAME, names.COLLECTIVE_OP),
    ),
    names.METRIC_COLLECTIVE_OPEN_AGE: Metric(
        instrument=_GAUGE_OF, description="Age of the rank's oldest collective that has not ended", attributes=_RANK
    ),
    names.METRIC_RANK_STEP: Metric(instrument=_GAUGE_OF, description="The step that the rank is in", attributes=_RANK),
    names.METRIC_RANK_PACE: Metric(
        instrument=_GAUGE_OF, description="Steps that the rank ended per second since the last report", attributes=_RANK
    ),
    names.METRIC_RANK_WAIT: Metric(
        instrument=_COUNTER_OF,
        description="Time in collectives that the rank, or its device, could do nothing else: sum over operations",
        attributes=_RANK,
    ),
    names.METRIC_HEARTBEAT_AGE: Metric(
        instrument=_GAUGE_OF, description="Time since the rank's process last showed that it runs", attributes=_RANK
    ),
    names.METRIC_INCIDENT_ACTIVE: Metric(
        instrument=Instrument.UP_DOWN_COUNTER,
        description="1 while the incident is open, 0 for some minutes after its end",
        attributes=(
            names.CLUSTER_ID,
            names.JOB_ID,
            names.INCIDENT_ID,
            names.INCIDENT_SEVERITY,
            names.INCIDENT_BUCKET,
            names.INCIDENT_KIND,
            names.SUSPECT_RANK,
            names.SUSPECT_NODE,
        ),
    ),
    names.METRIC_GOODPUT_TIME: Metric(
        instrument=Instrument.UP_DOWN_COUNTER,
        description="Wall time of the job by what it was spent on; what is lost later moves from productive to rework",
        attributes=_GOODPUT,
    ),
    names.METRIC_GOODPUT_GPU_TIME: Metric(
        instrument=Instrument.UP_DOWN_COUNTER,
        description="The same times the GPUs that the job held",
        attributes=_GOODPUT,
    ),
    names.METRIC_AGENT_RANKS: Metric(
        instrument=_GAUGE_OF, description="Ranks that the agent watches", attributes=_AGENT
    ),
    names.METRIC_AGENT_EVENTS_READ: Metric(
        instrument=_COUNTER_OF, description="Events that the agent read from rings", attributes=_AGENT
    ),
    names.METRIC_AGENT_EVENTS_LOST: Metric(
        instrument=_COUNTER_OF,
        description="Events overwritten before the agent came by, or never completed by their writer",
        attributes=_AGENT,
    ),
    names.METRIC_AGENT_SENT: Metric(
        instrument=_COUNTER_OF, description="Bytes that the agent handed out, before compression", attributes=_AGENT
    ),
    names.METRIC_AGENT_SPOOL: Metric(
        instrument=_GAUGE_OF,
        description="What waits for Kafka on the agent's disk",
        attributes=(names.NODE_ID,),
    ),
    names.METRIC_AGENT_DROPS: Metric(
        instrument=_COUNTER_OF, description="What the agent dropped, by reason", attributes=(*_AGENT, names.DROP_REASON)
    ),
    names.METRIC_PIPELINE_LAG: Metric(
        instrument=_GAUGE_OF, description="Age of the oldest record that was not processed yet", attributes=()
    ),
    names.METRIC_PIPELINE_RECORDS_IN: Metric(
        instrument=_COUNTER_OF, description="Records that were processed", attributes=()
    ),
    names.METRIC_PIPELINE_RECORDS_OUT: Metric(
        instrument=_COUNTER_OF, description="Records that were published", attributes=()
    ),
    names.METRIC_PIPELINE_DECODE_ERRORS: Metric(
        instrument=_COUNTER_OF, description="Records that could not be read", attributes=()
    ),
    names.METRIC_PIPELINE_DEAD_LETTERS: Metric(
        instrument=_COUNTER_OF, description="Records that were set aside on the dead-letter topic", attributes=()
    ),
    names.METRIC_PIPELINE_STATE_ROWS: Metric(
        instrument=_GAUGE_OF, description="Rows of state that are kept", attributes=()
    ),
    names.METRIC_PIPELINE_TIMERS_LATE: Metric(
        instrument=_GAUGE_OF, description="How late the timer is that was due first", attributes=()
    ),
    names.METRIC_PIPELINE_DROPS: Metric(
        instrument=_COUNTER_OF,
        description="What was to be told to people and was dropped, by reason",
        attributes=(names.DROP_REASON,),
    ),
    names.METRIC_PROCESS_CPU_TIME: Metric(
        instrument=_COUNTER_OF, description="CPU time of whichrank's own process, children left out", attributes=_AGENT
    ),
}


def _head(name: str, description: str, unit: str) -> bytes:
    return text_field(_NAME, name) + text_field(_DESCRIPTION, description) + text_field(_UNIT, unit)


_HEADS = {name: _head(name, metric.description, names.METRIC_UNITS[name]) for name, metric in METRICS.items()}
_KINDS: Mapping[Instrument, tuple[int, bytes]] = {
    Instrument.GAUGE: (_GAUGE, b""),
    Instrument.COUNTER: (_SUM, varint_field(_TEMPORALITY, _CUMULATIVE) + varint_field(_MONOTONIC, 1)),
    Instrument.UP_DOWN_COUNTER: (_SUM, varint_field(_TEMPORALITY, _CUMULATIVE)),
    Instrument.HISTOGRAM: (_EXPONENTIAL, varint_field(_TEMPORALITY, _CUMULATIVE)),
}


def metric_entry(name: str, points: Iterable[bytes]) -> bytes:
    """A metric of ``METRICS`` with its points (``number_point``, ``histogram_point``), an entry for ``RequestBuilder``.

    Raises KeyError for an unknown name.
    """
    return _entry(_HEADS[name], METRICS[name].instrument, points)


def number_entry(name: str, description: str, unit: str, instrument: Instrument, points: Iterable[bytes]) -> bytes:
    """A metric of another table (``node_metrics``) with its points, an entry for ``RequestBuilder``."""
    return _entry(_head(name, description, unit), instrument, points)


def _entry(head: bytes, instrument: Instrument, points: Iterable[bytes]) -> bytes:
    field, suffix = _KINDS[instrument]
    data = b"".join([bytes_field(_POINTS, point) for point in points]) + suffix
    return entry(head + bytes_field(field, data))


def number_attributes(values: Mapping[str, AttributeValue | None]) -> bytes:
    """Encoded attributes of a point that holds one number, for ``number_point``; None and "" are left out."""
    return attributes(_NUMBER_ATTRIBUTES, values)


def histogram_attributes(values: Mapping[str, AttributeValue | None]) -> bytes:
    """Encoded attributes of a point that holds a histogram, for ``histogram_point``; None and "" are left out."""
    return attributes(_HISTOGRAM_ATTRIBUTES, values)


def number_point(attributes: bytes, value: float, *, time_ns: int, start_ns: int = 0) -> bytes:
    """A serialized point of one number. attributes: of ``number_attributes``; times in Unix ns.

    start_ns: when a counter began to count; 0 for a gauge.
    """
    content = fixed64_field(_AS_INT, value) if isinstance(value, int) else double_field(_AS_DOUBLE, value)
    start = fixed64_field(_START, start_ns) if start_ns else b""
    return attributes + start + fixed64_field(_TIME, time_ns) + content


def histogram_point(
    attributes: bytes,
    *,
    start_ns: int,
    time_ns: int,
    count: int,
    total: float,
    scale: int,
    zero_count: int,
    offset: int,
    buckets: bytes,
) -> bytes:
    """A serialized point of an exponential histogram. attributes: of ``histogram_attributes``; times in Unix ns.

    offset: index of the first bucket; buckets: their counts, packed (``otlp_wire.varint`` each).
    """
    positive = sint_field(_BUCKET_OFFSET, offset) + bytes_field(_BUCKET_COUNTS, buckets)
    return b"".join(
        (
            attributes,
            _pack_count_sum(_START_TAG, start_ns, _TIME_TAG, time_ns, _COUNT_TAG, count, _SUM_TAG, total),
            sint_field(_SCALE, scale),
            fixed64_field(_ZERO_COUNT, zero_count) if zero_count else b"",
            bytes_field(_POSITIVE, positive) if buckets else b"",
        )
    )
