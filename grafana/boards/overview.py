"""What is wrong now, which jobs run, what it costs, and whether whichrank itself is well."""

from __future__ import annotations

from ...telemetry import attributes as names
from ..elements.dashboard import Dashboard
from ..elements.dashboard_words import (
    ACTIVE,
    BUCKET_LABEL,
    GOODPUT,
    INCIDENT_LABEL,
    JOB,
    JOB_LABEL,
    JOBS,
    KIND_LABEL,
    NONE_IS_GOOD,
    OF_AN_INCIDENT,
    OF_JOB,
    OVERVIEW,
    PIPELINE,
    RANK_STEP,
    SEVERITY_LABEL,
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
    lines,
    link,
    number,
    section,
    table,
    thresholds,
)
from ..elements.recordings import STEP_SECONDS

_BUCKET = label_name(names.GOODPUT_BUCKET)
_GPU_TIME = prometheus_name(names.METRIC_GOODPUT_GPU_TIME)
_PACE = prometheus_name(names.METRIC_RANK_PACE)
_LAG = prometheus_name(names.METRIC_PIPELINE_LAG)
_LETTERS = prometheus_name(names.METRIC_PIPELINE_DEAD_LETTERS)
_HEARTBEAT = prometheus_name(names.METRIC_HEARTBEAT_AGE)


def dashboard(logs: LogStore) -> Dashboard:
    """The dashboard that is the first page; newest incidents are read from ``logs``."""
    return Dashboard(
        uid=OVERVIEW,
        title="overview",
        description="What is wrong now, which jobs run, what was lost, and whether whichrank itself is well.",
        variables=[JOBS],
        panels=[
            number(
                "Pages open",
                "Incidents that ask for a person now: a job stands still or has died.",
                Query(expr=_open("page"), instant=True),
                unit="short",
                empty="0",
                limits=NONE_IS_GOOD,
            ),
            number(
                "Tickets open",
                "Incidents that can wait until morning: a job is slower than it was.",
                Query(expr=_open("ticket"), instant=True),
                unit="short",
                empty="0",
                limits=thresholds((None, GOOD), (1, ODD)),
            ),
            number(
                "Jobs",
                "Jobs of which ranks are watched now.",
                Query(expr=f"count(count by ({JOB_LABEL}) ({RANK_STEP}{OF_JOB}))", instant=True),
                unit="short",
                empty="no job runs",
            ),
            number(
                "Ranks",
                "Ranks that are watched now.",
                Query(expr=f"count({RANK_STEP}{OF_JOB})", instant=True),
                unit="short",
                empty="0",
            ),
            number(
                "Goodput",
                "Of all GPU time that jobs held so far, the share that made progress that was not lost again.",
                Query(expr=_share("productive"), instant=True),
                unit="percentunit",
                empty="no account yet",
                limits=thresholds((None, BAD), (0.8, ODD), (0.9, GOOD)),
                links=[link("Where it went", board(GOODPUT))],
            ),
            number(
                "Judged until",
                "How long ago what has been judged last came in. It grows where processors stand still or are too few.",
                Query(expr=f"max({_LAG})", instant=True),
                unit="s",
                empty="processors tell nothing",
                limits=thresholds((None, GOOD), (5, ODD), (30, BAD)),
                links=[link("whichrank itself", board(PIPELINE))],
            ),
            incidents_table(
                "Incidents now",
                "Each cause once: who, of which job, since it is open. Click the incident for evidence and advice.",
                OF_JOB,
            ),
            section("Jobs"),
            table(
                "Jobs now",
                "Each job with its ranks, the step that its slowest rank is in, and how fast it goes.",
                Query(expr=f"count by ({JOB_LABEL}) ({RANK_STEP}{OF_JOB})", instant=True, as_table=True),
                Query(expr=f"min by ({JOB_LABEL}) ({RANK_STEP}{OF_JOB})", instant=True, as_table=True),
                Query(expr=f"min by ({JOB_LABEL}) ({_PACE}{OF_JOB})", instant=True, as_table=True),
                Query(expr=f"max by ({JOB_LABEL}) ({_HEARTBEAT}{OF_JOB})", instant=True, as_table=True),
                columns={
                    JOB_LABEL: "Job",
                    "Value #A": "Ranks",
                    "Value #B": "Step (last)",
                    "Value #C": "Slowest, steps/s",
                    "Value #D": "Oldest sign of life, s",
                },
                unit="none",
                height=7,
                width=14,
                empty="No job runs",
                overrides=[
                    {
                        "matcher": {"id": "byName", "options": "Job"},
                        "properties": [{"id": "links", "value": [link("The job", board(JOB, job="${__value.raw}"))]}],
                    }
                ],
            ),
            bars(
                "GPU time lost, by what it went to",
                "GPU seconds that made no progress, of all jobs that are still told of.",
                Query(
                    expr=f'topk(10, sum by ({_BUCKET}) ({_GPU_TIME}{{{_BUCKET}!="productive"}}))',
                    legend=f"{{{{{_BUCKET}}}}}",
                    instant=True,
                ),
                unit="s",
                width=10,
                height=7,
                empty="nothing lost, or no account yet",
            ),
            lines(
                "Step time, by job",
                "Median over all ranks of a job. A step that takes longer shows here whatever the reason.",
                Query(
                    expr=f'{STEP_SECONDS}{{{JOB_LABEL}=~"$job", quantile="0.5"}}',
                    legend=f"{{{{{JOB_LABEL}}}}}",
                ),
                unit="s",
                empty="no step has ended in this time",
                min=0,
            ),
            lines(
                "Incidents open, by kind",
                "How many were open at a time.",
                Query(
                    expr=f"sum by ({KIND_LABEL}) (max by ({KIND_LABEL}, {INCIDENT_LABEL}) ({ACTIVE}{OF_JOB}))",
                    legend=f"{{{{{KIND_LABEL}}}}}",
                ),
                unit="short",
                stack=True,
                empty="none",
                min=0,
            ),
            events(
                "What was told",
                "Each revision of each incident in one sentence, the newest first.",
                LogQuery(
                    logsql=f'{names.JOB_ID}:~"^(?:$job)$" {OF_AN_INCIDENT} {WITHOUT_DOCUMENT}',
                    logql=f'{{{JOB_LABEL}=~"$job"}} | {INCIDENT_LABEL} != ""',
                ),
                logs,
                height=8,
                empty="nothing in this time",
            ),
            section("whichrank itself"),
            lines(
                "Age of what is not judged yet",
                "Seconds between what comes in and what is judged. Above 5 s pages come late.",
                Query(expr=f"max({_LAG})", legend="oldest record"),
                unit="s",
                empty="processors tell nothing: are they running?",
                min=0,
            ),
            lines(
                "Set aside as unreadable",
                "Records on whichrank.dlq; `whichrank dlq list` tells which.",
                Query(expr=f"sum(increase({_LETTERS}[$__rate_interval]))", legend="records"),
                unit="short",
                empty="processors tell nothing: are they running?",
                min=0,
            ),
        ],
        refresh="10s",
        annotated=("whichrank",),
    )


def _open(severity: str) -> str:
    matchers = f'{{{SEVERITY_LABEL}="{severity}", {JOB_LABEL}=~"$job"}}'
    return f"count(max by ({INCIDENT_LABEL}, {BUCKET_LABEL}) ({ACTIVE}{matchers}) > 0) or vector(0)"


def _share(bucket: str) -> str:
    of = f'{{{JOB_LABEL}=~"$job", {_BUCKET}="{bucket}"}}'
    return f"sum({_GPU_TIME}{of}) / sum({_GPU_TIME}{OF_JOB})"
