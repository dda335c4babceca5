"""Where every GPU second went: goodput, what interruptions cost, per job."""

from __future__ import annotations

from ...telemetry import attributes as names
from ...telemetry.vocabulary import TimeBucket
from ..elements.dashboard import Dashboard, Variable
from ..elements.dashboard_words import ACTIVE, GOODPUT, INCIDENT_LABEL, JOB_LABEL, SEVERITY_LABEL, SUSPECT_NODE_LABEL
from ..elements.metric_names import label_name, prometheus_name
from ..elements.panels import BAD, GOOD, ODD, Query, bars, lines, number, section, table, thresholds

_BUCKET = label_name(names.GOODPUT_BUCKET)
_TIME, _GPU_TIME = prometheus_name(names.METRIC_GOODPUT_TIME), prometheus_name(names.METRIC_GOODPUT_GPU_TIME)
_JOBS = Variable(name="job", label="Job", query=f"label_values({_TIME}, {JOB_LABEL})")
_OF_JOB = f'{JOB_LABEL}=~"$job"'
#: Of an interruption (docs/accounting.md): its five parts.
_DOWN = {
    "checkpoint overhead": (TimeBucket.CHECKPOINT_SAVE, TimeBucket.CHECKPOINT_RESTORE),
    "until it was found": (TimeBucket.FAULT_BEFORE_DETECTION, TimeBucket.FAULT_AFTER_DETECTION),
    "lost work": (TimeBucket.REWORK,),
    "shutdown": (TimeBucket.SHUTDOWN,),
    "restart": (TimeBucket.RESTARTING,),
}


def _sum(*buckets: TimeBucket, by: str = "", of: str = _GPU_TIME) -> str:
    chosen = f', {_BUCKET}=~"{"|".join(bucket.value for bucket in buckets)}"' if buckets else ""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} ({of}{{{_OF_JOB}{chosen}}})"


