"""What two messages of one source have in common: everything but numbers of fixed width, so they are read by place.

A node sends the same series in the same order at every look. Its first message is decoded in full, and remembered with
the places of its numbers; of a later one with the same bytes everywhere else only those are read. Used by one thread.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern
from typing import Any

import numpy as np

from .point_columns import PointColumns
from .records import Samples

#: Layouts that are kept; who was not heard for longest goes first. A node has three or four.
MOST_LAYOUTS = 16_384
#: Messages that are remembered are no longer: what a whole cluster's exporters say in one never comes again as it was.
MOST_BYTES = 1 << 18
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: Field numbers in opentelemetry/proto/collector/metrics/v1 and opentelemetry/proto/metrics/v1.
_RESOURCE_METRICS, _RESOURCE, _SCOPE_METRICS, _METRICS = 1, 1, 2, 2
_NAME, _GAUGE, _SUM, _DATA_POINTS = 1, 5, 7, 1
_DATA = frozenset({_GAUGE, _SUM, 9, 10, 11})  # histograms and summaries as well
_START, _TIME, _DOUBLE, _INT = 2, 3, 4, 6
_ATTRIBUTES_TAG = 7 << 3 | _BYTES


class _Strange(Exception):
    """The message is not built as ours are."""


@dataclass(slots=True)
class _Number:
    """Where the numbers of one point stand in the message; start -1: nowhere."""

    time: int = -1
    value: int = -1
    start: int = -1
    is_double: bool = True


class SeriesOrder:
    """Stands for certain series in a certain order: what was worked out for them once can be found by it."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class _Series:
    """What is the same in all messages of a layout: whose points these are, and name and attributes of each."""

    of: Samples
    points: tuple[tuple[str, Mapping[str, Any]], ...]


class Layout:
    """One layout, and what its messages have in common."""

    __slots__ = ("_digest", "_has_start", "_is_double", "_kept", "_parts", "_places")

    def __init__(self, value: bytes, samples: Sequence[Samples], is_wanted: Callable[[str], bool]) -> None:
        """samples: what was found in it. Raises ``_Strange``."""
        kept = np.full(len(value), 0xFF, np.uint8)
        numbers = list(_find_numbers(value, is_wanted, kept))
        self._kept = kept
        self._places = np.array([(n.time, n.value, max(0, n.start)) for n in numbers], np.int32).reshape(-1, 3)
        self._is_double = np.array([n.is_double for n in numbers], bool)
        self._has_start = np.array([n.start >= 0 for n in numbers], bool)
        for places in (self._places[:, 0], self._places[:, 1], self._places[self._has_start, 2]):
            kept[places[:, None] + np.arange(8)] = 0
        self._digest = self._digest_of(np.frombuffer(value, np.uint8))
        self._parts = [_series_of(each) for each in samples]

    def check(self, value: bytes, samples: Sequence[Samples]) -> list[Samples]:
        """The samples of the message that it was made of. Raises ``_Strange`` where they do not come out the same."""
        first = self.read(value)
        if first is None or [tuple(each.points) for each in first] != [tuple(each.points) for each in samples]:
            raise _Strange  # points without a number, a field that comes twice
        return first

    def read(self, value: bytes) -> list[Samples] | None:
        """The samples in a message of this layout; None where it is of another layout, or a number is not finite."""
        content = np.frombuffer(value, np.uint8)
        if content.size != self._kept.size or self._digest_of(content) != self._digest:
            return None
        told = content.take(self._places[:, :, None] + np.arange(8)).view("<i8").reshape(-1, 3)
        values = np.where(self._is_double, told[:, 1].copy().view("<f8"), told[:, 1])
        if not np.isfinite(values).all():
            return None
        times_ns, starts_ns = told[:, 0].view("<u8"), (told[:, 2] * self._has_start).view("<u8")
        found, begin = [], 0
        for part in self._parts:
            end = begin + len(part.points)
            columns = PointColumns(part.points, values[begin:end], times_ns[begin:end], starts_ns[begin:end])
            found.append(replace(part.of, points=columns))
            begin = end
        return found if begin == len(values) else None

    def _digest_of(self, content: np.ndarray) -> bytes:
        return hashlib.blake2b((content & self._kept).data, digest_size=16).digest()


