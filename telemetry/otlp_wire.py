"""Protobuf's wire format, as far as OTLP needs it: fields, attributes and resources as bytes.

What is written at a high rate (spans, metric points) is put together from these, mostly from parts that were encoded
once: an object of the protobuf library per attribute costs ten times as much. Tests decode everything that is written
with opentelemetry-proto. Pure functions and tables, safe in any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache

#: Wire types.
_VARINT, _FIXED64, _BYTES = 0, 1, 2
#: Field numbers of KeyValue and AnyValue (opentelemetry/proto/common/v1/common.proto).
_KEY, _VALUE = 1, 2
_STRING, _BOOL, _INT, _DOUBLE = 1, 2, 3, 4
#: Of InstrumentationScope's name and attributes, and of a Resource's attributes.
_SCOPE_NAME, _SCOPE_ATTRIBUTES, _RESOURCE_ATTRIBUTES = 1, 3, 1

_UINT64_MASK = (1 << 64) - 1
_pack_double = struct.Struct("<d").pack
_pack_fixed = struct.Struct("<Q").pack
_ONE_BYTE = tuple(bytes((value,)) for value in range(1 << 7))
_TWO_BYTES = tuple(bytes((value & 0x7F | 0x80, value >> 7)) for value in range(1 << 14))

#: Texts under a name that are remembered as bytes, and how long they may be: most are the same in every request.
_REMEMBERED, _LONGEST = 16_384, 256
#: More than the tags and lengths of a resource part take.
_PART_BYTES = 32

AttributeValue = str | bool | int | float


def varint(value: int) -> bytes:
    """An integer in base 128 as Protobuf writes it.

    A negative one as the 64-bit two's complement that int64 fields hold.
    """
    value &= _UINT64_MASK
    if value < 1 << 7:
        return _ONE_BYTE[value]
    if value < 1 << 14:
        return _TWO_BYTES[value]
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def bytes_tag(number: int) -> bytes:
    """Tag of a field that holds bytes, text or a message."""
    return varint(number << 3 | _BYTES)


def bytes_field(number: int, content: bytes) -> bytes:
    """A field of bytes, text or a message; also a packed repeated one."""
    return bytes_tag(number) + varint(len(content)) + content


def text_field(number: int, text: str) -> bytes:
    """A field of text; what cannot be encoded as UTF-8 becomes a question mark."""
    return bytes_field(number, text.encode("utf-8", "replace"))


def varint_field(number: int, value: int) -> bytes:
    """A field of wire type 0; ``value`` must not be negative."""
    return varint(number << 3 | _VARINT) + varint(value)


def sint(value: int) -> bytes:
    """An integer as sint64 has it: small for small negative numbers."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def sint_field(number: int, value: int) -> bytes:
    """A field of type sint32 or sint64."""
    return varint(number << 3 | _VARINT) + sint(value)


def fixed64_tag(number: int) -> bytes:
    """Tag of a field of type fixed64, sfixed64 or double."""
    return varint(number << 3 | _FIXED64)


def fixed64_field(number: int, value: int) -> bytes:
    """A field of type fixed64 or sfixed64."""
    return fixed64_tag(number) + _pack_fixed(value & _UINT64_MASK)


def double_field(number: int, value: float) -> bytes:
    """A field of type double: eight bytes, little-endian."""
    return fixed64_tag(number) + _pack_double(value)


def attribute(number: int, key: str, value: AttributeValue) -> bytes:
    """One KeyValue as an entry of the repeated field ``number``."""
    if isinstance(value, str):
        return (known_text if len(value) <= _LONGEST else _text_attribute)(number, key, value)
    if isinstance(value, bool):
        content = varint_field(_BOOL, int(value))
    elif isinstance(value, int):
        content = varint_field(_INT, value)
    else:
        content = double_field(_DOUBLE, value)
    return bytes_field(number, text_field(_KEY, key) + bytes_field(_VALUE, content))


def _text_attribute(number: int, key: str, text: str) -> bytes:
    return bytes_field(number, text_field(_KEY, key) + bytes_field(_VALUE, text_field(_STRING, text)))


known_text = lru_cache(_REMEMBERED)(_text_attribute)


def attributes(number: int, values: Mapping[str, AttributeValue | None]) -> bytes:
    """A repeated field of KeyValue; what is None or an empty text is left out."""
    return b"".join(attribute(number, key, value) for key, value in values.items() if value is not None and value != "")


