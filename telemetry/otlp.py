"""Records to and from OTLP log requests: what lies on every topic, readable by a stock OpenTelemetry Collector.

One ``ExportLogsServiceRequest`` per message; one resource per run of records of one identity, order kept. A block is
one LogRecord whose body is packed rows (``block``); events, findings and incidents are LogRecords with an event name,
typed attributes and a body that people can read. Decoding never raises: what cannot be read comes back as ``Broken``,
and event names of a newer release or of other software are passed over. Pure functions, safe in any thread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from . import attributes as names
from .block import BLOCK_SCHEMA_VERSION, DESCRIPTORS, MAX_RANK, BlockError, read_rows, split_block, write_rows
from .records import Block, Broken, Event, Finding, Group, Identity, Incident, Payload
from .tables import TABLES
from .vocabulary import EventName, Severity

#: A broker's usual limit is 1 MB per message; encode_batches stays below it.
MAX_MESSAGE_BYTES = 900_000
MAX_GROUPS = 0xFFFF
#: More attributes than this on one record are damage or abuse.
MAX_ATTRIBUTES = 256
MAX_RANKS_TEXT = 1 << 16
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

Encodable = Block | Event | Finding | Incident

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
_CACHE_ENTRIES = 4096

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

_EVENT_BY_WIRE = {name.value: name for name in EventName}
_NOT_EVENTS = frozenset({*TABLES, EventName.FINDING, EventName.INCIDENT})
_REQUIRED: dict[EventName, tuple[str, ...]] = {
    EventName.JOB_SIGNALLED: ("signal",),
    EventName.JOB_FINISHED: ("exit_code",),
    EventName.RANK_STARTED: ("pid",),
    EventName.RANK_EXCEPTION: ("type", "message"),
    EventName.RANK_STALE: ("heartbeat_age_ns",),
    EventName.RANK_LEVEL: ("level", "hook_state"),
    EventName.EVIDENCE_REQUEST: ("id", "rank"),
}


# --- encoding -------------------------------------------------------------------------------------------------------
def encode_payloads(payloads: Iterable[Encodable]) -> bytes:
    """One serialized ExportLogsServiceRequest; blocks over 64 KiB are split. Order is kept."""
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
            current = identity
        _add_record(scope, payload)
    return request.SerializeToString()


def encode_batches(payloads: Iterable[Encodable], limit_bytes: int = MAX_MESSAGE_BYTES) -> list[bytes]:
    """Messages of at most about ``limit_bytes`` that together hold the payloads in order."""
    messages: list[bytes] = []
    batch: list[Encodable] = []
    batch_bytes = 0
    for payload in payloads:
        pieces: list[Encodable] = list(split_block(payload)) if isinstance(payload, Block) else [payload]
        for piece in pieces:
            size = piece.rows.nbytes + 512 if isinstance(piece, Block) else _rough_bytes(piece)
            if batch and batch_bytes + size > limit_bytes:
                messages.append(encode_payloads(batch))
                batch, batch_bytes = [], 0
            batch.append(piece)
            batch_bytes += size
    if batch:
        messages.append(encode_payloads(batch))
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
    parts.extend(f"{k}={v}" for k, v in event.attributes.items() if k not in ("stack", "rank") and v is not None)
    return " ".join(parts)[:1000]


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
        _remember(_resource_by_identity, identity, cached)
    return cached


def build_resource(identity: Identity) -> Resource:
    """The OTLP resource of an identity. ``service.name`` is the job, so that any OTLP back end groups by it."""
    resource = Resource()
    add = resource.attributes.add
    _set(add(), names.SERVICE_NAME, identity.job or names.SCOPE_NAME)
    for name, value in (
        (names.CLUSTER_ID, identity.cluster),
        (names.RUN_ID, identity.run),
        (names.JOB_ID, identity.job),
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


def _groups_text(groups: tuple[Group, ...]) -> str:
    cached = _text_by_groups.get(groups)
    if cached is None:
        cached = _json(
            [
                {
                    "uid": g.uid,
                    "name": g.name,
                    "desc": g.desc,
                    "ranks": g.ranks,
                    "size": g.size,
                    "backend": g.backend,
                    "timeout_s": g.timeout_s,
                    "default": g.is_default,
                }
                for g in groups
            ]
        )
        _remember(_text_by_groups, groups, cached)
    return cached


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if len(cache) >= _CACHE_ENTRIES:  # attempts and ranks come and go: start over rather than grow
        cache.clear()
    cache[key] = value


# --- decoding -------------------------------------------------------------------------------------------------------
def decode_logs(topic: str, value: bytes) -> list[Payload]:
    """Payloads of one message in order. Never raises; ``Broken`` stands for what cannot be read."""
    try:
        request = ExportLogsServiceRequest.FromString(value)
    except DecodeError:
        return [Broken(topic=topic, reason=f"{len(value)} bytes are not an OTLP logs request", value=bytes(value))]
    payloads: list[Payload] = []
    for resource_logs in request.resource_logs:
        identity = _identity(resource_logs)
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                try:
                    payload = _decode_record(record, identity)
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                    reason = f"record {record.event_name[:60]!r}: {str(error)[:200] or type(error).__name__}"
                    payload = Broken(topic=topic, reason=reason, value=record.SerializeToString())
                if payload is not None:
                    payloads.append(payload)
    return payloads


def _decode_record(record: LogRecord, identity: Identity) -> Payload | None:
    wire = record.event_name
    name = _EVENT_BY_WIRE.get(wire)
    if name is None:
        if wire.startswith(EventName.INCIDENT.value + "."):
            return Incident(document=_json_object(record.body.string_value))
        return None
    if name in TABLES:
        return _decode_block(record, name, identity)
    if name is EventName.FINDING:
        return _decode_finding(record, identity)
    if name is EventName.INCIDENT:
        return Incident(document=_json_object(record.body.string_value))
    return _decode_event(record, name, identity)


def _decode_block(record: LogRecord, name: EventName, identity: Identity) -> Block:
    found: dict[str, AnyValue] = {pair.key: pair.value for pair in record.attributes}
    count = found.get(names.BLOCK_COUNT)
    descriptor = found.get(names.BLOCK_DTYPE)
    if count is None or descriptor is None or not record.body.HasField("bytes_value"):
        raise BlockError("block without count, dtype or packed body")
    offset = found.get(names.BLOCK_CLOCK_OFFSET)
    text = found.get(names.BLOCK_GROUPS)
    groups = _groups(text.string_value) if text is not None else ()
    rows = read_rows(name, descriptor.string_value, count.int_value, record.body.bytes_value, len(groups))
    return Block(
        name=name,
        identity=identity,
        rows=rows,
        groups=groups,
        clock_offset_ns=offset.int_value if offset is not None else 0,
        time_ns=record.time_unix_nano,
    )


def _decode_event(record: LogRecord, name: EventName, identity: Identity) -> Event:
    if len(record.attributes) > MAX_ATTRIBUTES:
        raise ValueError(f"{len(record.attributes)} attributes are more than {MAX_ATTRIBUTES}")
    mono_ns = 0
    found: dict[str, Any] = {}
    for pair in record.attributes:
        if pair.key == names.MONOTONIC_NS:
            mono_ns = pair.value.int_value
            continue
        value = _value(pair.value)
        short = names.short_name(pair.key)
        if value is not None and names.is_usable(short, value):
            found[short] = value
    ranks = found.get("ranks")
    if isinstance(ranks, str):
        _check_ranks(ranks)
    for short in _REQUIRED.get(name, ()):
        if short not in found:
            raise ValueError(f"attribute {names.wire_name(short)} is missing or of a wrong type")
    return Event(name=name, identity=identity, time_ns=record.time_unix_nano, mono_ns=mono_ns, attributes=found)


def _decode_finding(record: LogRecord, identity: Identity) -> Finding:
    found: dict[str, AnyValue] = {pair.key: pair.value for pair in record.attributes}
    key = found.get(names.FINDING_KEY)
    cleared = found.get(names.FINDING_CLEARED)
    if key is None or not key.string_value:
        raise ValueError("finding without a key")
    return Finding(
        identity=identity,
        key=key.string_value,
        cleared=cleared.bool_value if cleared is not None else False,
        time_ns=record.time_unix_nano,
        body=_json_object(record.body.string_value),
    )


def _json_object(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("body is not a JSON object")
    return content


_VALUE_READERS: dict[str, Callable[[AnyValue], Any]] = {
    "string_value": lambda value: value.string_value,
    "int_value": lambda value: value.int_value,
    "double_value": lambda value: value.double_value,
    "bool_value": lambda value: value.bool_value,
    "array_value": lambda value: tuple(_value(item) for item in value.array_value.values),
}


def _value(value: AnyValue) -> Any:
    """Plain value, None for sorts that records do not hold (maps, bytes)."""
    kind = value.WhichOneof("value")
    reader = _VALUE_READERS.get(kind) if kind is not None else None
    return reader(value) if reader is not None else None


_identity_by_resource: dict[bytes, Identity] = {}
_groups_by_text: dict[str, tuple[Group, ...]] = {}


def _identity(resource_logs: ResourceLogs) -> Identity:
    key = resource_logs.resource.SerializeToString()
    cached = _identity_by_resource.get(key)
    if cached is None:
        cached = read_identity(resource_logs.resource.attributes)
        _remember(_identity_by_resource, key, cached)
    return cached


def read_identity(pairs: Sequence[KeyValue]) -> Identity:
    """Identity of a resource's attributes; what is absent or of another type is unknown."""
    found = {pair.key: pair.value for pair in pairs}

    def text(name: str) -> str:
        value = found.get(name)
        return value.string_value if value is not None else ""

    rank = found.get(names.RANK)
    return Identity(
        cluster=text(names.CLUSTER_ID),
        run=text(names.RUN_ID),
        job=text(names.JOB_ID),
        attempt=text(names.JOB_ATTEMPT),
        world=text(names.WORLD),
        node=text(names.NODE_ID) or text(names.HOST_NAME),
        rank=rank.int_value if rank is not None and _is_rank(rank) else -1,
    )


