"""What measured values change in an entity's conditions: thresholds, growing counters, devices unlike their peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...telemetry.point_columns import PointColumns, value_at
from ...telemetry.records import Point, Samples
from ...telemetry.trust import Trust
from .asked_series import AskedRules, Series
from .column_plan import MIN_PEERS, ColumnPlan, medians_of_the_others
from .condition_rules import MetricRule, Test
from .conditions import MAX_OPENINGS, Condition, EntityState
from .past import BY_PAST, holds_by_past, is_beyond_usual, take_count
from .series import Asked
from .series_table import CLEAR_AT, CLEAR_SINCE, HOLDS_SINCE, START, TIME, VALUE

#: So few series are asked about sooner one by one.
_FEW = 12
#: An entity tells in a few orders of series.
_MOST_PLANS = 32
#: Tuples of tests: they are asked for of every point, and a name of an Enum takes as long as the rest.
_GROWING = (Test.GROWS, Test.RATE_ABOVE)
_AMONG_PEERS = (Test.BELOW_PEERS, Test.ABOVE_PEERS)
_ABOVE = (Test.ABOVE, Test.RISES_ABOVE)
_LEVELS = (Test.ABOVE, Test.BELOW)
_RATE_ABOVE = Test.RATE_ABOVE
#: Of a number of bits: below it a float is exact.
_MOST_BITS = 2.0**53
#: A look may be late by so much.
_LATE_S = 1.0


def take_samples(state: EntityState, samples: Samples, asked: Asked) -> list[Condition]:
    """Changes the entity by these samples; returns conditions that their points have opened, repeated or ended.

    asked: which rules ask which of these points (``AskedOf``).
    """
    points = samples.points
    for whole, place in asked.wholes:
        state.limits[whole] = value_at(points, place)
    for count, place in asked.counts:
        take_count(state, count, points[place])
    if isinstance(points, PointColumns):
        plan = asked.plans.plan(state.watching)
        if len(plan.series) > _FEW and (rows := _rows_of(state, plan)) is not None:
            changed = _take_columns(state, plan, rows, points)
            return changed + _take_one_by_one(state, plan.rest, points) if plan.rest else changed
    return _take_one_by_one(state, asked.rules, points)


def _take_one_by_one(state: EntityState, asked: AskedRules, points: Sequence[Point]) -> list[Condition]:
    changed: list[Condition] = []
    for rule, all_series in asked:
        if state.watching.get(rule.unless_watched):
            continue
        told = [(series, points[series.place]) for series in all_series]
        if len(told) > 1:
            # Of a series that stood still two points may come: its old value at its own time, then the new one.
            told.sort(key=_time_of)
        peers = _peers_of(told) if rule.test in _AMONG_PEERS else {}
        for series, point in told:
            held = _holds(state, rule, series, point, peers.get(point.time_ns, {}))
            if held is not None:
                changed += _follow(state, rule, series, point, held=held)
    return changed


def _rows_of(state: EntityState, plan: ColumnPlan) -> NDArray[np.intp] | None:
    """Where the plan's series stand in the entity's table; None where there is no room for all of them."""
    known = state.rows_of_plans.get(id(plan))
    if known is not None and known[0] is plan:
        return known[1]
    rows = [row for series in plan.series if (row := state.series.add(series.key)) is not None]
    if len(rows) < len(plan.series):
        return None
    if len(state.rows_of_plans) >= _MOST_PLANS:
        state.rows_of_plans.clear()
    found = np.array(rows, np.intp)
    state.rows_of_plans[id(plan)] = plan, found
    return found


def _take_columns(
    state: EntityState, plan: ColumnPlan, rows: NDArray[np.intp], points: PointColumns
) -> list[Condition]:
    """``take_samples`` of all series at once; one by one only what holds, or may end what is open."""
    table = state.series.numbers
    new = table.take(rows, axis=0)
    was = new[:, :HOLDS_SINCE].copy()
    new[:, :HOLDS_SINCE] = points.in_seconds().take(plan.columns.place, axis=0)
    tells, held = _ask_columns(state, plan, was, new)
    one_by_one = tells & held
    if state.conditions:
        for place, series in enumerate(plan.series):
            condition = state.conditions.get(series.condition)
            one_by_one[place] |= bool(tells[place]) and condition is not None and condition.until is None
    well = tells > one_by_one
    new[well, HOLDS_SINCE] = 0.0
    new[well, CLEAR_AT] = new[well, TIME]
    table[rows] = new
    changed: list[Condition] = []
    for place in one_by_one.nonzero()[0].tolist():
        rule, series = plan.columns.rules[place], plan.series[place]
        changed += _follow(state, rule, series, points[series.place], held=bool(held[place]))
    return changed


def _ask_columns(
    state: EntityState, plan: ColumnPlan, was: NDArray[np.float64], now: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """By series, whether a single point tells, and whether the test holds then (``_holds``).

    was, now: (n, 3 or more), value, time and start (s) of the point before and of this one.
    """
    columns, asked = plan.columns, now[:, VALUE].copy()
    tells = np.ones(len(asked), bool)
    if columns.grows.size:
        before, after = was[columns.grows], now[columns.grows]
        grown, passed_s = after[:, VALUE] - before[:, VALUE], after[:, TIME] - before[:, TIME]
        starts, were = after[:, START], before[:, START]
        same = (were == 0) | (starts == 0) | (starts == were)  # else the counter began anew
        tells[columns.grows] = tell = (passed_s > 0) & (grown >= 0) & same
        asked[columns.grows] = np.divide(grown, passed_s, out=grown, where=tell & columns.per_second)
    for peers, direction in columns.peers:
        values = asked[peers]
        others = medians_of_the_others(values)
        tells[peers] = tell = others > 0
        asked[peers] = np.divide((values - others) * direction, others, out=values, where=tell)
    for place in columns.shares:
        whole_value = state.limits.get(plan.series[place].whole, 0.0)
        tells[place] &= whole_value > 0
        asked[place] = asked[place] / whole_value if whole_value > 0 else 0.0
    held: NDArray[np.bool_] = asked * columns.sign > columns.limit
    off = {place for place, guard in plan.guards if state.limits.get(guard) == 0.0}
    for place in off:
        held[place], tells[place] = False, True
    for place in columns.past:
        if tells[place] and place not in off:
            rule, key = columns.rules[place], plan.series[place].key
            held[place] = is_beyond_usual(state, rule, key, float(asked[place]), float(now[place, TIME]))
    for place in columns.remembered:
        if not tells[place] or place in off:
            continue
        key = plan.series[place].key
        if held[place]:
            held[place] = key in state.limits
        elif key not in state.limits:
            state.limits[key] = float(asked[place])  # it was well once
    return tells, held


def _time_of(told: tuple[Series, Point]) -> int:
    return told[1].time_ns


def _peers_of(told: list[tuple[Series, Point]]) -> Mapping[int, Mapping[str, float]]:
    """By the time of a point, ``medians_of_others`` of the devices with which it is compared.

    Those are all that are told; where a device is told of at several times, those that are told of at the same.
    """
    if len({series.device for series, _ in told}) == len(told):
        medians = medians_of_others({series.device: point.value for series, point in told})
        return dict.fromkeys((point.time_ns for _, point in told), medians)
    by_time: dict[int, dict[str, float]] = {}
    for series, point in told:
        by_time.setdefault(point.time_ns, {})[series.device] = point.value
    return {time_ns: medians_of_others(values) for time_ns, values in by_time.items()}


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
    if state.series.add(key) is None or (row := state.series.get(key)) is None:
        return None
    was, was_time, was_start = row[:HOLDS_SINCE].tolist()
    row[:HOLDS_SINCE] = value, time, start
    if test in _GROWING:
        if time <= was_time:
            return None
        grown = value - was
        if grown < 0 or (was_start and start and start != was_start):
            return None  # the counter began anew
        return bool(grown / (time - was_time) > rule.threshold if test is _RATE_ABOVE else grown > rule.threshold)
    if test in _AMONG_PEERS:
        others = peers.get(series.device, 0.0)
        if others <= 0:
            return None
        share = (value - others) / others
        return share < -rule.threshold if test is Test.BELOW_PEERS else share > rule.threshold
    if rule.only_while and state.limits.get(f"{rule.only_while}/{series.device}") == 0.0:
        return False
    if test in BY_PAST:
        return holds_by_past(state, rule, series, point, before=(was, was_time, was_start))
    if test is Test.BITS:
        return int(value) & int(rule.threshold) != 0 if 0 <= value < _MOST_BITS else None
    asked = share_of(state, series, point) if rule.of else value
    if asked is None:
        return None
    if test is Test.BECOMES:
        held = asked == rule.threshold
    else:
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
    row = state.series.get(series.key)
    assert row is not None
    time = point.time_ns / 1e9
    condition = state.conditions.get(series.condition)
    is_open = condition is not None and condition.until is None
    if held:
        row[CLEAR_SINCE] = 0.0
        row[HOLDS_SINCE] = row[HOLDS_SINCE] or time
        if is_open:
            assert condition is not None
            condition.last = time
            condition.value = f"{point.value:g}"
            return []
        if time - row[HOLDS_SINCE] >= rule.hold_s:
            # It began between the last look that found nothing and the first that found it.
            lag_s = row[HOLDS_SINCE] - row[CLEAR_AT] + _LATE_S if row[CLEAR_AT] else rule.effect.lag_s
            return [_open(state, rule, series, point, float(row[HOLDS_SINCE]), float(lag_s), condition)]
        return []
    row[HOLDS_SINCE], row[CLEAR_AT] = 0.0, time
    if not is_open:
        return []
    assert condition is not None
    if condition.opened_by != series.key:  # another signal of it says whether it lasts
        return []
    row[CLEAR_SINCE] = row[CLEAR_SINCE] or time
    if time - row[CLEAR_SINCE] < rule.clear_s:
        return []
    condition.until = float(row[CLEAR_SINCE])
    row[CLEAR_SINCE] = 0.0
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
