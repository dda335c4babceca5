"""What measured values change in an entity's conditions: thresholds, growing counters, devices unlike their peers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ...telemetry.records import Point, Samples
from ...telemetry.trust import Trust
from .condition_rules import MetricRule, Test
from .conditions import MAX_OPENINGS, MAX_SERIES, Condition, EntityState
from .series import Asked, Series

#: Fewer devices than this have no majority.
MIN_PEERS = 4
_VALUE, _TIME, _START, _HOLDS_SINCE, _CLEAR_SINCE, _CLEAR_AT = range(6)
#: Tuples of tests: they are asked for of every point, and a name of an Enum takes as long as the rest.
_GROWING = (Test.GROWS, Test.RATE_ABOVE)
_AMONG_PEERS = (Test.BELOW_PEERS, Test.ABOVE_PEERS)
_ABOVE = (Test.ABOVE, Test.RISES_ABOVE)
_LEVELS = (Test.ABOVE, Test.BELOW)
_RATE_ABOVE = Test.RATE_ABOVE
#: A look may be late by so much.
_LATE_S = 1.0


def take_samples(state: EntityState, samples: Samples, asked: Asked) -> list[Condition]:
    """Changes the entity by these samples; returns conditions that their points have opened, repeated or ended.

    asked: which rules ask which of these points (``find_asked``).
    """
    changed: list[Condition] = []
    points = samples.points
    for whole, place in asked.wholes:
        state.limits[whole] = points[place].value
    for rule, all_series in asked.rules:
        if state.watching.get(rule.unless_watched):
            continue
        told = [(series, points[series.place]) for series in all_series]
        peers: dict[str, float] = {}
        if rule.test in _AMONG_PEERS:
            peers = medians_of_others({series.device: point.value for series, point in told})
        if len(told) > 1:
            # Of a counter that stood still two points may come: its old value at its own time, then the new one.
            told.sort(key=_time_of)
        for series, point in told:
            held = _holds(state, rule, series, point, peers)
            if held is not None:
                changed += _follow(state, rule, series, point, held=held)
    return changed


def _time_of(told: tuple[Series, Point]) -> int:
    return told[1].time_ns


def medians_of_others(values: Mapping[str, float]) -> dict[str, float]:
    """By device, the median of all other devices' values; {} for fewer than MIN_PEERS devices.

    Sorted once: of the others it is known who stands in the middle, whichever is left out.
    """
    if len(values) < MIN_PEERS:
        return {}
    order = sorted(values, key=values.__getitem__)
    ascending = [values[device] for device in order]
    medians = {}
    for place, device in enumerate(order):
        others = ascending[:place] + ascending[place + 1 :]
        middle = len(others) // 2
        medians[device] = others[middle] if len(others) % 2 else (others[middle - 1] + others[middle]) / 2
    return medians


def _holds(
    state: EntityState, rule: MetricRule, series: Series, point: Point, peers: Mapping[str, float]
) -> bool | None:
    """Whether the test holds now; None where a single point does not tell. peers: by device."""
    key, test = series.key, rule.test
    value, time, start = point.value, point.time_ns / 1e9, point.start_ns / 1e9
    row = state.series.get(key)
    if row is not None:
        was, was_time, was_start = row[:_HOLDS_SINCE]
        row[:_HOLDS_SINCE] = value, time, start
    elif len(state.series) < MAX_SERIES:
        was, was_time, was_start = value, math.inf, 0.0
        state.series[key] = [value, time, start, 0.0, 0.0, 0.0]
    else:
        return None
    if test in _GROWING:
        if time <= was_time or row is None:
            return None
        grown = value - was
        if grown < 0 or (was_start and start and start != was_start):
            return None  # the counter began anew
        return grown / (time - was_time) > rule.threshold if test is _RATE_ABOVE else grown > rule.threshold
    if test in _AMONG_PEERS:
        others = peers.get(series.device, 0.0)
        if others <= 0:
            return None
        share = (value - others) / others
        return share < -rule.threshold if test is Test.BELOW_PEERS else share > rule.threshold
    asked = share_of(state, series, point) if rule.of else value
    if asked is None:
        return None
    held = asked > rule.threshold if test in _ABOVE else asked < rule.threshold
    if test in _LEVELS:
        return held
    if not held:
        state.limits[key] = asked  # it was well once
    return held and key in state.limits


def share_of(state: EntityState, series: Series, point: Point) -> float | None:
    """The point's value by that of the whole it is a share of; None where the whole is not known, or not above 0."""
    whole = state.limits.get(series.whole, 0.0)
    return point.value / whole if whole > 0 else None


def _follow(state: EntityState, rule: MetricRule, series: Series, point: Point, *, held: bool) -> Iterable[Condition]:
    row = state.series[series.key]
    time = point.time_ns / 1e9
    condition = state.conditions.get(series.condition)
    is_open = condition is not None and condition.until is None
    if held:
        row[_CLEAR_SINCE] = 0.0
        row[_HOLDS_SINCE] = row[_HOLDS_SINCE] or time
        if is_open:
            assert condition is not None
            condition.last = time
            condition.value = f"{point.value:g}"
            return []
        if time - row[_HOLDS_SINCE] >= rule.hold_s:
            # It began between the last look that found nothing and the first that found it.
            lag_s = row[_HOLDS_SINCE] - row[_CLEAR_AT] + _LATE_S if row[_CLEAR_AT] else rule.effect.lag_s
            return [_open(state, rule, series, point, row[_HOLDS_SINCE], lag_s, condition)]
        return []
    row[_HOLDS_SINCE], row[_CLEAR_AT] = 0.0, time
    if not is_open:
        return []
    assert condition is not None
    if condition.opened_by != series.key:  # another signal of it says whether it lasts
        return []
    row[_CLEAR_SINCE] = row[_CLEAR_SINCE] or time
    if time - row[_CLEAR_SINCE] < rule.clear_s:
        return []
    condition.until = row[_CLEAR_SINCE]
    row[_CLEAR_SINCE] = 0.0
    return [condition]


def _open(
    state: EntityState,
    rule: MetricRule,
    series: Series,
    point: Point,
    since: float,
    lag_s: float,
    earlier: Condition | None,
) -> Condition:
    effect = rule.effect
    share = (share_of(state, series, point) or 0.0) if rule.of else 0.0
    openings = [*(earlier.openings if earlier is not None else ()), since][-MAX_OPENINGS:]
    condition = Condition(
        name=rule.condition,
        device_kind=rule.device_kind,
        device=series.device,
        severity=rule.severity,
        domain=rule.domain,
        scope=effect.scope.value,
        action=effect.action.value if effect.action else None,
        explains=sorted(kind.value for kind in effect.explains),
        since=since,
        last=point.time_ns / 1e9,
        text=rule.shows.format(value=f"{point.value:g}", device=series.device, share=f"{100 * share:.2g} %"),
        source=rule.metric,
        trust=Trust.AGENT.value,
        opened_by=series.key,
        value=f"{point.value:g}",
        event="",
        before_s=effect.before_s,
        lag_s=min(lag_s, effect.lag_s),
        tolerated_s=effect.tolerated_s,
        tolerated_times=effect.tolerated_times,
        ends_with=effect.ends_with,
        at_once=effect.at_once,
        symptom=effect.symptom,
        known=point.time_ns / 1e9,
        openings=openings,
    )
    state.add(condition)
    return condition
