"""Records as OTLP log requests.

One ``ExportLogsServiceRequest`` per message; one resource per run of records of one identity, order kept. A block is
one LogRecord whose body is packed rows (``block``); events, findings and incidents are LogRecords with an event name,
typed attributes and a body that people can read. Pure functions, safe in any thread; ``otlp`` reads it back. Written as
bytes (``otlp_wire``), in the order of the fields' numbers, as the protobuf library writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber

from . import attributes as names
from .block import BLOCK_SCHEMA_VERSION, DESCRIPTORS, split_block, write_rows
from .otlp_wire import (
    IntAttribute,
    attribute,
    bytes_field,
    double_field,
    entry,
    fixed64_field,
    resource,
    resource_part,
    scope,
    text_field,
    varint_field,
)
from .packed_flush import PACKED, Packing, TaughtList, can_be_packed, who_resource, write_packed
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
#: Field numbers of a LogRecord and of an AnyValue (opentelemetry/proto/{logs,common}/v1).
_TIME, _SEVERITY, _SEVERITY_TEXT, _BODY, _ATTRIBUTES, _EVENT_NAME = 1, 2, 3, 5, 6, 12
_STRING_VALUE, _BOOL_VALUE, _INT_VALUE, _DOUBLE_VALUE, _ARRAY_VALUE, _BYTES_VALUE = 1, 2, 3, 4, 5, 7
#: Names of attributes that are remembered as bytes.
_KNOWN_NAMES = 1024
_SCOPE, _COPY_SCOPE = scope(names.SCOPE_NAME), scope(names.SCOPE_NAME, {names.COPY: True})
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


def encode_payloads(
    payloads: Iterable[Encodable],
    *,
    is_copy: bool = False,
    packing: Packing = Packing.NONE,
    lists: set[TaughtList] | None = None,
) -> bytes:
    """One serialized ExportLogsServiceRequest; blocks over 64 KiB are split. Order is kept.

    is_copy: the same lies on another topic for the operators, which pass these over. packing, lists: of blocks, as
    ``write_packed`` has them.
    """
    parts: list[tuple[bytes, list[bytes]]] = []
    for together, run in groupby(payloads, _flush_of if packing is not Packing.NONE else _no_flush):
        if together is None:
            each_alone = ((_resource_bytes(identity_of(payload)), _records(payload)) for payload in run)
        else:
            blocks = [piece for block in run if isinstance(block, Block) for piece in split_block(block)]
            each_alone = ((who, [record]) for who, record in _packed(blocks, packing, lists))
        for who, records in each_alone:
            if not parts or who != parts[-1][0]:
                parts.append((who, []))
            parts[-1][1].extend(map(entry, records))
    where = _COPY_SCOPE if is_copy else _SCOPE
    return b"".join(bytes_field(1, b"".join(resource_part(who, where, entries))) for who, entries in parts)


def encode_batches(
    payloads: Iterable[Encodable],
    limit_bytes: int = MAX_MESSAGE_BYTES,
    *,
    is_copy: bool = False,
    packing: Packing = Packing.NONE,
    lists: set[TaughtList] | None = None,
) -> list[bytes]:
    """Messages of at most about ``limit_bytes`` that together hold the payloads in order; the rest is as of
    ``encode_payloads``.
    """
    encode = partial(encode_payloads, is_copy=is_copy, packing=packing, lists=lists)
    messages: list[bytes] = []
    batch: list[Encodable] = []
    batch_bytes = 0
    for payload in payloads:
        pieces: list[Encodable] = list(split_block(payload)) if isinstance(payload, Block) else [payload]
        for piece in pieces:
            size = piece.rows.nbytes + 512 if isinstance(piece, Block) else _rough_bytes(piece)
            if batch and batch_bytes + size > limit_bytes:
                messages.append(encode(batch))
                batch, batch_bytes = [], 0
            batch.append(piece)
            batch_bytes += size
    if batch:
        messages.append(encode(batch))
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


def _no_flush(payload: Encodable) -> None:
    return None


def _flush_of(payload: Encodable) -> tuple[Identity, int, int] | None:
    """What is the same in blocks that can be told in one record; None: this can not."""
    if not isinstance(payload, Block) or not can_be_packed(payload):
        return None
    return payload.identity, payload.clock_offset_ns, payload.time_ns


def _packed(blocks: Sequence[Block], packing: Packing, lists: set[TaughtList] | None) -> Iterator[tuple[bytes, bytes]]:
    """Resources and records of the blocks of one flush: one, or one for each where they are too much alike."""
    packed = write_packed(blocks, packing, lists)
    if packed is None:
        yield from ((_resource_bytes(block.identity), _block_record(block)) for block in blocks)
        return
    body, groups = packed
    text = _groups_text(groups) if groups else None
    first = blocks[0]
    yield (
        who_resource(first.identity) or _resource_bytes(first.identity),
        _record(first.time_ns, PACKED, [(names.BLOCK_GROUPS, text)], bytes_field(_BYTES_VALUE, body)),
    )


def _records(payload: Encodable) -> list[bytes]:
    """Serialized LogRecords: one, or one for each piece of a large block."""
    if isinstance(payload, Block):
        return [_block_record(piece) for piece in split_block(payload)]
    if isinstance(payload, Event):
        return [_event_record(payload)]
    return [_finding_record(payload) if isinstance(payload, Finding) else _incident_record(payload)]


def _record(
    time_ns: int,
    name: str,
    attributes: Iterable[tuple[str, Any]],
    body: bytes,
    severity: SeverityNumber.ValueType = SeverityNumber.SEVERITY_NUMBER_UNSPECIFIED,
    severity_text: str = "",
) -> bytes:
    """body: a serialized AnyValue. Of the attributes those that are None are left out."""
    time = _time(time_ns)
    parts = [fixed64_field(_TIME, time)] if time else []
    if severity:
        parts.append(varint_field(_SEVERITY, severity))
    if severity_text:
        parts.append(text_field(_SEVERITY_TEXT, severity_text))
    parts.append(bytes_field(_BODY, body))
    parts += [_attribute(key, value) for key, value in attributes if value is not None]
    parts.append(text_field(_EVENT_NAME, name))
    return b"".join(parts)


def _block_record(block: Block) -> bytes:
    attributes: list[tuple[str, Any]] = [
        (names.BLOCK_SCHEMA, BLOCK_SCHEMA_VERSION),
        (names.BLOCK_COUNT, len(block.rows)),
        (names.BLOCK_DTYPE, DESCRIPTORS[block.name]),
        (names.BLOCK_GROUPS, _groups_text(block.groups) if block.groups else None),
        (names.BLOCK_CLOCK_OFFSET, block.clock_offset_ns),
    ]
    return _record(block.time_ns, block.name.value, attributes, bytes_field(_BYTES_VALUE, write_rows(block)))


def _event_record(event: Event) -> bytes:
    attributes = [(names.MONOTONIC_NS, event.mono_ns or None)]
    attributes += [(names.wire_name(short), value) for short, value in event.attributes.items()]
    severity = _SEVERITY_OF_EVENT.get(event.name, SeverityNumber.SEVERITY_NUMBER_INFO)
    return _record(event.time_ns, event.name.value, attributes, _string_value(_readable(event)), severity)


def _finding_record(finding: Finding) -> bytes:
    kind = finding.body.get("kind")
    attributes: list[tuple[str, Any]] = [
        (names.FINDING_KEY, finding.key),
        (names.FINDING_CLEARED, finding.cleared),
        (names.INCIDENT_KIND, None if kind is None else _word(kind)),
    ]
    body = _string_value(_json(finding.body))
    info = SeverityNumber.SEVERITY_NUMBER_INFO
    return _record(finding.time_ns, EventName.FINDING.value, attributes, body, info)


def _incident_record(incident: Incident) -> bytes:
    document = incident.document
    times = document.get("times") or {}
    severity = _word(document.get("severity"))
    suspect: dict[str, Any] = next(iter(document.get("suspects") or ()), {})
    attributes = (
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
    return _record(
        int(float(times.get("detected") or 0.0) * 1e9),
        f"{EventName.INCIDENT.value}.{_word(document.get('change'))}",
        attributes,
        _string_value(_json(document)),
        _SEVERITY_OF_INCIDENT.get(severity, SeverityNumber.SEVERITY_NUMBER_INFO),
        severity.upper(),
    )


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


def _string_value(text: str) -> bytes:
    return text_field(_STRING_VALUE, text)


_int_attribute = lru_cache(_KNOWN_NAMES)(partial(IntAttribute, _ATTRIBUTES))


def _attribute(key: str, value: Any) -> bytes:
    kind = type(value)
    if kind is int and 0 <= value <= _INT64_MAX:
        return _int_attribute(key)(value)
    if kind is str or kind is bool or kind is float:
        return attribute(_ATTRIBUTES, key, value)
    return bytes_field(_ATTRIBUTES, text_field(1, key) + bytes_field(2, _any_value(value)))


def _any_value(value: Any) -> bytes:
    """A serialized AnyValue of whatever an attribute can hold."""
    if hasattr(value, "item") and not isinstance(value, (str, int, float)):  # numpy scalars
        value = value.item()
    if isinstance(value, str):  # members of str enums too
        return _string_value(_word(value))
    if isinstance(value, bool):
        return varint_field(_BOOL_VALUE, int(value))
    if isinstance(value, int):
        if _INT64_MIN <= value <= _INT64_MAX:
            return varint_field(_INT_VALUE, int(value))
        return _string_value(str(int(value)))  # unsigned words that do not fit: readable rather than wrong
    if isinstance(value, float):
        return double_field(_DOUBLE_VALUE, value)
    if isinstance(value, (tuple, list)):
        items = b"".join(bytes_field(1, _any_value(item)) for item in value)
        return bytes_field(_ARRAY_VALUE, items)
    return _string_value(str(value))


_resource_by_identity: dict[Identity, bytes] = {}
_text_by_groups: dict[tuple[Group, ...], str] = {}


def _resource_bytes(identity: Identity) -> bytes:
    cached = _resource_by_identity.get(identity)
    if cached is None:
        cached = resource_bytes(identity)
        remember(_resource_by_identity, identity, cached)
    return cached


def resource_bytes(identity: Identity) -> bytes:
    """A serialized OTLP resource of an identity; ``service.name`` is its job: any OTLP back end groups by it."""
    return resource(
        {
            names.SERVICE_NAME: identity.job or names.SCOPE_NAME,
            names.CLUSTER_ID: identity.cluster,
            names.RUN_ID: identity.run,
            names.JOB_ID: identity.job,
            names.JOB_OWNER: identity.owner,
            names.JOB_ATTEMPT: identity.attempt,
            names.WORLD: identity.world,
            names.NODE_ID: identity.node,
            names.HOST_NAME: identity.node,
            names.RANK: identity.rank if identity.rank >= 0 else None,
        }
    )


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
