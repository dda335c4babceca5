"""One job: how fast, where the time goes, which rank differs, what its numbers do, what was told of it."""

from __future__ import annotations

from ...telemetry import attributes as names
from ..elements.dashboard import Dashboard
from ..elements.dashboard_words import (
    INCIDENT_LABEL,
    JOB,
    JOB_LABEL,
    NODE,
    NODE_LABEL,
    OF_AN_INCIDENT,
    OF_JOB,
    ONE_JOB,
    RANK_LABEL,
    RANK_STEP,
    WITHOUT_DOCUMENT,
    incidents_table,
)  # fmt: skip
from ..elements.metric_names import label_name, prometheus_name
from ..elements.panels import (
    BAD,
    GOOD,
    ODD,
    LogQuery,
    LogStore,
    Query,
    bars,
    board,
    events,
    heat,
    lines,
    link,
    number,
    section,
    thresholds,
)
from ..elements.recordings import CALL_SECONDS, CALLS, KEPT_RANKS, PHASE_SECONDS, STEP_SECONDS, WAIT_SHARES, WAITS_LEAST

_OPEN = prometheus_name(names.METRIC_COLLECTIVE_OPEN_AGE)
_PACE = prometheus_name(names.METRIC_RANK_PACE)
_HEARTBEAT = prometheus_name(names.METRIC_HEARTBEAT_AGE)
_PHASE, _GROUP, _OP = label_name(names.PHASE), label_name(names.GROUP_NAME), label_name(names.COLLECTIVE_OP)
_WHO = f"rank {{{{{RANK_LABEL}}}}} on {{{{{NODE_LABEL}}}}}"
_TO_NODE = link("Its node", board(NODE, node=f"${{__field.labels.{NODE_LABEL}}}"))


def dashboard(logs: LogStore) -> Dashboard:
    """The dashboard of one job; what was told of it is read from ``logs``."""
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
                unit="none",
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
                "Median over all ranks, of the last minute.",
                Query(expr=f'{STEP_SECONDS}{{{JOB_LABEL}=~"$job", quantile="0.5"}}', instant=True),
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
                Query(expr=f"{STEP_SECONDS}{OF_JOB}", legend="{{quantile}} of ranks are faster"),
                unit="s",
                empty="no step has ended in this time",
                min=0,
            ),
            lines(
                "Where a step goes",
                "Mean seconds of a step in each phase, over all ranks.",
                Query(expr=f"{PHASE_SECONDS}{OF_JOB}", legend=f"{{{{{_PHASE}}}}}"),
                unit="s",
                stack=True,
                empty="no phase was told of in this time",
                min=0,
            ),
            section("Who waits, and who is waited for"),
            heat(
                "Share of time in waiting: the ranks that wait least",
                "A row for each of the ranks that most often are among the 40 that wait least, time across; white:"
                " others waited less. In a synchronous job all wait for the slowest, so the rank that never waits is"
                " the one that the others wait for.",
                Query(
                    expr=f"{WAITS_LEAST}{OF_JOB} and on ({RANK_LABEL})"
                    f" topk({KEPT_RANKS}, count_over_time({WAITS_LEAST}{OF_JOB}[$__range] @ end()))",
                    legend=_WHO,
                ),
                unit="percentunit",
                limits=thresholds((None, BAD), (0.02, "orange"), (0.05, ODD), (0.1, "blue"), (0.3, "dark-blue")),
                height=12,
                links=[_TO_NODE],
                empty="nobody waits, or no rank tells",
            ),
            lines(
                "Share of time in waiting: all ranks",
                "The rank that waits least, the one that waits most, and how all others lie between. One far below the"
                " others is the one to look at.",
                Query(expr=f"{WAIT_SHARES}{OF_JOB}", legend="{{quantile}} of ranks wait less"),
                unit="percentunit",
                height=12,
                empty="nobody waits, or no rank tells",
                min=0,
            ),
            bars(
                "Waits least",
                "Ranks that wait least now: for them the others wait.",
                Query(expr=f"bottomk(10, {WAITS_LEAST}{OF_JOB})", legend=_WHO, instant=True),
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
                "Mean seconds from call to end, waiting included, of the 20 slowest pairs of group and operation.",
                Query(
                    expr=f"{CALL_SECONDS}{OF_JOB} and on ({_GROUP}, {_OP}) topk(20, {CALL_SECONDS}{OF_JOB} @ end())",
                    legend=f"{{{{{_GROUP}}}}} {{{{{_OP}}}}}",
                ),
                unit="s",
                empty="no collective has ended in this time",
                min=0,
            ),
            lines(
                "Collectives a second, by group",
                "How often each group exchanges, per rank of the job, of the 20 that do most often. It drops to nothing"
                " while the job hangs.",
                Query(
                    expr=f"{CALLS}{OF_JOB} and on ({_GROUP}, {_OP})"
                    f" topk(20, max_over_time({CALLS}{OF_JOB}[$__range] @ end()))",
                    legend=f"{{{{{_GROUP}}}}} {{{{{_OP}}}}}",
                ),
                unit="cps",
                empty="no collective has ended in this time",
                min=0,
            ),
            section("What was told"),
            events(
                "Incidents and ends of ranks",
                "One sentence each, the newest first; of a checkpoint each state: begun, staged, durable, failed."
                " The link `trace` at a line leads to the suspect's bad step.",
                LogQuery(
                    logsql=f'{names.JOB_ID}:="$job" ({OF_AN_INCIDENT} or event_name:="whichrank.rank."*'
                    f' or event_name:="whichrank.checkpoint."*) {WITHOUT_DOCUMENT}',
                    logql=f'{{{JOB_LABEL}="$job"}} | {INCIDENT_LABEL} != ""'
                    ' or event_name =~ "whichrank.(rank|checkpoint).*"',
                ),
                logs,
                height=10,
                empty="nothing in this time",
            ),
        ],
        annotated=("whichrank", "job:$job"),
        refresh="10s",
    )
