"""Records as OTLP log requests.

One ``ExportLogsServiceRequest`` per message; one resource per run of records of one identity, order kept. A block is
one LogRecord whose body is packed rows (``block``); events, findings and incidents are LogRecords with an event name,
typed attributes and a body that people can read. Pure functions, safe in any thread; ``otlp`` reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from . import attributes as names
from .block import BLOCK_SCHEMA_VERSION, DESCRIPTORS, split_block, write_rows
from .records import Block, Event, Finding, Group, Identity, Incident
from .ring_layout import cut_text
from .strided_ranks import shorten
from .vocabulary import EventName, Severity

#: A broker's usual limit is 1 MB per message; encode_batches stays below it.
MAX_MESSAGE_BYTES = 900_000

Encodable = Block | Event | Finding | Incident

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
_CACHE_ENTRIES = 65_536
#: Of an event's line for people: what is too long, said already, or looks like a secret and is none.
_NOT_READ = frozenset({"stack", "rank", "token"})
#: Characters of a list of members; what is longer is told by its runs.
_LONG_LIST = 256

_SEVERITY_OF_EVENT: dict[EventName, SeverityNumber.ValueType] = {
    EventName.RANK_EXCEPTION: SeverityNumber.SEVERITY_NUMBER_ERROR,
    EventName.RANK_EXIT: SeverityNumber.SEVERITY_NUMBER_WARN,
    EventName.RANK_STOPPED: SeverityNumber.SEVERITY_NUMBER_WARN,
    EventName.RANK_STALE: SeverityNumber.SEVERITY_NUMBER_WARN,
    EventName.INPUT_SILENT: SeverityNumber.SEVERITY_NUMBER_ERROR,
    EventName.AGENT_HEALTH: SeverityNumber.SEVERITY_NUMBER_DEBUG,
    EventName.TICK: SeverityNumber.SEVERITY_NUMBER_TRACE,
}
_SEVERITY_OF_INCIDENT: dict[str, SeverityNumber.ValueType] = {
    Severity.PAGE.value: SeverityNumber.SEVERITY_NUMBER_ERROR,
    Severity.TICKET.value: SeverityNumber.SEVERITY_NUMBER_WARN,
    Severity.INFO.value: SeverityNumber.SEVERITY_NUMBER_INFO,
}


def encode_payloads(payloads: Iterable[Encodable], *, is_copy: bool = False) -> bytes:
    """One serialized ExportLogsServiceRequest; blocks over 64 KiB are split. Order is kept.

    is_copy: the same lies on another topic for the operators, which pass these over.
    """
    request = ExportLogsServiceRequest()
    scope: ScopeLogs | None = None
    current: Identity | None = None
    for payload in payloads:
        identity = identity_of(payload)
        if scope is None or identity != current:
            resource_logs = request.resource_logs.add()
            resource_logs.resource.MergeFromString(_resource_bytes(identity))
            scope = resource_logs.scope_logs.add()
            scope.scope.name = names.SCOPE_NAME
            if is_copy:
                _set(scope.scope.attributes.add(), names.COPY, True)
            current = identity
        _add_record(scope, payload)
    return request.SerializeToString()


def encode_batches(
    payloads: Iterable[Encodable], limit_bytes: int = MAX_MESSAGE_BYTES, *, is_copy: bool = False
) -> list[bytes]:
    """Messages of at most about ``limit_bytes`` that together hold the payloads in order."""
    messages: list[bytes] = []
    batch: list[Encodable] = []
    batch_bytes = 0
    for payload in payloads:
        pieces: list[Encodable] = list(split_block(payload)) if isinstance(payload, Block) else [payload]
        for piece in pieces:
            size = piece.rows.nbytes + 512 if isinstance(piece, Block) else _rough_bytes(piece)
            if batch and batch_bytes + size > limit_bytes:
                messages.append(encode_payloads(batch, is_copy=is_copy))
                batch, batch_bytes = [], 0
            batch.append(piece)
            batch_bytes += size
    if batch:
        messages.append(encode_payloads(batch, is_copy=is_copy))
    return messages


def identity_of(payload: Encodable) -> Identity:
    """Who a payload speaks of; an incident speaks of its first job."""
    if not isinstance(payload, Incident):
        return payload.identity
    job = payload.document.get("job") or {}
    return Identity(
        cluster=_word(payload.document.get("cluster")),
        run=_word(job.get("run")),
        job=_word(job.get("id")),
        attempt=_word(job.get("attempt")),
    )


def _rough_bytes(payload: Encodable) -> int:
    if isinstance(payload, Event):
        return 256 + sum(len(k) + (len(v) if isinstance(v, (str, tuple)) else 8) for k, v in payload.attributes.items())
    content = (
        payload.body if isinstance(payload, Finding) else payload.document if isinstance(payload, Incident) else {}
    )
    return 512 + len(_json(content))


def _add_record(scope: ScopeLogs, payload: Encodable) -> None:
    if isinstance(payload, Block):
        for piece in split_block(payload):
            _fill_block(scope.log_records.add(), piece)
    elif isinstance(payload, Event):
        _fill_event(scope.log_records.add(), payload)
    elif isinstance(payload, Finding):
        _fill_finding(scope.log_records.add(), payload)
    else:
        _fill_incident(scope.log_records.add(), payload)


def _fill_block(record: LogRecord, block: Block) -> None:
    record.time_unix_nano = _time(block.time_ns)
    record.event_name = block.name.value
    add = record.attributes.add
    _set(add(), names.BLOCK_SCHEMA, BLOCK_SCHEMA_VERSION)
    _set(add(), names.BLOCK_COUNT, len(block.rows))
    _set(add(), names.BLOCK_DTYPE, DESCRIPTORS[block.name])
    if block.groups:
        _set(add(), names.BLOCK_GROUPS, _groups_text(block.groups))
    _set(add(), names.BLOCK_CLOCK_OFFSET, block.clock_offset_ns)
    record.body.bytes_value = write_rows(block)


def _fill_event(record: LogRecord, event: Event) -> None:
    record.time_unix_nano = _time(event.time_ns)
    record.event_name = event.name.value
    record.severity_number = _SEVERITY_OF_EVENT.get(event.name, SeverityNumber.SEVERITY_NUMBER_INFO)
    if event.mono_ns:
        _set(record.attributes.add(), names.MONOTONIC_NS, event.mono_ns)
    for short, value in event.attributes.items():
        if value is not None:
            _set(record.attributes.add(), names.wire_name(short), value)
    record.body.string_value = _text(_readable(event))


def _fill_finding(record: LogRecord, finding: Finding) -> None:
    record.time_unix_nano = _time(finding.time_ns)
    record.event_name = EventName.FINDING.value
    record.severity_number = SeverityNumber.SEVERITY_NUMBER_INFO
    add = record.attributes.add
    _set(add(), names.FINDING_KEY, finding.key)
    _set(add(), names.FINDING_CLEARED, finding.cleared)
    kind = finding.body.get("kind")
    if kind is not None:
        _set(add(), names.INCIDENT_KIND, _word(kind))
    record.body.string_value = _text(_json(finding.body))


def _fill_incident(record: LogRecord, incident: Incident) -> None:
    document = incident.document
    times = document.get("times") or {}
    record.time_unix_nano = _time(int(float(times.get("detected") or 0.0) * 1e9))
    record.event_name = f"{EventName.INCIDENT.value}.{_word(document.get('change'))}"
    severity = _word(document.get("severity"))
    record.severity_number = _SEVERITY_OF_INCIDENT.get(severity, SeverityNumber.SEVERITY_NUMBER_INFO)
    record.severity_text = severity.upper()
    suspect: dict[str, Any] = next(iter(document.get("suspects") or ()), {})
    shown = (
        (names.INCIDENT_ID, document.get("id")),
        (names.INCIDENT_REVISION, document.get("revision")),
        (names.INCIDENT_STATE, document.get("state")),
        (names.INCIDENT_SEVERITY, document.get("severity")),
        (names.INCIDENT_BUCKET, document.get("bucket")),
        (names.INCIDENT_KIND, document.get("kind")),
        (names.INCIDENT_SCOPE, document.get("scope")),
        (names.INCIDENT_CONFIDENCE, document.get("confidence")),
        (names.SUSPECT_RANK, suspect.get("rank")),
        (names.SUSPECT_NODE, suspect.get("node")),
        (names.SUSPECT_GPU, suspect.get("gpu")),
    )
    for name, value in shown:
        if value is not None:
            _set(record.attributes.add(), name, value)
    record.body.string_value = _text(_json(document))


def _readable(event: Event) -> str:
    parts = [event.name.value.removeprefix("whichrank.")]
    if event.identity.rank >= 0:
        parts.append(f"rank={event.identity.rank}")
    parts.extend(f"{k}={v}" for k, v in event.attributes.items() if k not in _NOT_READ and v is not None)
    return cut_text(" ".join(parts), 1000)


def _json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), default=_json_default)


def _json_default(value: Any) -> Any:
    item = getattr(value, "item", None)  # numpy scalars
    return item() if item is not None else str(value)


def _word(value: Any) -> str:
    if value is None:
        return ""
    return str(getattr(value, "value", value))


def _time(time_ns: int) -> int:
    return min(max(int(time_ns), 0), _UINT64_MAX)


def _text(text: str) -> str:
    """The text with what UTF-8 cannot hold (file names with undecodable bytes) replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _set(pair: KeyValue, key: str, value: Any) -> None:
    pair.key = _text(key)
    _set_value(pair.value, value)


