"""Which points of samples each rule asks about, and by what names its state knows them: worked out once per order.

A node tells the same series at every look, and names are most of what a look costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ...telemetry.records import Point, Samples
from .condition_rules import MetricRule, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A point (its place in the samples) as one rule sees it. key: in the entity's series; condition, whole: the keys
    of the condition that it opens, and of what the rule takes a share of, if it does."""

    place: int
    device: str
    key: str
    condition: str
    whole: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What rules ask of samples. wholes: keys of what others are compared with, and the places of their points.

    rules: each with its series, in the order of points.
    """

    wholes: tuple[tuple[str, int], ...]
    rules: tuple[tuple[MetricRule, tuple[Series, ...]], ...]


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
    by_rule: dict[int, tuple[MetricRule, list[Series]]] = {}
    for place, point in enumerate(points):
        wholes += [(f"{rule.of}/{_device_of(point, rule)}", place) for rule in rules.limits.get(point.name, ())]
        for rule in rules.metrics.get(point.name, ()):
            if all(str(point.attributes.get(name)) == value for name, value in rule.where.items()):
                by_rule.setdefault(id(rule), (rule, []))[1].append(_series(rule, _device_of(point, rule), place))
    found = tuple((rule, tuple(series)) for rule, series in by_rule.values())
    return Asked(wholes=tuple(wholes), rules=found)


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
