"""What messages have in common: everything but numbers of fixed width and the words of who speaks, read by place.

A node sends the same series in the same order at every look, and all nodes of a kind the same but for their names. The
first message of a layout is decoded in full, and remembered with the places of its numbers and texts; of a later one
with the same bytes everywhere else only those are read, and the texts once for each node. Used by one thread.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from sys import intern

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from .metric_walk import FoundPart, Strange, find_parts
from .otlp import read_identity, value_of
from .point_columns import PointColumns
from .records import Samples
from .speaker_series import SeriesShape, SpeakerSeries

#: Speakers of layouts that are kept; who was not heard for longest goes first. A node has three or four.
MOST_SPEAKERS = 16_384
#: Layouts that are kept, and those of one length.
MOST_LAYOUTS, MOST_ALIKE = 512, 8
#: Messages that are remembered are no longer: what a whole cluster's exporters say in one never comes again as it was.
MOST_BYTES = 1 << 20
#: What layouts take together, each three times its message.
MOST_LAYOUT_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class _Series:
    """What is the same in all messages of a speaker under one resource. of: whose points these are, without them."""

    of: Samples
    points: SpeakerSeries


@dataclass(frozen=True, slots=True)
class _Shape:
    """A shape of series, and where its words stand in a message: each place with the word's number, of so many."""

    series: SeriesShape
    places: tuple[tuple[int, int, int], ...]
    count: int

    def words_in(self, value: bytes) -> tuple[str, ...] | None:
        """By number; None where places of one word hold different ones. Raises UnicodeDecodeError."""
        found: list[bytes | None] = [None] * self.count
        for begin, end, number in self.places:
            raw, known = value[begin:end], found[number]
            if known is None:
                found[number] = raw
            elif known != raw:
                return None
        return tuple([intern(raw.decode()) for raw in found if raw is not None])


class Layout:
    """One layout, and what its messages have in common."""

    def __init__(self, value: bytes, samples: Sequence[Samples], is_wanted: Callable[[str], bool]) -> None:
        """samples: what was found in it. Raises ``Strange``."""
        kept = np.full(len(value), 0xFF, np.uint8)
        self._parts: list[FoundPart] = list(find_parts(value, is_wanted, kept))
        if len(self._parts) != len(samples):
            raise Strange
        numbers = [number for part in self._parts for number in part.points]
        self._places = np.array([(n.time, n.value, max(0, n.start)) for n in numbers], np.intp).reshape(-1, 3)
        self._is_double = np.array([n.is_double for n in numbers], bool)
        self._has_start = np.array([n.start >= 0 for n in numbers], bool)
        for places in (self._places[:, 0], self._places[:, 1], self._places[self._has_start, 2]):
            kept[places[:, None] + np.arange(8)] = 0
        self._kept = kept
        self._built = kept.copy()
        for part in self._parts:
            for begin, end in (*part.words, *(span for point in part.points for _, span in point.words)):
                self._built[begin:end] = 0
        self._base: bytes = (np.frombuffer(value, np.uint8) & self._built).tobytes()
        known = [SeriesShape.of(each.points) for each in samples]
        if [len(each.names) for each in known] != [len(part.points) for part in self._parts]:
            raise Strange  # points without a number, a field that comes twice
        #: By part, shapes of the speakers so far: which of their words are the same.
        self._shapes = [[_shape_of(value, part, each)] for part, each in zip(self._parts, known, strict=True)]

    @property
    def bytes_taken(self) -> int:
        """Of memory, about."""
        return 3 * len(self._base)

    def is_of(self, value: bytes) -> bool:
        """Whether a message of this length has the same bytes everywhere but in numbers and words."""
        return bytes((np.frombuffer(value, np.uint8) & self._built).tobytes()) == self._base

    def speaker_of(self, value: bytes) -> bytes:
        """Stands for all that is no number in a message of this length."""
        content = np.frombuffer(value, np.uint8) & self._kept
        return hashlib.blake2b(content.data, digest_size=16).digest()

    def series_of(self, value: bytes) -> list[_Series]:
        """The series of a message of this layout. Raises ``Strange`` where its words are none."""
        found = []
        try:
            for part, shapes in zip(self._parts, self._shapes, strict=True):
                pairs = Resource.FromString(value[slice(*part.resource)]).attributes
                told = {pair.key: read for pair in pairs if (read := value_of(pair.value)) is not None}
                series = _series_in(value, part, shapes)
                of = Samples(identity=read_identity(pairs), points=(), resource=told, order=series)
                found.append(_Series(of, series))
        except (UnicodeDecodeError, DecodeError) as error:
            raise Strange from error
        return found

    def read(self, value: bytes, series: Sequence[_Series]) -> list[Samples] | None:
        """The samples in a message of this layout by this speaker; None where a number is not finite."""
        at_each_byte: NDArray[np.int64] = np.ndarray(max(0, len(value) - 7), "<i8", value, strides=(1,))
        told = at_each_byte[self._places]
        values = np.where(self._is_double, told[:, 1].copy().view("<f8"), told[:, 1])
        if not np.isfinite(values).all():
            return None
        times_ns, starts_ns = told[:, 0].view("<u8"), (told[:, 2] * self._has_start).view("<u8")
        found, begin = [], 0
        for part in series:
            end = begin + len(part.points)
            columns = PointColumns(part.points, values[begin:end], times_ns[begin:end], starts_ns[begin:end])
            found.append(replace(part.of, points=columns))
            begin = end
        return found


