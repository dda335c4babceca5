"""Where in a metrics request numbers and words stand: the places of each point's, and of who speaks. Pure.

Knows only requests as agents and exporters build them; of all others it raises ``Strange``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: Field numbers in opentelemetry/proto/collector/metrics/v1, opentelemetry/proto/metrics/v1 and .../common/v1.
_RESOURCE_METRICS, _RESOURCE, _SCOPE_METRICS, _METRICS = 1, 1, 2, 2
_NAME, _GAUGE, _SUM, _DATA_POINTS = 1, 5, 7, 1
_DATA = frozenset({_GAUGE, _SUM, 9, 10, 11})  # histograms and summaries as well
_START, _TIME, _DOUBLE, _INT, _POINT_ATTRIBUTES = 2, 3, 4, 6, 7
_RESOURCE_ATTRIBUTES, _KEY, _VALUE, _TEXT = 1, 1, 2, 1
_Span = tuple[int, int]


class Strange(Exception):
    """The message is not built as ours are."""


@dataclass(slots=True)
class FoundPoint:
    """Where the numbers of one point stand in the message; start -1: nowhere. words: attributes that are text, and
    where it stands.
    """

    time: int
    value: int
    start: int
    is_double: bool
    words: Sequence[tuple[str, _Span]]


@dataclass(slots=True)
class FoundPart:
    """Points of wanted metrics under one resource. words: where the resource's texts stand."""

    resource: _Span
    words: Sequence[_Span]
    points: list[FoundPoint]


def find_parts(value: bytes, is_wanted: Callable[[str], bool], kept: NDArray[np.uint8]) -> Iterator[FoundPart]:
    """The parts of a request that have points of wanted metrics, in order.

    kept: (n,), a flag for each byte of the message: 0 is put where it says something that is not wanted.

    Raises ``Strange``.
    """
    for part in _messages(value, (0, len(value)), _RESOURCE_METRICS):
        resources = list(_messages(value, part, _RESOURCE))
        scopes = _messages(value, part, _SCOPE_METRICS)
        points = [point for scope in scopes for point in _of_scope(value, scope, is_wanted, kept)]
        if points:
            if len(resources) != 1:
                raise Strange
            words = [span for _, span in _words(value, resources[0], _RESOURCE_ATTRIBUTES)]
            yield FoundPart(resources[0], words, points)


def _of_scope(
    value: bytes, scope: _Span, is_wanted: Callable[[str], bool], kept: NDArray[np.uint8]
) -> Iterator[FoundPoint]:
    for metric in _messages(value, scope, _METRICS):
        fields = list(fields_of(value, *metric))
        names = [value[begin:end] for number, _, begin, end in fields if number == _NAME]
        data = [(number, begin, end) for number, _, begin, end in fields if number in _DATA]
        if len(names) != 1 or len(data) != 1:
            raise Strange
        kind, begin, end = data[0]
        if is_wanted(names[0].decode("utf-8", "replace")) and kind in (_GAUGE, _SUM):
            for point in _messages(value, (begin, end), _DATA_POINTS):
                yield _point(value, point)
        else:
            kept[begin:end] = 0


def _point(value: bytes, span: _Span) -> FoundPoint:
    time = number_at = start = -1
    is_double = True
    for number, wire, begin, _ in fields_of(value, *span):
        if wire != _FIXED64:
            continue
        if number == _TIME:
            time = begin
        elif number == _START:
            start = begin
        elif number in (_DOUBLE, _INT):
            number_at, is_double = begin, number == _DOUBLE
    if time < 0 or number_at < 0:
        raise Strange
    return FoundPoint(time, number_at, start, is_double, list(_words(value, span, _POINT_ATTRIBUTES)))


def _words(value: bytes, span: _Span, attributes: int) -> Iterator[tuple[str, _Span]]:
    """Of attributes that are a key and a text; all others are part of what messages have in common."""
    for pair in _messages(value, span, attributes):
        fields = list(fields_of(value, *pair))
        if [(number, wire) for number, wire, _, _ in fields] != [(_KEY, _BYTES), (_VALUE, _BYTES)]:
            continue
        (_, _, key_begin, key_end), (_, _, begin, end) = fields
        told = list(fields_of(value, begin, end))
        if [(number, wire) for number, wire, _, _ in told] == [(_TEXT, _BYTES)]:
            yield value[key_begin:key_end].decode("utf-8", "replace"), told[0][2:]


def _messages(value: bytes, span: _Span, wanted: int) -> Iterator[_Span]:
    for number, wire, begin, end in fields_of(value, *span):
        if number == wanted and wire == _BYTES:
            yield begin, end


def fields_of(value: bytes, at: int, until: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and where the content begins and ends. Raises ``Strange``."""
    while at < until:
        tag, at = (value[at], at + 1) if value[at] < 0x80 else _varint(value, at)
        wire, begin = tag & 7, at
        if wire == _BYTES:
            length, begin = (value[at], at + 1) if at < until and value[at] < 0x80 else _varint(value, at)
            at = begin + length
        elif wire == _FIXED64:
            at += 8
        elif wire == _VARINT:
            _, at = _varint(value, at)
        elif wire == _FIXED32:
            at += 4
        else:
            raise Strange
        if at > until:
            raise Strange
        yield tag >> 3, wire, begin, at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends."""
    found = shift = 0
    while at < len(value) and shift < 64:
        byte = value[at]
        found, at, shift = found | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return found, at
    raise Strange