def _set_value(target: AnyValue, value: Any) -> None:
    if hasattr(value, "item") and not isinstance(value, (str, int, float)):  # numpy scalars
        value = value.item()
    if isinstance(value, str):  # members of str enums too
        target.string_value = _text(_word(value))
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        if _INT64_MIN <= value <= _INT64_MAX:
            target.int_value = int(value)
        else:  # unsigned words that do not fit: readable rather than wrong
            target.string_value = str(int(value))
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, (tuple, list)):
        target.array_value.SetInParent()
        for item in value:
            _set_value(target.array_value.values.add(), item)
    else:
        target.string_value = _text(str(value))


_resource_by_identity: dict[Identity, bytes] = {}
_text_by_groups: dict[tuple[Group, ...], str] = {}


def _resource_bytes(identity: Identity) -> bytes:
    cached = _resource_by_identity.get(identity)
    if cached is None:
        cached = build_resource(identity).SerializeToString()
        remember(_resource_by_identity, identity, cached)
    return cached


def build_resource(identity: Identity) -> Resource:
    """The OTLP resource of an identity; ``service.name`` is its job, so that any OTLP back end groups by it."""
    resource = Resource()
    add = resource.attributes.add
    _set(add(), names.SERVICE_NAME, identity.job or names.SCOPE_NAME)
    for name, value in (
        (names.CLUSTER_ID, identity.cluster),
        (names.RUN_ID, identity.run),
        (names.JOB_ID, identity.job),
        (names.JOB_OWNER, identity.owner),
        (names.JOB_ATTEMPT, identity.attempt),
        (names.WORLD, identity.world),
        (names.NODE_ID, identity.node),
        (names.HOST_NAME, identity.node),
    ):
        if value:
            _set(add(), name, value)
    if identity.rank >= 0:
        _set(add(), names.RANK, identity.rank)
    return resource


def _members(ranks: str) -> dict[str, str]:
    """Of a group in a block. Readers of earlier releases know the members of long lists from GROUP_DEFINED."""
    if len(ranks) <= _LONG_LIST:
        return {"ranks": ranks}
    try:
        runs = shorten(ranks)
    except ValueError:  # as it is: the reader says what is wrong with it
        return {"ranks": ranks}
    return {"runs": runs} if 2 * len(runs) < len(ranks) else {"ranks": ranks}


def _groups_text(groups: tuple[Group, ...]) -> str:
    cached = _text_by_groups.get(groups)
    if cached is None:
        cached = _json(
            [
                {
                    "uid": g.uid,
                    "name": g.name,
                    "desc": g.desc,
                    **_members(g.ranks),
                    "size": g.size,
                    "backend": g.backend,
                    "timeout_s": g.timeout_s,
                    "default": g.is_default,
                }
                for g in groups
            ]
        )
        remember(_text_by_groups, groups, cached)
    return cached


def remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value in a cache of bounded size, which is emptied when it is full."""
    if len(cache) >= _CACHE_ENTRIES:  # attempts and ranks come and go: start over rather than grow
        cache.clear()
    cache[key] = value