def _series_in(value: bytes, part: FoundPart, shapes: list[_Shape]) -> SpeakerSeries:
    """The part's series with the words of this message's speaker. Raises UnicodeDecodeError."""
    for shape in shapes:
        words = shape.words_in(value)
        if words is not None:
            return SpeakerSeries(shape.series, words)
    own = _shape_of(value, part, shapes[0].series)
    if len(shapes) < MOST_ALIKE:
        shapes.append(own)
    return SpeakerSeries(own.series, own.words_in(value) or ())


def _shape_of(value: bytes, part: FoundPart, series: SeriesShape) -> _Shape:
    """With one word for texts that are equal in this message: of a device they stand in each of its metrics."""
    numbers: dict[bytes, int] = {}
    places: list[tuple[int, int, int]] = []
    words = []
    for point in part.points:
        own = []
        for name, (begin, end) in point.words:
            number = numbers.setdefault(value[begin:end], len(numbers))
            places.append((begin, end, number))
            own.append((intern(name), number))
        words.append(tuple(own))
    shape = SeriesShape(series.names, series.attributes, tuple(words))
    return _Shape(shape, tuple(places), len(numbers))


class Layouts:
    """Those seen last. is_wanted: which metrics, told by their names, are read."""

    def __init__(self, is_wanted: Callable[[str], bool], most: int = MOST_SPEAKERS) -> None:
        """most: speakers that are kept."""
        self._is_wanted = is_wanted
        self._most = most
        self._by_length: OrderedDict[int, list[Layout]] = OrderedDict()
        self._speakers: OrderedDict[tuple[Layout, bytes], list[_Series]] = OrderedDict()
        self._bytes = 0
        #: Layouts that were learned, each by decoding a message in full.
        self.learned = 0

    def read(self, value: bytes) -> list[Samples] | None:
        """The samples in a message, read by place; None where no message of its layout has come lately."""
        alike = self._by_length.get(len(value), ())
        for layout in alike:
            key = (layout, layout.speaker_of(value))
            series = self._speakers.get(key)
            if series is not None:
                self._speakers.move_to_end(key)
                return layout.read(value, series)
        for layout in alike:
            if layout.is_of(value):
                try:
                    series = layout.series_of(value)
                except Strange:
                    return None
                self._keep(layout, value, series)
                return layout.read(value, series)
        return None

    def learn(self, value: bytes, samples: Sequence[Samples]) -> Sequence[Samples]:
        """Learns the layout of a message that had to be decoded in full to ``samples``, so that ``read`` knows the next
        ones.

        Returns its samples; ``samples`` themselves where the message is too large or not built as ours are.
        """
        if len(value) > MOST_BYTES:
            return samples
        try:
            layout = Layout(value, samples, self._is_wanted)
            series = layout.series_of(value)
        except Strange:
            return samples
        first = layout.read(value, series)
        if first is None or list(map(_values_of, first)) != list(map(_values_of, samples)):
            return samples
        self.learned += 1
        alike = self._by_length.setdefault(len(value), [])
        alike.insert(0, layout)
        self._bytes += layout.bytes_taken
        self._forget(alike.pop() if len(alike) > MOST_ALIKE else None)
        self._by_length.move_to_end(len(value))
        while len(self._by_length) > 1 and (len(self._by_length) > MOST_LAYOUTS or self._bytes > MOST_LAYOUT_BYTES):
            for old in self._by_length.popitem(last=False)[1]:
                self._forget(old)
        self._keep(layout, value, series)
        return first

    def _keep(self, layout: Layout, value: bytes, series: list[_Series]) -> None:
        self._speakers[layout, layout.speaker_of(value)] = series
        if len(self._speakers) > self._most:
            self._speakers.popitem(last=False)

    def _forget(self, layout: Layout | None) -> None:
        self._bytes -= layout.bytes_taken if layout is not None else 0
        for key in [key for key in self._speakers if key[0] is layout] if layout is not None else ():
            del self._speakers[key]


def _values_of(samples: Samples) -> tuple[object, ...]:
    return samples.identity, samples.resource, tuple(samples.points)
