"""Attributes of every span: real spans with all that they can carry are written and read again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from ...telemetry.incident_events import SpanPlace, incident_span
from ...telemetry.incident_writing import write_incident
from ...telemetry.records import Group
from ...telemetry.spans import PHASE_SPANS, TraceScope, collective_spans, phase_spans, step_spans
from ...telemetry.tables import COLLECTIVES, STEPS
from ...telemetry.vocabulary import DTYPES, EventFlag, Op, Phase, StepFlag
from .example_documents import whole_incident

_SCOPE = TraceScope(job="job", attempt="attempt", clock_offset_ns=0)
_TYPES = {"string_value": "string", "int_value": "int", "double_value": "double", "bool_value": "bool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanKind:
    """attributes: name and type. events: names of what happens within the span."""

    name: str
    what: str
    attributes: tuple[tuple[str, str], ...]
    events: tuple[str, ...] = ()


def span_kinds() -> Sequence[SpanKind]:
    """One row for each kind of span that people get, from spans that were made for it."""
    return (
        _read("`step`", "a rank's step; it has no parent, its phases and collectives are its children", _step()),
        _read("a phase: " + ", ".join(_phases()), "what the rank spent in one phase without a break", _phase()),
        _read("a collective: " + ", ".join(_operations()), "from the call to the end", _collective()),
        _read("`incident KIND`", "its life; it links to the suspect's first bad step", _incident()),
    )


def attributes_of(pairs: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    """(name, type) of each attribute, in the order in which they are written."""
    return tuple((pair.key, _TYPES.get(pair.value.WhichOneof("value") or "", "array")) for pair in pairs)


def _phases() -> list[str]:
    return [phase.name.lower() for phase in Phase]


def _operations() -> list[str]:
    return [op.name.lower() for op in Op if op is not Op.UNKNOWN]


def _read(name: str, what: str, entries: Sequence[bytes]) -> SpanKind:
    (span,) = ScopeSpans.FromString(b"".join(entries)).spans
    events = tuple(event.name for event in span.events)
    return SpanKind(name=name, what=what, attributes=attributes_of(span.attributes), events=events)


def _step() -> Sequence[bytes]:
    rows = np.zeros(1, STEPS)
    rows["flags"] = int(StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM | StepFlag.SKIPPED)
    rows["end_ns"], rows["phase_ns"] = 1, 1
    return step_spans(rows, _SCOPE)


def _phase() -> Sequence[bytes]:
    return phase_spans(np.zeros(1, PHASE_SPANS), _SCOPE)


def _collective() -> Sequence[bytes]:
    rows = np.zeros(1, COLLECTIVES)
    rows["op"], rows["dtype"], rows["flags"] = int(Op.ALL_REDUCE), DTYPES.index("float32") + 1, int(EventFlag.POLLED)
    rows["enqueued_ns"], rows["started_ns"], rows["done_ns"] = 1, 2, 3
    return collective_spans(rows, [Group(uid="uid", name="0", ranks="0-1", size=2)], _SCOPE)


def _incident() -> Sequence[bytes]:
    return [incident_span(write_incident(whole_incident()), SpanPlace(trace_id=bytes(16), span_id=1))]
