"""What measured values change in an entity's conditions: thresholds, growing counters, devices unlike their peers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from ...telemetry.records import Point, Samples
from .conditions import MAX_OPENINGS, MAX_SERIES, Condition, EntityState
from .rules import MetricRule, Rules, Test

#: Fewer devices than this have no majority.
MIN_PEERS = 4
_VALUE, _TIME, _START, _HOLDS_SINCE, _CLEAR_SINCE, _CLEAR_AT = range(6)
#: A look may be late by so much.
_LATE_S = 1.0


def take_samples(state: EntityState, samples: Samples, rules: Rules) -> list[Condition]:
    """Conditions that the points have opened, repeated or ended."""
    changed: list[Condition] = []
    by_rule: dict[int, tuple[MetricRule, list[tuple[str, Point]]]] = {}
    for point in samples.points:
        for rule in rules.limits.get(point.name, ()):
            state.limits[f"{rule.of}/{device_of(point, rule)}"] = point.value
        for rule in rules.metrics.get(point.name, ()):
            if state.watching.get(rule.unless_watched):
                continue
            if all(str(point.attributes.get(name)) == value for name, value in rule.where.items()):
                by_rule.setdefault(id(rule), (rule, []))[1].append((device_of(point, rule), point))
    for rule, points in by_rule.values():
        peers = _median_of_others(dict(points)) if rule.test in (Test.BELOW_PEERS, Test.ABOVE_PEERS) else {}
        # Of a counter that stood still two points may come: its old value at its own time, then the new one.
        for device, point in sorted(points, key=lambda each: each[1].time_ns):
            held = _holds(state, rule, device, point, peers.get(device))
            if held is not None:
                changed += _follow(state, rule, device, point, held=held)
    return changed


def _series(rule: MetricRule, device: str) -> str:
    where = ",".join(rule.where.values())
    return f"{rule.condition}/{rule.metric}/{where}/{device}"


def device_of(point: Point, rule: MetricRule) -> str:
    return "/".join(str(point.attributes.get(name, "")) for name in rule.device)


def _median_of_others(points: Mapping[str, Point]) -> dict[str, float]:
    if len(points) < MIN_PEERS:
        return {}
    return {
        device: statistics.median(other.value for name, other in points.items() if name != device) for device in points
    }


def _holds(state: EntityState, rule: MetricRule, device: str, point: Point, peers: float | None) -> bool | None:
    """Whether the test holds now; None where a single point does not tell."""
    key = _series(rule, device)
    before = state.series.get(key)
    time = point.time_ns / 1e9
    row = [
        point.value,
        time,
        point.start_ns / 1e9,
        before[_HOLDS_SINCE] if before else 0.0,
        before[_CLEAR_SINCE] if before else 0.0,
        before[_CLEAR_AT] if before else 0.0,
    ]
    if before is None and len(state.series) >= MAX_SERIES:
        return None
    state.series[key] = row
    asked = share_of(state, rule, device, point) if rule.of else point.value
    if asked is None:
        return None
    if rule.test in (Test.ABOVE, Test.RISES_ABOVE, Test.BELOW, Test.DROPS_BELOW):
        is_above = rule.test in (Test.ABOVE, Test.RISES_ABOVE)
        held = asked > rule.threshold if is_above else asked < rule.threshold
        if rule.test in (Test.ABOVE, Test.BELOW):
            return held
        if not held:
            state.limits[key] = asked  # it was well once
        return held and key in state.limits
    if rule.test in (Test.BELOW_PEERS, Test.ABOVE_PEERS):
        if peers is None or peers <= 0:
            return None
        share = (point.value - peers) / peers
        return share < -rule.threshold if rule.test is Test.BELOW_PEERS else share > rule.threshold
    if before is None or time <= before[_TIME]:
        return None
    grown = point.value - before[_VALUE]
    if grown < 0 or (before[_START] and row[_START] and row[_START] != before[_START]):
        return None  # the counter began anew
    if rule.test is Test.RATE_ABOVE:
        return grown / (time - before[_TIME]) > rule.threshold
    return grown > rule.threshold


def share_of(state: EntityState, rule: MetricRule, device: str, point: Point) -> float | None:
    """None where the whole is not known, or is nothing."""
    whole = state.limits.get(f"{rule.of}/{device}", 0.0)
    return point.value / whole if whole > 0 else None


def _follow(state: EntityState, rule: MetricRule, device: str, point: Point, *, held: bool) -> Iterable[Condition]:
    row = state.series[_series(rule, device)]
    time = point.time_ns / 1e9
    condition = state.conditions.get(f"{rule.condition}/{device}")
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
            return [_open(state, rule, device, point, row[_HOLDS_SINCE], lag_s, condition)]
        return []
    row[_HOLDS_SINCE], row[_CLEAR_AT] = 0.0, time
    if not is_open:
        return []
    assert condition is not None
    if condition.opened_by != _series(rule, device):  # another signal of it says whether it lasts
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
    device: str,
    point: Point,
    since: float,
    lag_s: float,
    earlier: Condition | None,
) -> Condition:
    effect = rule.effect
    share = (share_of(state, rule, device, point) or 0.0) if rule.of else 0.0
    openings = [*(earlier.openings if earlier is not None else ()), since][-MAX_OPENINGS:]
    condition = Condition(
        name=rule.condition,
        device_kind=rule.device_kind,
        device=device,
        severity=rule.severity,
        domain=rule.domain,
        scope=effect.scope.value,
        action=effect.action.value if effect.action else None,
        explains=sorted(kind.value for kind in effect.explains),
        since=since,
        last=point.time_ns / 1e9,
        text=rule.shows.format(value=f"{point.value:g}", device=device, share=f"{100 * share:.2g} %"),
        source=rule.metric,
        opened_by=_series(rule, device),
        value=f"{point.value:g}",
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
