"""A copy of a ring without the secrets in its texts: identity, definitions, exception, stacks. Pure.

Each text keeps its place and its length, so that the copy is a ring like any other. Numbers (header, progress page,
events) are not touched; what an earlier, longer text has left behind the present one goes, too.
"""

from __future__ import annotations

import json
import re
import struct

from ...telemetry import ring_layout as L
from ...telemetry.redaction import mask, mask_bytes, redact_data
from .ring_file import RingDamaged, RingHeader, parse_header

_WORD = struct.Struct("<Q")
#: Longer than what numbers look like.
_ASCII = re.compile(rb"[\t\n\x20-\x7e]{12,}")
#: Where a text that was cut may end: a character that did not fit was left out whole.
_FULL_BYTES = 3


def mask_ring(raw: bytes) -> bytes:
    """A copy of a ring's bytes with secrets in its texts masked. Empty if it is no ring: where are its texts then?"""
    try:
        header = parse_header(raw, len(raw))
    except RingDamaged:
        return b""
    copy = bytearray(raw)
    end = L.H_IDENTITY + min(_word(raw, L.H_IDENTITY_BYTES), L.IDENTITY_MAX_BYTES)
    copy[L.H_IDENTITY : end] = _mask_json(raw[L.H_IDENTITY : end])
    _blank(copy, end, L.H_IDENTITY + L.IDENTITY_MAX_BYTES)
    _mask_definitions(copy, header)
    crash = header.crash_offset
    for bytes_at, begin, most in (
        (L.C_EXC_TEXT_BYTES, L.C_EXC_TEXT, L.C_EXC_TEXT_MAX),
        (L.C_EXC_STACK_BYTES, L.C_EXC_STACK, L.C_EXC_STACK_MAX),
        (L.C_STACK_BYTES, L.C_STACK, L.C_STACK_MAX),
    ):
        if header.crash_bytes >= begin + most and crash + begin + most <= len(raw):
            _mask_text(copy, crash + begin, min(_word(raw, crash + bytes_at), most), most)
    if len(raw) < header.file_bytes or not _is_as_written(header):  # its areas may lie elsewhere than it says
        return _ASCII.sub(lambda text: mask_bytes(text[0]), bytes(copy))
    return bytes(copy)


def _is_as_written(header: RingHeader) -> bool:
    """Whether the areas follow each other as every writer of this layout has them."""
    events = L.HEADER_BYTES + (L.FIRST_GROUP_ROW + header.group_rows) * L.ROW_BYTES
    definitions = events + header.event_slots * L.EVENT_BYTES
    crash = definitions + (header.definitions_bytes + 7) // 8 * 8
    return (
        (header.progress_offset, header.events_offset) == (L.HEADER_BYTES, events)
        and (header.definitions_offset, header.crash_offset) == (definitions, crash)
        and header.crash_bytes >= L.CRASH_BYTES
    )


def is_cut(size_bytes: int, most_bytes: int) -> bool:
    """Whether a text fills its place in a ring, so that its last word may be half of one."""
    return size_bytes >= most_bytes - _FULL_BYTES


def _mask_text(copy: bytearray, begin: int, size: int, most: int) -> None:
    text = mask_bytes(bytes(copy[begin : begin + size]))
    if is_cut(size, most):
        whole = L.cut_text(text.decode("latin-1"), size - 1).encode("latin-1")
        text = whole + b"*" * (size - len(whole))
    copy[begin : begin + size] = text
    _blank(copy, begin + size, begin + most)


def _mask_definitions(copy: bytearray, header: RingHeader) -> None:
    at = header.definitions_offset
    limit = min(at + header.definitions_bytes, len(copy))
    end = min(at + _word(copy, L.H_DEFINITIONS_USED), limit)
    while at + L.DEFINITION_HEAD.size <= end:
        size, kind, _ = L.DEFINITION_HEAD.unpack_from(copy, at)
        begin = at + L.DEFINITION_HEAD.size
        if begin + size > end:
            break
        if kind != L.DEFINITION_ATTEMPT:  # whose token is an address, and no secret
            copy[begin : begin + size] = _mask_json(bytes(copy[begin : begin + size]))
        at = begin + size + -size % 8
    _blank(copy, min(at, limit), limit)


def _mask_json(raw: bytes) -> bytes:
    """Of the same length, and with the same values but for the secrets. What is no JSON nobody can read: it goes."""
    try:
        value = json.loads(raw)
        masked = redact_data(value, mask)
    except (ValueError, RecursionError):
        return b"{}".ljust(len(raw))[: len(raw)]
    if masked == value:
        return raw
    packed = json.dumps(masked, separators=(",", ":"), ensure_ascii=raw.isascii()).encode("utf-8", "replace")
    return (packed if len(packed) <= len(raw) else b"{}").ljust(len(raw))[: len(raw)]


def _blank(copy: bytearray, begin: int, end: int) -> None:
    end = min(end, len(copy))
    if begin < end:
        copy[begin:end] = bytes(end - begin)


def _word(raw: bytes | bytearray, at: int) -> int:
    word: int = _WORD.unpack_from(raw, at)[0]
    return word
