"""Which points of samples each rule asks about, and by what names its state knows them: worked out once per order.

A node tells the same series at every look, and names are most of what a look costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ...diagnosis.node_limits.table import FILES
from ...telemetry.records import Point, Samples
from ...telemetry.speaker_series import SeriesShape, SpeakerSeries
from .asked_series import AskedRules
from .asked_template import AskedTemplate, Found, filled
from .column_plan import Plans
from .condition_rules import Rules

#: Entities of other people's exporters whose series are remembered, those heard of last.
MAX_EXPORTERS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What rules ask of samples. wholes: keys of what others are compared with, and the places of their points; counts:
    likewise, of counters by whose growth others' is divided.

    rules: with their series; plans: the same as columns. watching: collectors, and the places of the points that say
    whether they see. loads: places of points that count what is asked of a service.
    """

    wholes: tuple[tuple[str, int], ...]
    counts: tuple[tuple[str, int], ...]
    rules: AskedRules
    plans: Plans = field(compare=False)
    watching: tuple[tuple[str, int], ...]
    loads: tuple[int, ...]


class AskedOf:
    """Called with samples: ``find_asked`` of their points, remembered as long as samples with the same series come.

    Whoever speaks in an order that is known is of one kind: an agent is of a node.
    Of speakers whose series have one shape most of it is worked out once.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = {kind: rules.of_entity(kind) for kind in FILES}
        self._of_none = rules.of_entity("")
        self._known: WeakKeyDictionary[object, Asked] = WeakKeyDictionary()
        self._templates: WeakKeyDictionary[SeriesShape, AskedTemplate] = WeakKeyDictionary()
        #: Of other people's exporters, by entity: what it told last, and what rules ask of that.
        self._last: dict[tuple[str, str], tuple[Sequence[Point], Asked]] = {}

    def __call__(self, samples: Samples) -> Asked:
        order, rules = samples.order, self._rules.get(samples.entity, self._of_none)
        if order is None:
            return self._of_exporter(samples, rules)
        asked = self._known.get(order)
        if asked is None:
            if isinstance(order, SpeakerSeries):
                asked = self._of_speaker(order, rules)
            else:
                asked = find_asked(samples.points, rules)
            self._known[order] = asked
        return asked

    def _of_exporter(self, samples: Samples, rules: Rules) -> Asked:
        """An exporter tells the same series at each scrape, without saying so; the crosswalk's attributes are the same
        objects then.
        """
        key, told = (samples.entity, samples.identity.node), samples.points
        last = self._last.pop(key, None)
        if last is None or len(last[0]) != len(told) or not all(map(_is_same, last[0], told)):
            last = told, find_asked(told, rules)
            if len(self._last) >= MAX_EXPORTERS:
                del self._last[next(iter(self._last))]
        self._last[key] = last
        return last[1]

    def _of_speaker(self, series: SpeakerSeries, rules: Rules) -> Asked:
        template = self._templates.get(series.shape)
        if template is None:
            template = self._templates[series.shape] = AskedTemplate(series.shape, rules)
        return _asked(template.found(series.words), series.words)


def _is_same(one: Point, other: Point) -> bool:
    return one.attributes is other.attributes and one.name == other.name


def find_asked(points: Sequence[Point], rules: Rules) -> Asked:
    """Which rules ask which of the points, by their places; the same for all samples with these series
    in this order.
    """
    return _asked(AskedTemplate(SeriesShape.of(points), rules).found(()), ())


def _asked(found: Found, words: Sequence[str]) -> Asked:
    rules = tuple([(rule, tuple([slot.filled(words) for slot in slots])) for rule, slots in found.rules])
    return Asked(
        wholes=tuple([(f"{whole}/{filled(device, words)}", place) for whole, device, place in found.wholes]),
        counts=tuple({f"{count}/{filled(device, words)}": place for count, device, place in found.counts}.items()),
        rules=rules,
        plans=Plans(rules, found.columns),
        watching=tuple([(name, place) for parts, place in found.watching if (name := filled(parts, words))]),
        loads=found.loads,
    )
