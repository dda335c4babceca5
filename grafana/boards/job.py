"""One job: how fast, where the time goes, which rank differs, what its numbers do, what was told of it."""

from __future__ import annotations

from ...telemetry import attributes as names
from ..dashboard import Dashboard
from ..metric_names import label_name, prometheus_name
from ..panels import (
    BAD,
    GOOD,
    ODD,
    Query,
    bars,
    board,
    events,
    heat,
    lines,
    link,
    number,
    section,
    spread,
    thresholds,
)
from .words import (
    INCIDENT_LABEL,
    JOB,
    JOB_LABEL,
    NODE,
    NODE_LABEL,
    OF_JOB,
    ONE_JOB,
    RANK_LABEL,
    RANK_STEP,
    incidents_table,
)  # fmt: skip

_STEP = prometheus_name(names.METRIC_STEP_DURATION)
_PHASE_TIME = prometheus_name(names.METRIC_PHASE_DURATION)
_CALL = prometheus_name(names.METRIC_COLLECTIVE_DURATION)
_OPEN = prometheus_name(names.METRIC_COLLECTIVE_OPEN_AGE)
_PACE = prometheus_name(names.METRIC_RANK_PACE)
_WAIT = prometheus_name(names.METRIC_RANK_WAIT)
_HEARTBEAT = prometheus_name(names.METRIC_HEARTBEAT_AGE)
_PHASE, _GROUP, _OP = label_name(names.PHASE), label_name(names.GROUP_NAME), label_name(names.COLLECTIVE_OP)
_WHO = f"rank {{{{{RANK_LABEL}}}}} on {{{{{NODE_LABEL}}}}}"
_TO_NODE = link("Its node", board(NODE, node=f"${{__field.labels.{NODE_LABEL}}}"))
_WINDOW = "[$__rate_interval]"