def _series_of(samples: Samples) -> _Series:
    """With one object for equal attributes, of which a device has the same in each of its metrics."""
    shared: dict[tuple[tuple[str, Any], ...], Mapping[str, Any]] = {}
    points = []
    for point in samples.points:
        known = tuple(point.attributes.items())
        if known not in shared:
            shared[known] = {intern(name): value for name, value in known}
        points.append((intern(point.name), shared[known]))
    return _Series(replace(samples, points=(), order=SeriesOrder()), tuple(points))


class Layouts:
    """Those seen last. is_wanted: which metrics, told by their names, are read."""

    def __init__(self, is_wanted: Callable[[str], bool], most: int = MOST_LAYOUTS) -> None:
        self._is_wanted = is_wanted
        self._most = most
        self._known: OrderedDict[tuple[int, bytes], Layout] = OrderedDict()

    def read(self, value: bytes) -> list[Samples] | None:
        """The samples in a message, read by place; None where no message of its layout has come lately."""
        try:
            key = _key_of(value)
        except _Strange:
            return None
        layout = self._known.get(key)
        if layout is None:
            return None
        self._known.move_to_end(key)
        return layout.read(value)

    def learn(self, value: bytes, samples: Sequence[Samples]) -> Sequence[Samples]:
        """Learns the layout of a message that had to be decoded in full to ``samples``, so that ``read`` knows the next
        ones.

        Returns its samples; ``samples`` themselves where the message is too large or not built as ours are.
        """
        if len(value) > MOST_BYTES:
            return samples
        try:
            key, layout = _key_of(value), Layout(value, samples, self._is_wanted)
            first = layout.check(value, samples)
        except _Strange:
            return samples
        self._known[key] = layout
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return first


def _key_of(value: bytes) -> tuple[int, bytes]:
    """Its length and who speaks first in it: with our nodes the only one."""
    number, wire, begin, end = next(_fields(value, 0, len(value)), (0, 0, 0, 0))
    if (number, wire) != (_RESOURCE_METRICS, _BYTES):
        raise _Strange
    number, wire, begin, end = next(_fields(value, begin, end), (0, 0, 0, 0))
    if (number, wire) != (_RESOURCE, _BYTES):
        raise _Strange
    return len(value), value[begin:end]


def _find_numbers(value: bytes, is_wanted: Callable[[str], bool], kept: np.ndarray) -> Iterator[_Number]:
    """Of all points of wanted metrics, in order. kept: 0 is put where the message says something that is not wanted."""
    for part in _messages(value, (0, len(value)), _RESOURCE_METRICS):
        for scope in _messages(value, part, _SCOPE_METRICS):
            for metric in _messages(value, scope, _METRICS):
                fields = list(_fields(value, *metric))
                names = [value[begin:end] for number, _, begin, end in fields if number == _NAME]
                data = [(number, begin, end) for number, _, begin, end in fields if number in _DATA]
                if len(names) != 1 or len(data) != 1:
                    raise _Strange
                kind, begin, end = data[0]
                if is_wanted(names[0].decode("utf-8", "replace")) and kind in (_GAUGE, _SUM):
                    for point in _messages(value, (begin, end), _DATA_POINTS):
                        yield _number(value, *point)
                else:
                    kept[begin:end] = 0


def _number(value: bytes, at: int, until: int) -> _Number:
    found = _Number()
    while at < until:
        if value[at] == _ATTRIBUTES_TAG and at + 1 < until and value[at + 1] < 0x80:  # most of a point
            at += 2 + value[at + 1]
            continue
        number, wire, begin, at = next(_fields(value, at, until))
        if wire != _FIXED64:
            continue
        if number == _TIME:
            found.time = begin
        elif number == _START:
            found.start = begin
        elif number in (_DOUBLE, _INT):
            found.value, found.is_double = begin, number == _DOUBLE
    if at > until or found.time < 0 or found.value < 0:
        raise _Strange
    return found


def _messages(value: bytes, span: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    for number, wire, begin, end in _fields(value, *span):
        if number == wanted and wire == _BYTES:
            yield begin, end


def _fields(value: bytes, at: int, until: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and where the content begins and ends. Raises ``_Strange``."""
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
            raise _Strange
        if at > until:
            raise _Strange
        yield tag >> 3, wire, begin, at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends."""
    found = shift = 0
    while at < len(value) and shift < 64:
        byte = value[at]
        found, at, shift = found | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return found, at
    raise _Strange
