"""Which points of samples each rule asks about, and by what names its state knows them: worked out once per order.

A node tells the same series at every look, and names are most of what a look costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ...telemetry.records import Point, Samples
from .asked_series import AskedRules, Series
from .column_plan import Plans
from .condition_rules import COLLECTOR, WATCHING, MetricRule, Rules
from .loads import load_load_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What rules ask of samples. wholes: keys of what others are compared with, and the places of their points.

    rules: with their series; plans: the same as columns. watching: collectors, and the places of the points that say
    whether they see. loads: places of points that count what is asked of a service.
    """

    wholes: tuple[tuple[str, int], ...]
    rules: AskedRules
    plans: Plans = field(compare=False)
    watching: tuple[tuple[str, int], ...]
    loads: tuple[int, ...]


class AskedOf:
    """Called with samples: ``find_asked`` of their points, remembered as long as samples with the same series come."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._known: WeakKeyDictionary[object, Asked] = WeakKeyDictionary()

    def __call__(self, samples: Samples) -> Asked:
        if samples.order is None:
            return find_asked(samples.points, self._rules)
        asked = self._known.get(samples.order)
        if asked is None:
            asked = self._known[samples.order] = find_asked(samples.points, self._rules)
        return asked


def find_asked(points: Sequence[Point], rules: Rules) -> Asked:
    """Which rules ask which of the points, by their places; the same for all samples with these series
    in this order.
    """
    wholes: list[tuple[str, int]] = []
    watching: list[tuple[str, int]] = []
    loads, load_rules = [], load_load_rules()
    by_rule: dict[int, tuple[MetricRule, list[Series]]] = {}
    for place, point in enumerate(points):
        if point.name == WATCHING and (collector := str(point.attributes.get(COLLECTOR) or "")):
            watching.append((collector, place))
        if point.name in load_rules:
            loads.append(place)
        wholes += [(f"{rule.of}/{_device_of(point, rule)}", place) for rule in rules.limits.get(point.name, ())]
        for rule in rules.metrics.get(point.name, ()):
            if all(str(point.attributes.get(name)) == value for name, value in rule.where.items()):
                by_rule.setdefault(id(rule), (rule, []))[1].append(_series(rule, _device_of(point, rule), place))
    found = tuple((rule, tuple(series)) for rule, series in by_rule.values())
    return Asked(wholes=tuple(wholes), rules=found, plans=Plans(found), watching=tuple(watching), loads=tuple(loads))


def _series(rule: MetricRule, device: str, place: int) -> Series:
    where = ",".join(rule.where.values())
    return Series(
        place=place,
        device=device,
        key=f"{rule.condition}/{rule.metric}/{where}/{device}",
        condition=f"{rule.condition}/{device}",
        whole=f"{rule.of}/{device}" if rule.of else "",
    )


def _device_of(point: Point, rule: MetricRule) -> str:
    return "/".join(str(point.attributes.get(name, "")) for name in rule.device)