def dashboard() -> Dashboard:
    rate_of_wait = f"rate({_WAIT}{OF_JOB}{_WINDOW})"
    return Dashboard(
        uid=JOB,
        title="job",
        description="One job: pace, phases, who waits for whom, its numbers, and what was told of it.",
        variables=[ONE_JOB],
        panels=[
            number(
                "Ranks",
                "Ranks of the job that are watched now.",
                Query(expr=f"count({RANK_STEP}{OF_JOB})", instant=True),
                unit="short",
                empty="none: it does not run",
            ),
            number(
                "Step",
                "The step that the last rank is in.",
                Query(expr=f"min({RANK_STEP}{OF_JOB})", instant=True),
                unit="short",
                empty="not begun",
            ),
            number(
                "Ranks apart",
                "Steps between the first rank and the last. More than one or two: somebody has stopped.",
                Query(expr=f"max({RANK_STEP}{OF_JOB}) - min({RANK_STEP}{OF_JOB})", instant=True),
                unit="short",
                empty="not begun",
                limits=thresholds((None, GOOD), (2, ODD), (4, BAD)),
            ),
            number(
                "Step time",
                "Median over all ranks, of the last minutes.",
                Query(expr=f"histogram_quantile(0.5, sum(rate({_STEP}{OF_JOB}{_WINDOW})))", instant=True),
                unit="s",
                empty="no step ends",
            ),
            number(
                "Oldest open collective",
                "How long the longest operation has not ended. It grows while the job hangs.",
                Query(expr=f"max({_OPEN}{OF_JOB})", instant=True),
                unit="s",
                empty="0",
                limits=thresholds((None, GOOD), (10, ODD), (60, BAD)),
            ),
            number(
                "Oldest sign of life",
                "The process that has not shown for the longest time that it runs.",
                Query(expr=f"max({_HEARTBEAT}{OF_JOB})", instant=True),
                unit="s",
                empty="no rank",
                limits=thresholds((None, GOOD), (10, ODD), (60, BAD)),
            ),
            incidents_table("Incidents of this job", "Open ones, with who is suspected.", OF_JOB, height=5),
            section("Pace"),
            lines(
                "Step time",
                "Median and 95th percentile over ranks, waiting included. Both higher: all are slower together.",
                Query(expr=f"histogram_quantile(0.5, sum(rate({_STEP}{OF_JOB}{_WINDOW})))", legend="median"),
                Query(expr=f"histogram_quantile(0.95, sum(rate({_STEP}{OF_JOB}{_WINDOW})))", legend="95 %"),
                unit="s",
                empty="no step has ended in this time",
                min=0,
            ),
            lines(
                "Where a step goes",
                "Mean seconds of a step in each phase, over all ranks.",
                Query(
                    expr=f"sum by ({_PHASE}) (histogram_sum(rate({_PHASE_TIME}{OF_JOB}{_WINDOW})))"
                    f" / scalar(sum(histogram_count(rate({_STEP}{OF_JOB}{_WINDOW}))))",
                    legend=f"{{{{{_PHASE}}}}}",
                ),
                unit="s",
                stack=True,
                empty="no phase was told of in this time",
                min=0,
            ),
            section("Who waits, and who is waited for"),
            heat(
                "Share of time in waiting: the ranks that wait least",
                "A row for each of the 40 ranks that wait least now, time across. In a synchronous job all wait for the"
                " slowest, so the rank that never waits is the one that the others wait for.",
                Query(
                    expr=f"{rate_of_wait} and on ({RANK_LABEL}) bottomk(40, rate({_WAIT}{OF_JOB}{_WINDOW} @ end()))",
                    legend=_WHO,
                ),
                unit="percentunit",
                limits=thresholds((None, BAD), (0.02, "orange"), (0.05, ODD), (0.1, "blue"), (0.3, "dark-blue")),
                height=12,
                links=[_TO_NODE],
                empty="nobody waits, or no rank tells",
            ),
            spread(
                "Share of time in waiting: all ranks",
                "How many ranks wait how much, at each time. A single one far below the others is the one to look at.",
                Query(expr=rate_of_wait, legend=_WHO),
                unit="percentunit",
                height=12,
                empty="nobody waits, or no rank tells",
            ),
            bars(
                "Waits least",
                "Ranks that wait least now: for them the others wait.",
                Query(expr=f"bottomk(10, {rate_of_wait})", legend=_WHO, instant=True),
                unit="percentunit",
                width=8,
                links=[_TO_NODE],
                empty="nobody waits",
            ),
            bars(
                "Slowest",
                "Ranks that end the fewest steps a second.",
                Query(expr=f"bottomk(10, {_PACE}{OF_JOB})", legend=_WHO, instant=True),
                unit="cps",
                width=8,
                links=[_TO_NODE],
                empty="no step has ended",
            ),
            bars(
                "Stand longest",
                "Ranks whose oldest operation has not ended for the longest time.",
                Query(expr=f"topk(10, {_OPEN}{OF_JOB})", legend=_WHO, instant=True),
                unit="s",
                width=8,
                links=[_TO_NODE],
                empty="no operation is open",
            ),
            section("Collectives"),
            lines(
                "Time of a collective, by group",
                "Mean seconds from call to end, waiting included, by process group and operation.",
                Query(
                    expr=f"sum by ({_GROUP}, {_OP}) (histogram_sum(rate({_CALL}{OF_JOB}{_WINDOW})))"
                    f" / sum by ({_GROUP}, {_OP}) (histogram_count(rate({_CALL}{OF_JOB}{_WINDOW})))",
                    legend=f"{{{{{_GROUP}}}}} {{{{{_OP}}}}}",
                ),
                unit="s",
                empty="no collective has ended in this time",
                min=0,
            ),
            lines(
                "Collectives a second, by group",
                "How often each group exchanges, per rank. It drops to nothing while the job hangs.",
                Query(
                    expr=f"sum by ({_GROUP}, {_OP}) (histogram_count(rate({_CALL}{OF_JOB}{_WINDOW})))"
                    f" / scalar(count({RANK_STEP}{OF_JOB}))",
                    legend=f"{{{{{_GROUP}}}}} {{{{{_OP}}}}}",
                ),
                unit="cps",
                empty="no collective has ended in this time",
                min=0,
            ),
            section("What was told"),
            events(
                "Incidents and ends of ranks",
                "One sentence each, the newest first. The link `trace` at a line leads to the suspect's bad step.",
                f'{{{JOB_LABEL}="$job"}} | {INCIDENT_LABEL} != "" or event_name =~ "whichrank.rank.*"',
                height=10,
                empty="nothing in this time",
            ),
        ],
        annotated=("whichrank", "job:$job"),
        refresh="10s",
    )
