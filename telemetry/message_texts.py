"""The texts of a serialized protobuf message, each once with its name, and without an object for each.

By the descriptors of the message's own library, so that no field is forgotten. In C alone (``_message_texts.c``): what
that cannot read, or where it was not built, is walked object by object (``otlp_redaction``).
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    from ._message_texts import texts as _texts
except ImportError:  # not built: nothing is lost but time
    _texts = None  # type: ignore[assignment]

#: What is done with a field, as ``_message_texts.c`` has it.
_NUMBER, _RAW, _TEXT, _NAME, _MESSAGE, _PACKED_VARINTS, _PACKED_FIXED = range(7)
#: By type of the descriptor: the wire type of numbers, and their bytes where these are fixed.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_TYPES = {
    1: (_FIXED64, 8),
    2: (_FIXED32, 4),
    6: (_FIXED64, 8),
    7: (_FIXED32, 4),
    15: (_FIXED32, 4),
    16: (_FIXED64, 8),
}
_STRING, _GROUP, _OF_MESSAGE, _OF_BYTES = 9, 10, 11, 12
#: The message whose texts stand under a name: that of its key.
_PAIR, _KEY = "opentelemetry.proto.common.v1.KeyValue", "key"
#: Of a field in the schema; and of each number of it.
_FIELD_NUMBERS, _NUMBER_BYTES = 4, 4


class MessageTexts:
    """Of messages of one type. descriptor: that of its class."""

    def __init__(self, descriptor: Any) -> None:
        order = {descriptor.full_name: 0}
        messages = [descriptor]
        heads, fields = array("i"), array("i")
        for message in messages:  # grows meanwhile
            rows = [row for field in message.fields for row in _rows(message, field, order, messages)]
            heads.extend((len(fields) // _FIELD_NUMBERS, len(rows)))
            for row in rows:
                fields.extend(row)
        assert heads.itemsize == _NUMBER_BYTES
        self._schema, self._messages = (heads + fields).tobytes(), len(messages)

    def of(self, value: bytes) -> list[tuple[str, str]] | None:
        """(name, text) of each text once, name "" outside of pairs. None: it has to be read by the protobuf library."""
        return None if _texts is None else _texts(value, self._schema, self._messages)


def _rows(message: Any, field: Any, order: dict[str, int], messages: list[Any]) -> list[tuple[int, int, int, int]]:
    if field.type == _OF_MESSAGE:
        child = field.message_type
        if child.full_name not in order:
            order[child.full_name] = len(messages)
            messages.append(child)
        return [(field.number, _BYTES, _MESSAGE, order[child.full_name])]
    if field.type == _STRING:
        is_name = message.full_name == _PAIR and field.name == _KEY
        return [(field.number, _BYTES, _NAME if is_name else _TEXT, 0)]
    if field.type == _OF_BYTES:
        return [(field.number, _BYTES, _RAW, 0)]
    if field.type == _GROUP:
        return []
    wire, size_bytes = _FIXED_TYPES.get(field.type, (_VARINT, 0))
    rows = [(field.number, wire, _NUMBER, 0)]
    if _is_repeated(field):
        rows.append((field.number, _BYTES, _PACKED_FIXED if size_bytes else _PACKED_VARINTS, size_bytes))
    return rows


def _is_repeated(field: Any) -> bool:
    """Newer releases of protobuf warn of ``label``."""
    told = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if told is None else bool(told)