def dashboard() -> Dashboard:
    """The dashboard of every job's seconds, from metrics alone."""
    held = [bucket for bucket in TimeBucket if bucket not in (TimeBucket.QUEUED, TimeBucket.PLANNED)]
    return Dashboard(
        uid=GOODPUT,
        title="goodput",
        description="Where every GPU second went, to what it was lost, and what interruptions cost.",
        variables=[_JOBS],
        since="now-7d",
        refresh="1m",
        panels=[
            number(
                "Goodput",
                "Productive GPU time of all GPU time held.",
                Query(expr=f"{_sum(TimeBucket.PRODUCTIVE)} / {_sum()}", instant=True),
                unit="percentunit",
                width=5,
                empty="no account yet",
                limits=thresholds((None, BAD), (0.8, ODD), (0.9, GOOD)),
            ),
            number(
                "ETTR",
                "Effective training time ratio: productive time of the wall time in which the job wanted to train.",
                Query(expr=f"{_sum(TimeBucket.PRODUCTIVE, of=_TIME)} / {_sum(*held, of=_TIME)}", instant=True),
                unit="percentunit",
                width=5,
                empty="no account yet",
                limits=thresholds((None, BAD), (0.8, ODD), (0.9, GOOD)),
            ),
            number(
                "GPU time held",
                "Of all jobs that are chosen.",
                Query(expr=_sum(), instant=True),
                unit="s",
                width=5,
                empty="no account yet",
            ),
            number(
                "GPU time lost",
                "Held, and no progress made of it.",
                Query(expr=f"{_sum()} - {_sum(TimeBucket.PRODUCTIVE)}", instant=True),
                unit="s",
                width=5,
                empty="no account yet",
            ),
            number(
                "Not explained",
                "Share of the time of which it is not known where it went. Above 1 % the account is not to be trusted.",
                Query(expr=f"({_sum(TimeBucket.UNKNOWN)} or vector(0)) / {_sum()}", instant=True),
                unit="percentunit",
                empty="no account yet",
                limits=thresholds((None, GOOD), (0.01, ODD), (0.05, BAD)),
            ),
            section("Where it went"),
            bars(
                "All GPU time, by bucket",
                "Every second is in exactly one of them (docs/accounting.md says which is which).",
                Query(expr=f"sort_desc({_sum(by=_BUCKET)})", legend=f"{{{{{_BUCKET}}}}}", instant=True),
                unit="s",
                height=10,
                empty="no account yet",
            ),
            lines(
                "GPU time by bucket, as it grows",
                "Steep where time goes now. Productive time that falls was lost later, and became rework.",
                Query(expr=_sum(by=_BUCKET), legend=f"{{{{{_BUCKET}}}}}"),
                unit="s",
                height=10,
                stack=True,
                empty="no account yet",
                min=0,
                overrides=[
                    {
                        "matcher": {"id": "byName", "options": TimeBucket.PRODUCTIVE.value},
                        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": "dark-green"}}],
                    }
                ],
            ),
            section("What interruptions cost"),
            bars(
                "Downtime, by its parts",
                "GPU seconds of checkpoints, of the time until a fault was found and acted upon, of lost work, of ends"
                " and restarts.",
                Query(
                    expr=" or ".join(
                        f'label_replace({_sum(*buckets)}, "part", "{part}", "", "")' for part, buckets in _DOWN.items()
                    ),
                    legend="{{part}}",
                    instant=True,
                ),
                unit="s",
                empty="no interruption",
            ),
            number(
                "Pages in this range",
                "Incidents that stopped a job, each cause once.",
                Query(
                    expr=f"count(max by ({INCIDENT_LABEL}) (max_over_time({ACTIVE}"
                    f'{{{SEVERITY_LABEL}="page", {_OF_JOB}}}[$__range])) > 0) or vector(0)',
                    instant=True,
                ),
                unit="short",
                width=6,
                height=8,
                empty="0",
            ),
            number(
                "Wall time between pages",
                "Wall time of the chosen jobs, for each page in the range: a first look at MTTF. `whichrank goodput`"
                " has it exactly.",
                Query(
                    expr=f"{_sum(of=_TIME)} / clamp_min(count(max by ({INCIDENT_LABEL}) (max_over_time({ACTIVE}"
                    f'{{{SEVERITY_LABEL}="page", {_OF_JOB}}}[$__range])) > 0) or vector(0), 1)',
                    instant=True,
                ),
                unit="s",
                width=6,
                height=8,
                empty="no account yet",
            ),
            section("Per job"),
            table(
                "Jobs",
                "Goodput and GPU time of each job, the largest loss first.",
                Query(expr=_sum(by=JOB_LABEL), instant=True, as_table=True),
                Query(
                    expr=f"{_sum(TimeBucket.PRODUCTIVE, by=JOB_LABEL)} / {_sum(by=JOB_LABEL)}",
                    instant=True,
                    as_table=True,
                ),
                Query(
                    expr=f"{_sum(by=JOB_LABEL)} - {_sum(TimeBucket.PRODUCTIVE, by=JOB_LABEL)}",
                    instant=True,
                    as_table=True,
                ),
                Query(expr=_sum(TimeBucket.REWORK, by=JOB_LABEL), instant=True, as_table=True),
                Query(expr=_sum(TimeBucket.STRAGGLER_LOSS, by=JOB_LABEL), instant=True, as_table=True),
                columns={
                    JOB_LABEL: "Job",
                    "Value #A": "GPU time held",
                    "Value #B": "Goodput",
                    "Value #C": "GPU time lost",
                    "Value #D": "Lost work",
                    "Value #E": "Lost to stragglers",
                },
                sort=[{"displayName": "GPU time lost", "desc": True}],
                overrides=[
                    {
                        "matcher": {"id": "byName", "options": "Goodput"},
                        "properties": [{"id": "unit", "value": "percentunit"}],
                    }
                ],
                unit="s",
                height=9,
                empty="No account yet",
            ),
            bars(
                "Nodes, by pages that name them",
                "Hardware downtime: whose nodes stopped jobs in the range.",
                Query(
                    expr=f"topk(15, count by ({SUSPECT_NODE_LABEL}) (max by ({INCIDENT_LABEL}, {SUSPECT_NODE_LABEL})"
                    f' (max_over_time({ACTIVE}{{{SEVERITY_LABEL}="page", {SUSPECT_NODE_LABEL}!="", {_OF_JOB}}}'
                    "[$__range])) > 0))",
                    legend=f"{{{{{SUSPECT_NODE_LABEL}}}}}",
                    instant=True,
                ),
                unit="short",
                width=24,
                empty="no node stopped a job",
            ),
        ],
    )
