"""Spans of steps, phases and collectives: rows in, serialized spans out.

Written straight as protobuf (``otlp_wire``), about ten times cheaper than objects of the SDK; what many spans have in
common is encoded once per call. Columns in, a list of entries for ``RequestBuilder`` out, in the order of the rows. A
trace is one step over all ranks; a rank's step span has no parent, its phases and collectives are its children. Ids and
content follow from the rows alone, so that a span that two write (agent and trace writer) is the same. Pure functions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from . import attributes as names
from .otlp_wire import (
    DoubleAttribute,
    IntAttribute,
    attribute,
    attributes,
    bytes_field,
    entry,
    resource,
    text_field,
    varint_field,
)
from .records import Group, Identity
from .trace_identity import (
    COLLECTIVE,
    PHASE,
    POINT_TO_POINT,
    group_word,
    operation_place,
    span_ids,
    step_span_id,
    step_trace_id,
    trace_word,
)
from .vocabulary import DTYPES, EventFlag, Op, Phase, StepFlag

#: What a rank spent in one phase without a break; a phase that a step's end cuts is two of them. Monotonic times.
PHASE_SPANS = np.dtype([("rank", "<u4"), ("phase", "<u1"), ("step", "<i8"), ("begin_ns", "<i8"), ("end_ns", "<i8")])

#: Field numbers of Span (opentelemetry/proto/trace/v1/trace.proto); kind 1 = INTERNAL, status code 2 = ERROR.
_NAME, _KIND, _ATTRIBUTES, _STATUS, _STATUS_CODE = 5, 6, 9, 15, 3
#: trace_id, span_id and both times of a span; the second one with its parent. Fields may come in any order.
_pack_root = struct.Struct("<2s16s2sQsQsQ").pack
_pack_child = struct.Struct("<2s16s2sQ2sQsQsQ").pack
_TRACE_ID, _SPAN_ID, _PARENT_ID, _START, _END = b"\x0a\x10", b"\x12\x08", b"\x22\x08", b"\x39", b"\x41"
#: A span's event "started" (field 11) up to its time, and behind it.
_pack_started = struct.Struct("<3sQ9s").pack
_STARTED_HEAD, _STARTED_TAIL = b"\x5a\x12\x09", b"\x12\x07started"

_INTERNAL = varint_field(_KIND, 1)
_ERROR = bytes_field(_STATUS, varint_field(_STATUS_CODE, 2))
_step_attribute = IntAttribute(_ATTRIBUTES, names.STEP)
_seq_attribute = IntAttribute(_ATTRIBUTES, names.COLLECTIVE_SEQ)
_bytes_attribute = IntAttribute(_ATTRIBUTES, names.COLLECTIVE_BYTES)
_collectives_attribute = IntAttribute(_ATTRIBUTES, names.STEP_COLLECTIVES)
_collective_seconds_attribute = DoubleAttribute(_ATTRIBUTES, names.STEP_COLLECTIVE_SECONDS)
_loss_attribute = DoubleAttribute(_ATTRIBUTES, names.STEP_LOSS)
_norm_attribute = DoubleAttribute(_ATTRIBUTES, names.STEP_GRAD_NORM)
_STEP_WAS_SKIPPED = attribute(_ATTRIBUTES, names.STEP_SKIPPED, True)

_SHARED_COLUMNS = ["group", "op", "flags", "dtype", "phase", "peer"]
_STATES = ("scheduled", "started", "completed")
_P2P, _FAILED, _POLLED = int(EventFlag.P2P), int(EventFlag.FAILED), int(EventFlag.POLLED)
_SKIPPED, _HAS_LOSS, _HAS_NORM = int(StepFlag.SKIPPED), int(StepFlag.HAS_LOSS), int(StepFlag.HAS_GRAD_NORM)
_NO_LOSS, _NO_NORM = int(StepFlag.LOSS_WITHHELD), int(StepFlag.GRAD_NORM_WITHHELD)
_STEP_NAME = text_field(_NAME, "step") + _INTERNAL
_PHASE_WORDS = tuple(phase.name.lower() for phase in Phase)
_seconds_attributes = tuple(DoubleAttribute(_ATTRIBUTES, names.STEP_SECONDS + word) for word in _PHASE_WORDS)
_PHASE_PARTS = tuple(
    text_field(_NAME, word) + _INTERNAL + attribute(_ATTRIBUTES, names.PHASE, word) for word in _PHASE_WORDS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScope:
    """Whose steps the rows are of.

    attempt: as ``trace_identity.attempt_word`` has it.
    clock_offset_ns: from the monotonic times of the rows to Unix time.
    """

    job: str
    attempt: str
    clock_offset_ns: int


def rank_resource(
    identity: Identity, *, job_name: str = "", pid: int = 0, local_rank: int = -1, world_size: int = 0
) -> bytes:
    """Serialized OTLP Resource of a rank's process; ``service.name`` is what people call the job.

    What is 0, "" or -1 is left out.
    """
    return resource(
        {
            names.SERVICE_NAME: job_name or identity.job or names.SCOPE_NAME,
            names.CLUSTER_ID: identity.cluster,
            names.RUN_ID: identity.run,
            names.JOB_ID: identity.job,
            names.JOB_OWNER: identity.owner,
            names.JOB_ATTEMPT: identity.attempt,
            names.WORLD: identity.world,
            names.NODE_ID: identity.node,
            names.HOST_NAME: identity.node,
            names.RANK: identity.rank if identity.rank >= 0 else None,
            names.LOCAL_RANK: local_rank if local_rank >= 0 else None,
            names.WORLD_SIZE: world_size or None,
            names.PROCESS_PID: pid or None,
        }
    )


def step_spans(rows: NDArray[np.void], scope: TraceScope) -> list[bytes]:
    """Serialized spans of steps, one per row of STEPS (columns in monotonic ns)."""
    phases_s = (rows["phase_ns"] / 1e9).tolist()
    columns = zip(
        rows["rank"].tolist(),
        rows["step"].tolist(),
        _unix(rows["begin_ns"], scope),
        _unix(rows["end_ns"], scope),
        rows["flags"].tolist(),
        rows["collectives"].tolist(),
        (rows["collective_ns"] / 1e9).tolist(),
        rows["loss"].tolist(),
        rows["grad_norm"].tolist(),
        phases_s,
        strict=True,
    )
    spans = []
    for rank, step, begin, end, flags, collectives, collective_s, loss, norm, spent_s in columns:
        trace_id = step_trace_id(scope.job, scope.attempt, step)
        parts = [
            _pack_root(_TRACE_ID, trace_id, _SPAN_ID, step_span_id(trace_id, rank), _START, begin, _END, end),
            _STEP_NAME,
            _step_attribute(step),
            _collectives_attribute(max(collectives, 0)),
            _collective_seconds_attribute(collective_s),
        ]
        if flags & (_HAS_LOSS | _NO_LOSS) == _HAS_LOSS:
            parts.append(_number(_loss_attribute, names.STEP_LOSS, loss))
        if flags & (_HAS_NORM | _NO_NORM) == _HAS_NORM:
            parts.append(_number(_norm_attribute, names.STEP_GRAD_NORM, norm))
        if flags & _SKIPPED:
            parts.append(_STEP_WAS_SKIPPED)
        parts += [write(seconds) for write, seconds in zip(_seconds_attributes, spent_s, strict=True) if seconds > 0]
        spans.append(entry(b"".join(parts)))
    return spans


def phase_spans(rows: NDArray[np.void], scope: TraceScope) -> list[bytes]:
    """Serialized spans of phases, one per row of PHASE_SPANS (columns in monotonic ns), below their steps' spans."""
    traces, trace_words = _traces(rows["step"], scope)
    # In one step a rank begins no two phases within a microsecond.
    ids = span_ids(trace_words, PHASE, rows["rank"], rows["begin_ns"] // 1000)
    spans = []
    for trace_id, span_id, rank, phase, begin, end in zip(
        traces,
        ids.tolist(),
        rows["rank"].tolist(),
        rows["phase"].tolist(),
        _unix(rows["begin_ns"], scope),
        _unix(rows["end_ns"], scope),
        strict=True,
    ):
        parent = step_span_id(trace_id, rank)
        head = _pack_child(_TRACE_ID, trace_id, _SPAN_ID, span_id, _PARENT_ID, parent, _START, begin, _END, end)
        spans.append(entry(head + _PHASE_PARTS[phase if phase < len(_PHASE_PARTS) else Phase.OTHER]))
    return spans


def collective_spans(
    rows: NDArray[np.void], groups: Sequence[Group], scope: TraceScope, *, open_until_ns: int = 0
) -> list[bytes]:
    """Serialized spans of operations, one per row of COLLECTIVES that is done (columns in monotonic ns).

    groups: what the ``group`` column indexes. open_until_ns: Unix time up to which open operations are known to have
    been open, 0: leave them out; their spans end there, with an error and the state that they were in.
    """
    if not open_until_ns:
        rows = rows[rows["done_ns"] != 0]
    if not len(rows):
        return []
    group_words = np.array([group_word(group.uid) for group in groups], np.uint64)
    traces, trace_words = _traces(rows["step"], scope)
    sort = np.where((rows["flags"] & _P2P) != 0, POINT_TO_POINT, COLLECTIVE)
    ids = span_ids(trace_words, sort, rows["rank"], operation_place(group_words[rows["group"]], rows["seq"]))
    enqueued = _unix(rows["enqueued_ns"], scope)
    done = np.where(rows["done_ns"] != 0, rows["done_ns"], open_until_ns - scope.clock_offset_ns)
    done = np.maximum(done, rows["enqueued_ns"])
    started = np.where(rows["started_ns"] > 0, rows["started_ns"] + scope.clock_offset_ns, 0)
    state = np.where(rows["done_ns"] != 0, 2, np.where(rows["started_ns"] > 0, 1, 0))
    columns = zip(
        traces,
        ids.tolist(),
        rows["rank"].tolist(),
        enqueued,
        _unix(done, scope),
        started.tolist(),
        rows["seq"].tolist(),
        rows["bytes"].tolist(),
        rows[_SHARED_COLUMNS].tolist(),
        state.tolist(),
        strict=True,
    )
    shared: dict[tuple[int, ...], bytes] = {}  # a group is dear to hash
    spans = []
    for trace_id, span_id, rank, begin, end, start, seq, nbytes, kind, state_now in columns:
        key = (*kind, state_now)
        part = shared.get(key)
        if part is None:
            part = shared[key] = _shared_part(groups[kind[0]], kind[1:], state_now)
        parent = step_span_id(trace_id, rank)
        pieces = [
            _pack_child(_TRACE_ID, trace_id, _SPAN_ID, span_id, _PARENT_ID, parent, _START, begin, _END, end),
            part,
            _seq_attribute(seq),
        ]
        if nbytes >= 0:
            pieces.append(_bytes_attribute(nbytes))
        if start > 0:
            pieces.append(_pack_started(_STARTED_HEAD, start, _STARTED_TAIL))
        spans.append(entry(b"".join(pieces)))
    return spans


@lru_cache(maxsize=4096)
def _shared_part(group: Group, kind: tuple[int, ...], state: int) -> bytes:
    """What all spans of one sort of collective say: name, kind, status and the attributes that rarely differ.

    kind: the columns of ``_SHARED_COLUMNS`` behind the group.
    """
    op, flags, dtype, phase, peer = kind
    word = Op(op).name.lower() if op in Op.__members__.values() else Op.UNKNOWN.name.lower()
    failed = bool(flags & _FAILED)
    values: dict[str, str | int | float | None] = {
        names.COLLECTIVE_OP: word,
        names.COLLECTIVE_STATE: "failed" if failed else _STATES[state],
        names.COLLECTIVE_DTYPE: DTYPES[dtype - 1] if 0 < dtype <= len(DTYPES) else None,
        names.COLLECTIVE_PEER: peer if peer >= 0 else None,
        names.COLLECTIVE_POLLED: True if flags & _POLLED else None,
        names.GROUP_NAME: group.label,
        names.GROUP_UID: group.uid,
        names.GROUP_SIZE: group.size,
        names.PHASE: _PHASE_WORDS[phase] if phase < len(_PHASE_WORDS) else None,
    }
    status = _ERROR if failed or state != _STATES.index("completed") else b""
    return text_field(_NAME, word) + _INTERNAL + attributes(_ATTRIBUTES, values) + status


def _traces(steps: NDArray[np.int64], scope: TraceScope) -> tuple[list[bytes], NDArray[np.uint64]]:
    """Trace ids of a column of steps, and their first words."""
    unique, inverse = np.unique(steps, return_inverse=True)
    ids = [step_trace_id(scope.job, scope.attempt, step) for step in unique.tolist()]
    words = np.array([trace_word(trace_id) for trace_id in ids], np.uint64)
    return [ids[place] for place in inverse.tolist()], words[inverse]


def _unix(mono_ns: NDArray[np.int64], scope: TraceScope) -> list[int]:
    unix: list[int] = np.maximum(mono_ns + scope.clock_offset_ns, 0).tolist()
    return unix


def _number(write: DoubleAttribute, key: str, value: float) -> bytes:
    """NaN and infinities as words: they are what people look for, and not every back end takes them as numbers."""
    return write(value) if math.isfinite(value) else attribute(_ATTRIBUTES, key, str(value))
