"""A series against its own past: what is usual of it, and what it grows by per count of another. Pure.

What is usual is the mean of the last half hour of looks that were not beyond it. A condition of an hour is the usual
from then on: somebody has changed something, and nobody wants to hear of it for ever.
"""

from __future__ import annotations

from ...telemetry.records import Point
from .asked_series import Series
from .condition_rules import MetricRule, Test
from .conditions import EntityState

#: Looks after which it is known what is usual.
ENOUGH = 8
USUAL_S = 1800.0
NEW_USUAL_S = 3600.0
#: Fewer requests than this have no mean.
LEAST_COUNT = 10.0
MAX_SERIES = 4096
#: Two points of one look are told at the same time, or nearly.
_SAME_LOOK_S = 1.0

BY_PAST = (
    Test.TIMES_USUAL, Test.RATE_TIMES_USUAL, Test.MEAN_TIMES_USUAL, Test.FALLS_BY, Test.FALLS_TO, Test.MEAN_ABOVE,
)  # fmt: skip
#: Those that need nothing of other series.
BY_OWN_PAST = (Test.TIMES_USUAL, Test.RATE_TIMES_USUAL, Test.FALLS_BY, Test.FALLS_TO)
#: Value, time and start of the point before, in seconds; the time is inf where there was none.
Before = tuple[float, float, float]


def take_count(state: EntityState, key: str, point: Point) -> None:
    """Remembers what a counter has grown by since the look before; a counter that began anew has not grown."""
    time_s, known = point.time_ns / 1e9, state.counted.get(key)
    if known is None:
        if len(state.counted) < MAX_SERIES:
            state.counted[key] = [point.value, time_s, 0.0, 0.0]
    elif time_s > known[1]:
        grown = max(0.0, point.value - known[0])
        state.counted[key] = [point.value, time_s, grown, time_s - known[1]]


def holds_by_past(state: EntityState, rule: MetricRule, series: Series, point: Point, *, before: Before) -> bool | None:
    """Whether the test (one of ``BY_PAST``) holds now; None where a single point does not tell. before: the same
    series' point before.
    """
    asked = _asked(state, rule, series, point, before)
    if asked is None:
        return None
    if not asked and rule.test is Test.MEAN_TIMES_USUAL:
        return False  # nobody asked anything: that is not its usual
    if rule.test is Test.MEAN_ABOVE:
        return asked > rule.threshold
    return is_beyond_usual(state, rule, series.key, asked, point.time_ns / 1e9)


def is_beyond_usual(state: EntityState, rule: MetricRule, key: str, asked: float, time_s: float) -> bool:
    """Whether what the rule asks for is beyond the usual of the series, which learns from it. key: of the series;
    time_s: Unix seconds.
    """
    known = state.usual.get(key)
    if known is None:
        if len(state.usual) < MAX_SERIES:
            state.usual[key] = [asked, 1.0, time_s, 0.0]
        return False
    mean, seen, last_s, since = known
    held = seen >= ENOUGH and _is_beyond(rule, asked, mean)
    if not held:
        weight = max(1.0 / (seen + 1.0), min(1.0, max(0.0, time_s - last_s) / USUAL_S))
        state.usual[key] = [mean + (asked - mean) * weight, seen + 1.0, time_s, 0.0]
        return False
    since = since or time_s
    if time_s - since >= NEW_USUAL_S:
        state.usual[key] = [asked, float(ENOUGH), time_s, 0.0]
        return False
    state.usual[key] = [mean, seen, time_s, since]
    return True


def _asked(state: EntityState, rule: MetricRule, series: Series, point: Point, before: Before) -> float | None:
    if rule.test in (Test.TIMES_USUAL, Test.FALLS_BY, Test.FALLS_TO):
        return point.value
    was, was_s, was_start_s = before
    time_s, start_s = point.time_ns / 1e9, point.start_ns / 1e9
    grown = point.value - was
    if time_s <= was_s or grown < 0 or (was_start_s and start_s and start_s != was_start_s):
        return None  # the first look, or the counter began anew
    if rule.test is Test.RATE_TIMES_USUAL:
        return grown / (time_s - was_s)
    count = state.counted.get(f"{rule.per}/{series.device}")
    if count is None or abs(count[1] - time_s) > _SAME_LOOK_S or not count[3]:
        return None
    if count[2] < LEAST_COUNT:
        return 0.0 if not grown else None  # nothing was asked of it
    return grown / count[2]


def _is_beyond(rule: MetricRule, asked: float, usual: float) -> bool:
    if rule.test is Test.FALLS_BY:
        return asked < usual - rule.threshold
    if rule.test is Test.FALLS_TO:
        return asked < usual * rule.threshold
    return asked > rule.floor and asked > usual * rule.threshold
