"""Spans of steps and collectives, written as OTLP protobuf straight from rows: some microseconds each.

Ids are hashes of what a span is about, trace id = hash(job, attempt, step) and span id = hash(trace, rank, group,
sequence), so that whoever writes a span of the same thing writes the same span. Pure functions; the wire bytes are
written by hand because SDK objects cost ten times as much (tests read them back with the official protobuf classes).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from . import attributes as names
from .otlp import build_resource
from .records import Block, Identity
from .vocabulary import EventFlag, EventName, Op, Phase, StepFlag

STEP_SPAN = "whichrank.step"
#: Attributes of one span, in order.
AttributeValue = str | bool | int | float
Attributes = tuple[tuple[str, AttributeValue], ...]

_P2P, _FAILED = int(EventFlag.P2P), int(EventFlag.FAILED)  # arithmetic on enum members is slow
_INTERNAL = 1  # SpanKind.SPAN_KIND_INTERNAL
_ERROR = 2  # Status.STATUS_CODE_ERROR

# Protobuf tags: field number << 3 | wire type (0 varint, 1 fixed64, 2 length-delimited).
_TAG_TRACE_ID = b"\x0a"
_TAG_SPAN_ID = b"\x12"
_TAG_PARENT = b"\x22"
_TAG_NAME = b"\x2a"
_KIND_INTERNAL = bytes((6 << 3, _INTERNAL))
_TIMES = struct.Struct("<BQBQ")
_TAG_START = 7 << 3 | 1
_TAG_END = 8 << 3 | 1
_TAG_ATTRIBUTES = b"\x4a"
_STATUS_ERROR = b"\x7a\x02\x18" + bytes((_ERROR,))
_DOUBLE = struct.Struct("<Bd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One interval. Times are Unix nanoseconds; ``parent_id`` is empty for a root."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes = b""
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes = ()
    failed: bool = False


@lru_cache(maxsize=4096)
def trace_id_of(job: str, attempt: str, step: int) -> bytes:
    """16 bytes: one trace per step of a job's attempt."""
    return hashlib.blake2b(f"{job}\0{attempt}\0{step}".encode("utf-8", "replace"), digest_size=16).digest()


def span_id_of(trace_id: bytes, rank: int, group_uid: str = "", sequence: int = -1) -> bytes:
    """8 bytes: a rank's collective, or with neither group nor sequence the rank's step itself."""
    about = b"%b%d\0%b\0%d" % (trace_id, rank, group_uid.encode("utf-8", "replace"), sequence)
    return hashlib.blake2b(about, digest_size=8).digest()


def encode_spans(identity: Identity, spans: Iterable[Span]) -> bytes:
    """One serialized ExportTraceServiceRequest with the spans of one identity."""
    scope = _delimited(b"\x0a", _delimited(b"\x0a", names.SCOPE_NAME.encode()))
    body = b"".join([scope, *(_delimited(b"\x12", _encode_span(span)) for span in spans)])
    resource = _delimited(b"\x0a", build_resource(identity).SerializeToString())
    return _delimited(b"\x0a", resource + _delimited(b"\x12", body))


def step_spans(block: Block) -> list[Span]:
    """A root span per row of a steps block, with the seconds spent in each phase."""
    if block.name is not EventName.BLOCK_STEPS:
        raise ValueError(f"{block.name.value} is not a block of steps")
    spans: list[Span] = []
    offset = block.clock_offset_ns
    phase_names = [f"{names.PHASE}.{phase.name.lower()}" for phase in Phase]
    for row in block.rows:
        step, rank = int(row["step"]), int(row["rank"])
        trace = trace_id_of(block.identity.job, block.identity.attempt, step)
        attributes: list[tuple[str, AttributeValue]] = [(names.STEP, step), (names.RANK, rank)]
        flags = int(row["flags"])
        if flags & StepFlag.HAS_LOSS:
            attributes.append((names.STEP_LOSS, float(row["loss"])))
        if flags & StepFlag.HAS_GRAD_NORM:
            attributes.append((names.STEP_GRAD_NORM, float(row["grad_norm"])))
        for name, spent_ns in zip(phase_names, row["phase_ns"].tolist(), strict=True):
            if spent_ns > 0:
                attributes.append((name, spent_ns / 1e9))
        spans.append(
            Span(
                trace_id=trace,
                span_id=span_id_of(trace, rank),
                name=STEP_SPAN,
                start_ns=int(row["begin_ns"]) + offset,
                end_ns=int(row["end_ns"]) + offset,
                attributes=tuple(attributes),
            )
        )
    return spans


