"""Series as one speaker tells them: what all speakers of a kind have in common once, and of each only its own words.

A node tells hundreds of series, and thousands of nodes the same ones: attributes of each are made where somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from .records import Point


@dataclass(frozen=True, eq=False)
class SeriesShape:
    """Series of all speakers that differ in words alone.

    names: of each series. attributes: of each, with the words of whoever came first. words: of each, the attributes
    that are a word of the speaker's own, and the word's number.
    """

    names: tuple[str, ...]
    attributes: tuple[Mapping[str, Any], ...]
    words: tuple[tuple[tuple[str, int], ...], ...]

    @classmethod
    def of(cls, points: Sequence[Point]) -> SeriesShape:
        """Of points that are told as they are, without words."""
        return cls(
            tuple(point.name for point in points), tuple(point.attributes for point in points), ((),) * len(points)
        )


class SpeakerSeries(Sequence[tuple[str, Mapping[str, Any]]]):
    """Name and attributes of each series of one speaker. Equal to nothing but itself.

    Stands for these series in this order: what was worked out for them once can be found by it.
    """

    __slots__ = ("__weakref__", "shape", "words")

    def __init__(self, shape: SeriesShape, words: tuple[str, ...] = ()) -> None:
        """words: by number, of this speaker."""
        self.shape, self.words = shape, words

    def __len__(self) -> int:
        return len(self.shape.names)

    @overload
    def __getitem__(self, place: int) -> tuple[str, Mapping[str, Any]]: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[tuple[str, Mapping[str, Any]], ...]: ...
    def __getitem__(
        self, place: int | slice
    ) -> tuple[str, Mapping[str, Any]] | tuple[tuple[str, Mapping[str, Any]], ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(*place.indices(len(self))))
        own = self.shape.words[place]
        attributes = self.shape.attributes[place]
        if own:
            attributes = dict(attributes)
            for name, number in own:
                attributes[name] = self.words[number]
        return self.shape.names[place], attributes
