"""A series as one rule sees it."""

from __future__ import annotations

from typing import NamedTuple

from .condition_rules import MetricRule


class Series(NamedTuple):
    """A point (its place in the samples) as one rule sees it. key: in the entity's series; condition, whole: the keys
    of the condition that it opens, and of what the rule takes a share of, if it does."""

    place: int
    device: str
    key: str
    condition: str
    whole: str


#: Rules, each with the series that it asks about, in the order of points.
AskedRules = tuple[tuple[MetricRule, tuple[Series, ...]], ...]