class IntAttribute:
    """An attribute whose value, an integer from 0 on, differs each time: only the number itself is encoded then."""

    __slots__ = ("_prefixes",)

    def __init__(self, number: int, key: str) -> None:
        #: By the length of the number in bytes: everything before it.
        self._prefixes: list[bytes] = [b""]
        for length in range(1, 11):
            whole = text_field(_KEY, key) + bytes_field(_VALUE, varint(_INT << 3 | _VARINT) + bytes(length))
            self._prefixes.append(bytes_field(number, whole)[:-length])

    def __call__(self, value: int) -> bytes:
        written = varint(value)
        return self._prefixes[len(written)] + written


class DoubleAttribute:
    """An attribute that holds a float, which differs each time."""

    __slots__ = ("_prefix",)

    def __init__(self, number: int, key: str) -> None:
        self._prefix = attribute(number, key, 0.0)[:-8]

    def __call__(self, value: float) -> bytes:
        return self._prefix + _pack_double(value)


def scope(name: str, values: Mapping[str, AttributeValue | None] | None = None) -> bytes:
    """A serialized InstrumentationScope."""
    return text_field(_SCOPE_NAME, name) + attributes(_SCOPE_ATTRIBUTES, values or {})


def resource_part(resource: bytes, scope: bytes, scope_entries: Iterable[bytes]) -> list[bytes]:
    """Content of a ResourceSpans, ResourceMetrics or ResourceLogs with one scope, in pieces to be joined.

    The three have the same shape: the resource is field 1, its scopes field 2; in a scope, the scope is field 1 and
    each entry (a serialized Span, Metric or LogRecord behind its tag 2 and length) follows.
    """
    scope_content = b"".join([bytes_field(1, scope), *scope_entries])
    return [bytes_field(1, resource), bytes_tag(2), varint(len(scope_content)), scope_content]


def resource(values: Mapping[str, AttributeValue | None]) -> bytes:
    """A serialized Resource with these attributes."""
    return attributes(_RESOURCE_ATTRIBUTES, values)


class RequestBuilder:
    """Entries gathered under their resources; ``take`` gives them as requests of a bounded size.

    An Export{Trace,Metrics,Logs}ServiceRequest is a list of resource parts in field 1, whichever signal it is.
    """

    __slots__ = ("_entries", "_limit_bytes", "_scope", "size_bytes")

    def __init__(
        self, scope_name: str, limit_bytes: int, scope_attributes: Mapping[str, AttributeValue | None] | None = None
    ) -> None:
        self._scope = scope(scope_name, scope_attributes)
        self._limit_bytes = limit_bytes
        self._entries: dict[bytes, list[bytes]] = {}
        #: Of the entries that wait to be taken.
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def add(self, resource: bytes, entries: Iterable[bytes]) -> None:
        """Adds entries, as ``entry`` makes them, of one serialized Resource."""
        entries = list(entries)
        if entries:
            self._entries.setdefault(resource, []).extend(entries)
            self.size_bytes += sum(map(len, entries))

    def take(self) -> list[bytes]:
        """Takes away all that was added, as requests of at most ``limit_bytes`` each.

        One entry alone may be larger.
        """
        requests: list[bytes] = []
        parts: list[bytes] = []
        used = 0
        for resource_bytes, entries in self._entries.items():
            while entries:
                room = self._limit_bytes - used - len(resource_bytes) - len(self._scope) - _PART_BYTES
                count = _that_fit(entries, room)
                if not count and parts:
                    requests.append(b"".join(parts))
                    parts, used = [], 0
                    continue
                count = max(count, 1)
                content = b"".join(resource_part(resource_bytes, self._scope, entries[:count]))
                parts.append(bytes_field(1, content))
                used += len(parts[-1])
                entries = entries[count:]
        if parts:
            requests.append(b"".join(parts))
        self._entries, self.size_bytes = {}, 0
        return requests


def entry(content: bytes) -> bytes:
    """A serialized Span, Metric or LogRecord behind its tag and length, as an entry of its scope."""
    return b"\x12" + varint(len(content)) + content


def _that_fit(entries: list[bytes], room_bytes: int) -> int:
    """How many of the first entries fit."""
    for count, content in enumerate(entries):
        room_bytes -= len(content)
        if room_bytes < 0:
            return count
    return len(entries)
