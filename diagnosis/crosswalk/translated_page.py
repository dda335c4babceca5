"""A page of foreign series that comes again and again, translated once: which points are told of whom, as columns.

What a series becomes depends on its name, its labels and who speaks, and on no number; so for one order of series it is
worked out once (``translate.meaning_of``), and each later page is a multiplication. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ...telemetry.point_columns import PointColumns
from ...telemetry.records import Point
from ...telemetry.speaker_series import SeriesShape, SpeakerSeries
from .hosts import with_scraped_host
from .rules import CrosswalkRule
from .translate import EntityKind, Meaning, meaning_of

#: Orders of series in our words that are remembered, and sets of attributes: all switches of a kind tell the same.
MOST_ORDERS, MOST_ATTRIBUTES = 4_096, 65_536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Points of one entity. places: of theirs in the page. order: their series in our words."""

    kind: EntityKind
    entity: str
    places: NDArray[np.intp]
    order: SpeakerSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPart:
    """What a page tells of one entity. order: stands for these series in this order; None where some are missing.

    entity: "" where nothing says whose the points are.
    """

    kind: EntityKind
    entity: str
    points: Sequence[Point]
    order: SpeakerSeries | None


class TranslatedPage:
    """Of one order of foreign series. Columns are (n,), of those that are told in our words."""

    def __init__(self, told: Sequence[tuple[int, Meaning]], orders: Orders) -> None:
        """told: by place in the page."""
        rules = [meaning.rule for _, meaning in told]
        self._places = np.array([place for place, _ in told], np.intp)
        self._factor = np.array([rule.factor for rule in rules])
        self._one_if = np.array([np.nan if rule.one_if is None else rule.one_if for rule in rules])
        self._is_state = np.array([rule.one_if is not None for rule in rules], bool)
        self._least = np.array([-inf if rule.at_least is None else rule.at_least for rule in rules])
        self._most = np.array([inf if rule.at_most is None else rule.at_most for rule in rules])
        by_entity: dict[tuple[EntityKind, str], list[int]] = {}
        for place, (_, meaning) in enumerate(told):
            by_entity.setdefault((meaning.entity_kind, meaning.entity_id), []).append(place)
        self._parts = [
            _Part(
                kind=kind,
                entity=entity,
                places=np.array(places, np.intp),
                order=orders.of(kind, [(told[place][1].rule, told[place][1].attributes) for place in places]),
            )
            for (kind, entity), places in by_entity.items()
        ]

    def of(self, points: PointColumns) -> Iterator[ToldPart]:
        """What these points, in this order of series, say in our words. Their values are finite."""
        values = points.values[self._places]
        times_ns, starts_ns = points.times_ns[self._places], points.starts_ns[self._places]
        ours = np.where(self._is_state, values == self._one_if, values * self._factor)
        holds = np.isfinite(ours) & (values >= self._least) & (values <= self._most)
        all_hold = bool(holds.all())
        for part in self._parts:
            at = part.places if all_hold else part.places[holds[part.places]]
            if not at.size:
                continue
            if at.size == part.places.size:
                columns = PointColumns(part.order, ours[at], times_ns[at], starts_ns[at])
                yield ToldPart(kind=part.kind, entity=part.entity, points=columns, order=part.order)
                continue
            kept = holds[part.places].nonzero()[0].tolist()
            series = tuple(part.order[place] for place in kept)
            columns = PointColumns(series, ours[at], times_ns[at], starts_ns[at])
            yield ToldPart(kind=part.kind, entity=part.entity, points=tuple(columns), order=None)


class Orders:
    """Orders of series in our words, one object for all entities of a kind that tell the same."""

    def __init__(self) -> None:
        self._attributes: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._known: dict[tuple[object, ...], SpeakerSeries] = {}

    def of(self, kind: EntityKind, series: Sequence[tuple[CrosswalkRule, Mapping[str, str]]]) -> SpeakerSeries:
        """The order of these series, of an entity of this kind."""
        if len(self._attributes) >= MOST_ATTRIBUTES or len(self._known) >= MOST_ORDERS:
            self._attributes.clear()
            self._known.clear()
        names = tuple(rule.metric for rule, _ in series)
        attributes = tuple(self._attributes.setdefault(tuple(told.items()), told) for _, told in series)
        key = (kind, names, tuple(map(id, attributes)))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = SpeakerSeries(SeriesShape(names, attributes, ((),) * len(names)))
        return known


class PageTranslator:
    """Remembers pages as long as their orders of series live."""

    def __init__(self) -> None:
        self._orders = Orders()
        #: By order of the foreign series: with which names of hosts it was translated, and the translation.
        self._known: WeakKeyDictionary[SpeakerSeries, tuple[int, TranslatedPage]] = WeakKeyDictionary()

    def page(
        self,
        order: SpeakerSeries,
        points: Sequence[Point],
        resource: Mapping[str, Any],
        aliases: Mapping[str, str],
        version: int,
    ) -> TranslatedPage:
        """The translation of a page. points: with the series of ``order``; resource: of who speaks, always the same for
        one order. aliases: see ``hosts.entity_of``; version: another one for each change of them.
        """
        known = self._known.get(order)
        if known is not None and known[0] == version:
            return known[1]
        about = with_scraped_host(resource, points)
        told = [
            (place, meaning)
            for place, point in enumerate(points)
            if (meaning := meaning_of(point.name, point.attributes, about, aliases)) is not None
        ]
        made = TranslatedPage(told, self._orders)
        self._known[order] = version, made
        return made