def collective_spans(block: Block) -> list[Span]:
    """A span per finished operation of a collectives block, child of its rank's step; open ones have no span yet."""
    if block.name is not EventName.BLOCK_COLLECTIVES:
        raise ValueError(f"{block.name.value} is not a block of collectives")
    rows = block.rows[block.rows["done_ns"] > 0]
    job, attempt, offset = block.identity.job, block.identity.attempt, block.clock_offset_ns
    columns = [rows[name].tolist() for name in ("rank", "group", "op", "flags", "phase", "seq", "bytes", "step")]
    times = zip(rows["enqueued_ns"].tolist(), rows["started_ns"].tolist(), rows["done_ns"].tolist(), strict=True)
    spans: list[Span] = []
    for rank, group, op, flags, phase, seq, nbytes, step, (enqueued, started, done) in zip(
        *columns, times, strict=True
    ):
        trace = trace_id_of(job, attempt, step)
        uid, group_name = block.groups[group].uid, block.groups[group].name
        # Point-to-point operations are counted apart from collectives.
        key = f"{uid} p2p" if flags & _P2P else uid
        spans.append(
            Span(
                trace_id=trace,
                span_id=span_id_of(trace, rank, key, seq),
                parent_id=span_id_of(trace, rank),
                name=_op_name(op),
                start_ns=(started or enqueued) + offset,
                end_ns=done + offset,
                attributes=(
                    (names.STEP, step),
                    (names.RANK, rank),
                    (names.PHASE, _phase_name(phase)),
                    (names.GROUP_NAME, group_name),
                    (names.GROUP_UID, uid),
                    (names.COLLECTIVE_SEQ, seq),
                    (names.COLLECTIVE_BYTES, nbytes),
                ),
                failed=bool(flags & _FAILED),
            )
        )
    return spans


@lru_cache(maxsize=256)
def _op_name(op: int) -> str:
    return Op(op).name.lower() if op in Op.__members__.values() else Op.UNKNOWN.name.lower()


@lru_cache(maxsize=256)
def _phase_name(phase: int) -> str:
    return Phase(phase).name.lower() if phase in Phase.__members__.values() else Phase.OTHER.name.lower()


def _encode_span(span: Span) -> bytes:
    parts = [_delimited(_TAG_TRACE_ID, span.trace_id), _delimited(_TAG_SPAN_ID, span.span_id)]
    if span.parent_id:
        parts.append(_delimited(_TAG_PARENT, span.parent_id))
    parts.append(_delimited(_TAG_NAME, span.name.encode("utf-8", "replace")))
    parts.append(_KIND_INTERNAL)
    parts.append(_TIMES.pack(_TAG_START, max(span.start_ns, 0), _TAG_END, max(span.end_ns, 0)))
    parts.extend(_encode_attribute(name, value) for name, value in span.attributes)
    if span.failed:
        parts.append(_STATUS_ERROR)
    return b"".join(parts)


def _encode_attribute(name: str, value: AttributeValue) -> bytes:
    if isinstance(value, float):
        return _delimited(_TAG_ATTRIBUTES, _key(name) + _delimited(b"\x12", _DOUBLE.pack(4 << 3 | 1, value)))
    return _encode_discrete_attribute(name, value)


# Steps, ranks, groups and sizes repeat from span to span; typed, because True == 1.
@lru_cache(maxsize=8192, typed=True)
def _encode_discrete_attribute(name: str, value: str | bool | int) -> bytes:
    if isinstance(value, str):
        any_value = _delimited(b"\x0a", value.encode("utf-8", "replace"))
    elif isinstance(value, bool):
        any_value = b"\x10\x01" if value else b"\x10\x00"
    else:
        any_value = b"\x18" + _varint(value)
    return _delimited(_TAG_ATTRIBUTES, _key(name) + _delimited(b"\x12", any_value))


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    return _delimited(b"\x0a", name.encode("utf-8", "replace"))


def _delimited(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    return tag + (_ONE_BYTE[size] if size < 128 else _varint(size)) + content


_ONE_BYTE: Sequence[bytes] = [bytes((size,)) for size in range(128)]


def _varint(number: int) -> bytes:
    number &= 0xFFFFFFFFFFFFFFFF  # negative numbers are ten bytes of two's complement
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