def _is_rank(value: AnyValue) -> bool:
    return value.HasField("int_value") and 0 <= value.int_value < MAX_RANK


def _check_ranks(text: str) -> None:
    """Refuse ranges that are none, or whose members would exhaust memory when somebody lists them."""
    if len(text) > MAX_RANKS_TEXT:
        raise ValueError(f"a list of ranks of {len(text)} characters")
    members = 0
    for part in filter(None, text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a range of ranks")
        low, high = int(match[1]), int(match[2] or match[1])
        members += high - low + 1
        if not low <= high < MAX_RANK or members > MAX_RANK:
            raise ValueError(f"{part[:40]!r} is not a range of ranks of any job")


def _groups(text: str) -> tuple[Group, ...]:
    cached = _groups_by_text.get(text)
    if cached is None:
        entries = json.loads(text)
        if not isinstance(entries, list) or len(entries) > MAX_GROUPS:
            raise ValueError("groups are not a list")
        cached = tuple(_group(entry) for entry in entries)
        _remember(_groups_by_text, text, cached)
    return cached


def _group(entry: Any) -> Group:
    if not isinstance(entry, dict) or not isinstance(entry.get("uid"), str):
        raise ValueError("a group has no uid")
    ranks = str(entry.get("ranks", ""))
    _check_ranks(ranks)
    size, timeout_s = int(entry.get("size", 0)), float(entry.get("timeout_s", 0.0))
    if not 0 <= size <= MAX_RANK:
        raise ValueError(f"a group of {size} ranks")
    return Group(
        uid=entry["uid"],
        name=str(entry.get("name", "")),
        desc=str(entry.get("desc", "")),
        ranks=ranks,
        size=size,
        backend=str(entry.get("backend", "")),
        timeout_s=timeout_s if math.isfinite(timeout_s) else 0.0,
        is_default=bool(entry.get("default", False)),
    )
