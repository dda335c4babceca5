"""What Prometheus works out every half minute: aggregates over all ranks of a job, so that a panel need not. Pure.

A panel of a job of 16,384 ranks asks for an hour of at most some hundred series; from the ranks' own it would be tens
of millions of samples each time that somebody looks. Names follow Prometheus' custom: level, metric, what was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...telemetry import attributes as names
from .dashboard_words import JOB_LABEL, NODE_LABEL, RANK_LABEL, RANK_STEP
from .metric_names import label_name, prometheus_name

#: Sums over a hundred thousand histograms and more are dear (6 s of a core at 16,384 ranks), and come once a minute.
GROUPS = {"whichrank-recorded": 30, "whichrank-recorded-seldom": 60}
OFTEN, SELDOM = GROUPS
#: Of a rate: six points of metrics that come every 10 s, so that one that is late is no hole.
WINDOW = "[1m]"
#: Of all ranks: who waits least, who waits most, and how the others lie between.
SHARES = ("0", "0.01", "0.1", "0.5", "0.9", "1")
#: Of a job, so many ranks that wait least are kept by name.
KEPT_RANKS = 40

_STEP, _PHASE_TIME = prometheus_name(names.METRIC_STEP_DURATION), prometheus_name(names.METRIC_PHASE_DURATION)
_CALL, _WAIT = prometheus_name(names.METRIC_COLLECTIVE_DURATION), prometheus_name(names.METRIC_RANK_WAIT)
_PHASE, _GROUP, _OP = label_name(names.PHASE), label_name(names.GROUP_NAME), label_name(names.COLLECTIVE_OP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """group: of ``GROUPS``; what is made of another one stands behind it in the same group."""

    record: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()
    group: str = OFTEN


def _rate_of(histogram: str, *labels: str) -> str:
    return f"sum by ({', '.join((JOB_LABEL, *labels))}) (rate({histogram}{WINDOW}))"


STEP_SECONDS = "job:whichrank_step_duration_seconds:quantile"
PHASE_SECONDS = "job:whichrank_step_phase_duration_seconds:mean_of_step"
CALL_RATES = "job:whichrank_collective_duration_seconds:rate"
CALL_SECONDS = "job:whichrank_collective_duration_seconds:mean"
CALLS = "job:whichrank_collective_duration_seconds:rate_of_rank"
WAIT_SHARES = "job:whichrank_rank_wait_seconds:quantile"
WAITS_LEAST = "rank:whichrank_rank_wait_seconds:least"

RECORDINGS: Sequence[RecordingRule] = (
    *(
        RecordingRule(
            record=STEP_SECONDS, expr=f"histogram_quantile({share}, {_rate_of(_STEP)})", labels=(("quantile", share),)
        )
        for share in ("0.5", "0.95")
    ),
    RecordingRule(
        record=PHASE_SECONDS,
        group=SELDOM,
        expr=f"histogram_sum({_rate_of(_PHASE_TIME, _PHASE)})"
        f" / on ({JOB_LABEL}) group_left () histogram_count({_rate_of(_STEP)})",
    ),
    RecordingRule(record=CALL_RATES, group=SELDOM, expr=_rate_of(_CALL, _GROUP, _OP)),
    RecordingRule(
        record=CALL_SECONDS, group=SELDOM, expr=f"histogram_sum({CALL_RATES}) / histogram_count({CALL_RATES})"
    ),
    RecordingRule(
        record=CALLS,
        group=SELDOM,
        expr=f"histogram_count({CALL_RATES}) / on ({JOB_LABEL}) group_left () count by ({JOB_LABEL}) ({RANK_STEP})",
    ),
    *(
        RecordingRule(
            record=WAIT_SHARES,
            expr=f"quantile by ({JOB_LABEL}) ({share}, rate({_WAIT}{WINDOW}))",
            labels=(("quantile", share),),
        )
        for share in SHARES
    ),
    RecordingRule(
        record=WAITS_LEAST,
        expr=f"max by ({JOB_LABEL}, {NODE_LABEL}, {RANK_LABEL})"
        f" (bottomk by ({JOB_LABEL}) ({KEPT_RANKS}, rate({_WAIT}{WINDOW})))",
    ),
)


def recorded() -> list[dict[str, Any]]:
    """Recording rules, as groups of a rule file of Prometheus."""
    return [
        {
            "name": group,
            "interval": f"{interval_s}s",
            "rules": [
                {"record": each.record, "expr": each.expr} | ({"labels": dict(each.labels)} if each.labels else {})
                for each in RECORDINGS
                if each.group == group
            ],
        }
        for group, interval_s in GROUPS.items()
    ]
