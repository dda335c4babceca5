"""whichrank watching itself: agents, processors, what was lost on the way, and what it costs."""

from __future__ import annotations

from ...telemetry import attributes as names
from ..elements.dashboard import Dashboard
from ..elements.dashboard_words import INCIDENT_LABEL, NODE_LABEL, OF_AN_INCIDENT, PIPELINE
from ..elements.metric_names import label_name, prometheus_name
from ..elements.panels import (
    BAD,
    GOOD,
    ODD,
    LogQuery,
    LogStore,
    Query,
    bars,
    events,
    lines,
    number,
    section,
    thresholds,
)

_WINDOW = "[$__rate_interval]"
_SILENT = "processors tell nothing: are they running?"
_NO_AGENT = "no agent tells: are they running?"


def dashboard(logs: LogStore) -> Dashboard:
    """The dashboard of whichrank itself; what people said of incidents is read from ``logs``."""
    name = prometheus_name
    reason, collector = label_name(names.DROP_REASON), label_name("whichrank.collector")
    lag, letters = name(names.METRIC_PIPELINE_LAG), name(names.METRIC_PIPELINE_DEAD_LETTERS)
    cpu = name(names.METRIC_PROCESS_CPU_TIME)
    return Dashboard(
        uid=PIPELINE,
        title="pipeline",
        description="whichrank watching itself: agents, processors, what was lost on the way, what it costs.",
        panels=[
            number(
                "Judged until",
                "Age of the oldest record that is not judged.",
                Query(expr=f"max({lag})", instant=True),
                unit="s",
                empty=_SILENT,
                limits=thresholds((None, GOOD), (5, ODD), (30, BAD)),
            ),
            number(
                "Set aside",
                "Records of the last hour that nobody could read: `whichrank dlq list`.",
                Query(expr=f"sum(increase({letters}[1h])) or vector(0)", instant=True),
                unit="short",
                empty=_SILENT,
                limits=thresholds((None, GOOD), (1, ODD)),
            ),
            number(
                "Agents",
                "Nodes whose agents tell of themselves.",
                Query(expr=f"count(count by ({NODE_LABEL}) ({name(names.METRIC_AGENT_RANKS)}))", instant=True),
                unit="short",
                empty=_NO_AGENT,
            ),
            number(
                "Events lost",
                "Of the events that ranks wrote in the last hour, the share that no agent read in time.",
                Query(
                    expr=f"sum(increase({name(names.METRIC_AGENT_EVENTS_LOST)}[1h]))"
                    f" / sum(increase({name(names.METRIC_AGENT_EVENTS_READ)}[1h]))",
                    instant=True,
                ),
                unit="percentunit",
                empty=_NO_AGENT,
                limits=thresholds((None, GOOD), (0.0001, ODD), (0.01, BAD)),
            ),
            number(
                "Parts that are down",
                "Of what Prometheus scrapes (processors, Collector, stores), how many do not answer.",
                Query(expr="count(up == 0) or vector(0)", instant=True),
                unit="short",
                empty="0",
                limits=thresholds((None, GOOD), (1, BAD)),
            ),
            number(
                "Cores of the processors",
                "Processor time a second.",
                Query(
                    expr=f'sum(rate({cpu}{{service_name="whichrank-processors"}}[5m]))',
                    instant=True,
                ),
                unit="short",
                decimals=2,
                empty=_SILENT,
            ),
            section("Processors"),
            lines(
                "Age of what is not judged",
                "Below a second while all is well; it grows while processors are away or too slow.",
                Query(expr=f"max({lag})", legend="oldest record"),
                unit="s",
                empty=_SILENT,
                min=0,
            ),
            lines(
                "Records",
                "Taken and published, a second.",
                Query(expr=f"sum(rate({name(names.METRIC_PIPELINE_RECORDS_IN)}{_WINDOW}))", legend="in"),
                Query(expr=f"sum(rate({name(names.METRIC_PIPELINE_RECORDS_OUT)}{_WINDOW}))", legend="out"),
                unit="cps",
                empty=_SILENT,
                min=0,
            ),
            lines(
                "Unreadable, and dropped on the way to people",
                "Each has a reason. What is dropped for people changes no verdict.",
                Query(expr=f"sum(increase({name(names.METRIC_PIPELINE_DECODE_ERRORS)}{_WINDOW}))", legend="unreadable"),
                Query(expr=f"sum(increase({letters}{_WINDOW}))", legend="set aside"),
                Query(
                    expr=f"sum by ({reason}) (increase({name(names.METRIC_PIPELINE_DROPS)}{_WINDOW}))",
                    legend=f"{{{{{reason}}}}}",
                ),
                unit="short",
                empty=_SILENT,
                min=0,
            ),
            lines(
                "State, and timers that are late",
                "Rows that the operators keep: it follows the number of ranks, and does not grow with time.",
                Query(expr=f"sum({name(names.METRIC_PIPELINE_STATE_ROWS)})", legend="rows"),
                Query(expr=f"max({name(names.METRIC_PIPELINE_TIMERS_LATE)})", legend="late by, s"),
                unit="short",
                empty=_SILENT,
                min=0,
            ),
            section("Agents"),
            lines(
                "Sent",
                "Bytes a second that agents hand out, before compression.",
                Query(expr=f"sum(rate({name(names.METRIC_AGENT_SENT)}{_WINDOW}))", legend="all agents"),
                unit="Bps",
                empty=_NO_AGENT,
                min=0,
            ),
            lines(
                "Waits on agents' disks",
                "It grows while Kafka is away, and shrinks when it is back.",
                Query(expr=f"topk(10, {name(names.METRIC_AGENT_SPOOL)})", legend=f"{{{{{NODE_LABEL}}}}}"),
                unit="bytes",
                empty=_NO_AGENT,
                min=0,
            ),
            lines(
                "Dropped by agents, by reason",
                "Everything that was given up, counted.",
                Query(
                    expr=f"sum by ({reason}) (increase({name(names.METRIC_AGENT_DROPS)}{_WINDOW}))",
                    legend=f"{{{{{reason}}}}}",
                ),
                unit="short",
                empty="nothing was dropped",
                min=0,
            ),
            bars(
                "Collectors that fail",
                "Failures in the last hour, by collector, over all nodes.",
                Query(
                    expr=f"topk(10, sum by ({collector}) (increase({name('whichrank.collector.failures')}[1h]))) > 0",
                    legend=f"{{{{{collector}}}}}",
                    instant=True,
                ),
                unit="short",
                empty="none fails",
            ),
            section("Was it right?"),
            events(
                "What people said",
                "Incidents that somebody has labelled (`whichrank incidents label`), right or wrong: the precision of"
                " whichrank is counted from them.",
                LogQuery(
                    logsql=f'{OF_AN_INCIDENT} {names.INCIDENT_DOCUMENT}:`"label":`'
                    f" | unpack_json from {names.INCIDENT_DOCUMENT}"
                    " fields (kind, id, label.wrong, label.cause, label.by) | filter label.cause:*"
                    ' | format if (label.wrong:="true") "wrong" as verdict'
                    ' | format if (label.wrong:!="true") "right" as verdict'
                    ' | format "<kind> <id>: <verdict>, <label.cause> (by <label.by>)" | fields _time, _msg',
                    logql=f'{{service_name=~".+"}} | {INCIDENT_LABEL} != "" '
                    '| whichrank_incident_document =~ `.*"label":.*` '
                    "| line_format `{{ $d := fromJson .whichrank_incident_document }}{{ $d.kind }} {{ $d.id }}: "
                    "{{ if $d.label.wrong }}wrong{{ else }}right{{ end }}, "
                    "{{ $d.label.cause }} (by {{ $d.label.by }})`",
                ),
                logs,
                empty="nobody has labelled an incident in this time",
            ),
        ],
    )
