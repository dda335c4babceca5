"""Records to and from OTLP log requests: what lies on every topic, readable by a stock OpenTelemetry Collector.

Decoding is here, encoding in ``otlp_encode`` (its functions are also names of this module). Decoding never raises: what
cannot be read comes back as ``Broken``, and event names of a newer release or of other software are passed over. Pure
functions, safe in any thread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from . import attributes as names
from .block import MAX_RANK, BlockError, checked_rows, read_rows
from .otlp_encode import Encodable as Encodable
from .otlp_encode import encode_batches as encode_batches
from .otlp_encode import encode_payloads as encode_payloads
from .otlp_encode import remember
from .packed_flush import PACKED, WHO_BETWEEN, blocks_of, list_referred, read_packed
from .records import Block, Broken, Event, Finding, Flush, Group, Identity, Incident, Payload
from .strided_ranks import lengthen
from .tables import NO_GROUP, TABLES
from .vocabulary import EventName

try:
    from ._otlp_scan import scan as _scan
except ImportError:  # no compiler where this was installed: the protobuf library reads everything
    _scan = None  # type: ignore[assignment]

MAX_GROUPS = 0xFFFF
#: More attributes than this on one record are damage or abuse.
MAX_ATTRIBUTES = 256
MAX_RANKS_TEXT = 1 << 16
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
#: The year 2116.
_LATEST_NS = 1 << 62

_EVENT_BY_WIRE = {name.value: name for name in EventName}
_INCIDENT_REVISION = EventName.INCIDENT.value + "."
_BLOCK_BY_WIRE = {name.value: name for name in TABLES}
_REQUIRED: dict[EventName, tuple[str, ...]] = {
    EventName.JOB_SIGNALLED: ("signal",),
    EventName.JOB_FINISHED: ("exit_code",),
    EventName.RANK_STARTED: ("pid",),
    EventName.RANK_EXCEPTION: ("type", "message"),
    EventName.RANK_STALE: ("heartbeat_age_ns",),
    EventName.LAUNCH_MET: ("token",),
    EventName.RANK_LEVEL: ("level", "hook_state"),
    EventName.RANK_CHECKPOINT: ("checkpoint", "read"),
    EventName.CHECKPOINT_STATE: ("state", "step", "ranks"),
    EventName.CHECKPOINT_EMERGENCY: ("request", "state"),
    EventName.EVIDENCE_REQUEST: ("id", "rank"),
    EventName.KERNEL_EVENT: ("event",),
    EventName.DEVICE_EVENT: ("event",),
    EventName.RANK_DEVICE: ("pid",),
    EventName.RANK_PROCESS: ("pid",),
    EventName.JOB_LOG: ("class",),
    EventName.PROBE_LATE: ("mount",),
    EventName.NODE_CONDITION: ("source",),
    EventName.CHANGE: ("what",),
    EventName.SCHEDULER: ("what",),
}


def decode_logs(topic: str, value: bytes, *, with_copies: bool = True, with_flushes: bool = False) -> list[Payload]:
    """Payloads of one message in order. Never raises; ``Broken`` stands for what cannot be read.

    with_copies: also what an agent has sent on another topic for the operators. with_flushes: a packed flush is one
    payload; else it is its blocks.
    """
    found = _decode_scanned(value, with_copies) if _scan is not None else None
    if found is None:
        return decode_with_protobuf(topic, value, with_copies, with_flushes=with_flushes)
    return found if with_flushes else _with_blocks(found)


def _with_blocks(payloads: list[Payload]) -> list[Payload]:
    if not any(isinstance(payload, Flush) for payload in payloads):
        return payloads
    parts = (blocks_of(payload) if isinstance(payload, Flush) else (payload,) for payload in payloads)
    return [each for part in parts for each in part]


def _decode_scanned(value: bytes, with_copies: bool) -> list[Payload] | None:
    """None: ``decode_with_protobuf`` is to read it, and to say what is wrong with it."""
    assert _scan is not None
    payloads: list[Payload] = []
    try:
        parts = _scan(value, with_copies)
        if parts is None:
            return None
        for resource, records in parts:
            identity = _identity(resource)
            for record in records:
                if not isinstance(record, tuple):
                    payloads += _decode_record(LogRecord.FromString(record), identity)
                elif len(record) == 3:  # a packed flush
                    payloads.append(_flush(*record, identity))
                else:
                    payloads.append(_scanned_block(*record, identity))
    except (DecodeError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return payloads


def _scanned_block(
    wire: str,
    time_ns: int,
    count: int,
    descriptor: str,
    groups_text: str,
    offset_ns: int,
    body: bytes,
    identity: Identity,
) -> Block:
    """Raises KeyError for what is no block, and what ``_decode_block`` raises."""
    name = _BLOCK_BY_WIRE[wire]
    _check_times(time_ns, offset_ns)
    groups = _groups(groups_text) if groups_text else ()
    rows = read_rows(name, descriptor, count, body, len(groups))
    return Block(name=name, identity=identity, rows=rows, groups=groups, clock_offset_ns=offset_ns, time_ns=time_ns)


def decode_with_protobuf(topic: str, value: bytes, with_copies: bool, *, with_flushes: bool = False) -> list[Payload]:
    """Payloads of one message in order, by the protobuf library: what ``decode_logs`` does without C. Never raises.

    with_copies, with_flushes: as of ``decode_logs``.
    """
    try:
        request = ExportLogsServiceRequest.FromString(value)
    except DecodeError:
        return [Broken(topic=topic, reason=f"{len(value)} bytes are not an OTLP logs request", value=bytes(value))]
    payloads: list[Payload] = []
    for resource_logs in request.resource_logs:
        identity = _identity(resource_logs.resource.SerializeToString())
        for scope_logs in resource_logs.scope_logs:
            if not with_copies and any(pair.key == names.COPY for pair in scope_logs.scope.attributes):
                continue
            for record in scope_logs.log_records:
                try:
                    payloads += _decode_record(record, identity)
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                    reason = f"record {record.event_name[:60]!r}: {str(error)[:200] or type(error).__name__}"
                    payloads.append(Broken(topic=topic, reason=reason, value=_alone(resource_logs, record)))
    return payloads if with_flushes else _with_blocks(payloads)


def _alone(resource_logs: ResourceLogs, record: LogRecord) -> bytes:
    """A record as a request of its own, so that it can be sent again."""
    request = ExportLogsServiceRequest()
    part = request.resource_logs.add()
    part.resource.CopyFrom(resource_logs.resource)
    part.scope_logs.add().log_records.append(record)
    return request.SerializeToString()


def _decode_record(record: LogRecord, identity: Identity) -> Sequence[Payload]:
    wire = record.event_name
    if wire == PACKED:
        text = {pair.key: pair.value.string_value for pair in record.attributes}.get(names.BLOCK_GROUPS, "")
        return (_flush(record.time_unix_nano, text, record.body.bytes_value, identity),)
    name = _EVENT_BY_WIRE.get(wire)
    if name is None:
        return (Incident(document=_incident_document(record)),) if wire.startswith(_INCIDENT_REVISION) else ()
    if name in TABLES:
        return (_decode_block(record, name, identity),)
    if name is EventName.FINDING:
        return (_decode_finding(record, identity),)
    if name is EventName.INCIDENT:
        return (Incident(document=_incident_document(record)),)
    return (_decode_event(record, name, identity),)


def _flush(time_ns: int, groups_text: str, body: bytes, identity: Identity) -> Flush:
    """Raises BlockError, or ValueError for groups or times that are none."""
    packed = read_packed(body)
    _check_times(time_ns, packed.clock_offset_ns)
    groups = _groups(groups_text) if groups_text else packed.groups
    count = NO_GROUP if list_referred(groups) else len(groups)  # of a list its reader knows how long it is
    return Flush(
        identity=identity,
        tables=tuple([(name, checked_rows(rows, name, count)) for name, rows in packed.tables]),
        groups=groups,
        clock_offset_ns=packed.clock_offset_ns,
        time_ns=time_ns,
    )


def _decode_block(record: LogRecord, name: EventName, identity: Identity) -> Block:
    found: dict[str, AnyValue] = {pair.key: pair.value for pair in record.attributes}
    count = found.get(names.BLOCK_COUNT)
    descriptor = found.get(names.BLOCK_DTYPE)
    if count is None or descriptor is None or not record.body.HasField("bytes_value"):
        raise BlockError("block without count, dtype or packed body")
    offset = found.get(names.BLOCK_CLOCK_OFFSET)
    _check_times(record.time_unix_nano, offset.int_value if offset is not None else 0)
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
    _check_times(record.time_unix_nano)
    found: dict[str, Any] = {}
    for pair in record.attributes:
        key = pair.key
        if key == names.MONOTONIC_NS:
            mono_ns = pair.value.int_value
            _check_times(mono_ns)
            continue
        value = value_of(pair.value)
        if value is not None and (short := names.usable_name(key, value)) is not None:
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
    _check_times(record.time_unix_nano)
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


def _incident_document(record: LogRecord) -> dict[str, Any]:
    """Of a revision as it lies on its own topic, or as people are told it (``incident_events``)."""
    for pair in record.attributes:
        if pair.key == names.INCIDENT_DOCUMENT:
            return _json_object(pair.value.string_value)
    return _json_object(record.body.string_value)


def _check_times(*times_ns: int) -> None:
    """Raises ValueError for what no clock shows: sums and differences of times must stay within 64 bits."""
    for time_ns in times_ns:
        if not -_LATEST_NS < time_ns < _LATEST_NS:
            raise ValueError(f"a time of {time_ns} ns")


def _json_object(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if "\\u" in text and _LONE_SURROGATE.search(json.dumps(content, ensure_ascii=False)):
        raise ValueError("half a character: no file, broker or terminal takes it")
    if not isinstance(content, dict):
        raise ValueError("body is not a JSON object")
    return content


_PLAIN_VALUES = frozenset({"string_value", "int_value", "double_value", "bool_value"})


def value_of(value: AnyValue) -> Any:
    """An OTLP value as plain Python; None for sorts that records do not hold (maps, bytes)."""
    kind = value.WhichOneof("value")
    if kind in _PLAIN_VALUES:
        return getattr(value, kind)
    return tuple(value_of(item) for item in value.array_value.values) if kind == "array_value" else None


_identity_by_resource: dict[bytes, Identity] = {}
_groups_by_text: dict[str, tuple[Group, ...]] = {}


def _identity(resource: bytes) -> Identity:
    """resource: serialized. Raises DecodeError if it is none."""
    cached = _identity_by_resource.get(resource)
    if cached is None:
        cached = read_identity(Resource.FromString(resource).attributes)
        remember(_identity_by_resource, resource, cached)
    return cached


#: More than a ring can hold; several of them, however they are encoded, still make a key that the bus takes.
_MAX_ID_CHARS = 3000


def read_identity(pairs: Sequence[KeyValue]) -> Identity:
    """The Identity in a resource's attributes; what is absent or of another type is unknown."""
    found = {pair.key: pair.value for pair in pairs}
    who = found.get(names.WHO)
    said = {} if who is None else dict(zip(names.WHO_NAMES, who.string_value.split(WHO_BETWEEN), strict=False))

    def text(name: str) -> str:
        value = found.get(name)
        return (value.string_value if value is not None else said.get(name, ""))[:_MAX_ID_CHARS]

    rank = found.get(names.RANK)
    return Identity(
        cluster=text(names.CLUSTER_ID),
        run=text(names.RUN_ID),
        job=text(names.JOB_ID),
        attempt=text(names.JOB_ATTEMPT),
        world=text(names.WORLD),
        node=text(names.NODE_ID) or text(names.HOST_NAME),
        rank=rank.int_value if rank is not None and _is_rank(rank) else -1,
        owner=text(names.JOB_OWNER),
    )


def _is_rank(value: AnyValue) -> bool:
    return value.HasField("int_value") and 0 <= value.int_value < MAX_RANK


@lru_cache(maxsize=256)  # every node of a job defines the same large groups
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
        remember(_groups_by_text, text, cached)
    return cached


def _group(entry: Any) -> Group:
    if not isinstance(entry, dict) or not isinstance(entry.get("uid"), str):
        raise ValueError("a group has no uid")
    runs = entry.get("runs")
    if isinstance(runs, str):
        ranks = lengthen(runs, MAX_RANK, MAX_RANKS_TEXT)
    else:
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
