"""What is paged from Prometheus or Grafana: one table of rules, from which both rule files are made. Pure.

Labels of an alert carry the incident's id, severity and bucket only: a revised suspect is no second page. Kind, suspect
and job are annotations, which Prometheus looks up when it tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..telemetry import attributes as names
from .elements.dashboard_words import (
    ACTIVE,
    BUCKET_LABEL,
    INCIDENT,
    INCIDENT_LABEL,
    JOB_LABEL,
    KIND_LABEL,
    PIPELINE,
    SEVERITY_LABEL,
    SUSPECT_NODE_LABEL,
    SUSPECT_RANK_LABEL,
)
from .elements.metric_names import prometheus_name

FOLDER, GROUP, SELF_GROUP = "whichrank", "whichrank-incidents", "whichrank-itself"
_LAG = prometheus_name(names.METRIC_PIPELINE_LAG)
_LETTERS = prometheus_name(names.METRIC_PIPELINE_DEAD_LETTERS)
_LOST, _READ = prometheus_name(names.METRIC_AGENT_EVENTS_LOST), prometheus_name(names.METRIC_AGENT_EVENTS_READ)
#: The Collector's own.
_INTAKE_DROPS = "otelcol_exporter_enqueue_failed_metric_points_total"
_SPOOL = prometheus_name(names.METRIC_AGENT_SPOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """expr: has a result while it is so. lasts_s: before it is told. absence: whether no answer is the alert itself.

    of_incident: one alert for each incident. runbook: a file of docs/runbooks; of an incident its kind has one.
    """

    uid: str
    title: str
    expr: str
    summary: str
    description: str
    severity: str
    runbook: str
    dashboard: str = PIPELINE
    lasts_s: int = 0
    absence: bool = False
    of_incident: bool = False


def _incidents(severity: str) -> str:
    labels = f"{INCIDENT_LABEL}, {SEVERITY_LABEL}, {BUCKET_LABEL}"
    return f'max by ({labels}) ({ACTIVE}{{{SEVERITY_LABEL}="{severity}"}}) > 0'


RULES: Sequence[AlertRule] = (
    AlertRule(
        uid="whichrank-incident-page",
        title="WhichrankIncident",
        expr=_incidents("page"),
        summary="A training job stands still or has died",
        description="It is open until the job makes steps again.",
        severity="page",
        runbook="incidents",
        dashboard=INCIDENT,
        of_incident=True,
    ),
    AlertRule(
        uid="whichrank-incident-ticket",
        title="WhichrankTicket",
        expr=_incidents("ticket"),
        summary="A training job is slower than it was, or something about it is odd",
        description="It can wait until morning.",
        severity="ticket",
        runbook="incidents",
        dashboard=INCIDENT,
        of_incident=True,
    ),
    AlertRule(
        uid="whichrank-silent",
        title="WhichrankSilent",
        # What is pushed has no end that Prometheus is told of: absent() alone would answer five minutes late.
        expr=f"absent_over_time({_LAG}[1m])",
        summary="whichrank's processors tell nothing: no incident would be seen",
        description="Nothing has come from them for a minute: they, Kafka, the Collector or the receiver is down.",
        severity="page",
        runbook="pipeline-silent",
        lasts_s=30,
        absence=True,
    ),
    AlertRule(
        uid="whichrank-late",
        title="WhichrankLate",
        expr=f"max({_LAG}) > 30",
        summary="whichrank judges what is more than 30 s old",
        description="Incidents are told late. The processors are too slow, or stand still.",
        severity="page",
        runbook="pipeline-late",
        lasts_s=60,
    ),
    AlertRule(
        uid="whichrank-part-down",
        title="WhichrankPartDown",
        expr="min by (job, instance) (up) == 0",
        summary="A part of the pipeline does not answer",
        description="Prometheus cannot scrape it.",
        severity="ticket",
        runbook="pipeline-part-down",
        lasts_s=60,
    ),
    AlertRule(
        uid="whichrank-unreadable",
        title="WhichrankUnreadable",
        expr=f"sum(increase({_LETTERS}[10m])) > 0",
        summary="Records were set aside because nobody could read them",
        description="`whichrank dlq list` says which, and why.",
        severity="ticket",
        runbook="dead-letters",
    ),
    AlertRule(
        uid="whichrank-events-lost",
        title="WhichrankEventsLost",
        expr=f"sum(increase({_LOST}[10m])) / sum(increase({_READ}[10m])) > 0.01",
        summary="Agents lose more than 1 % of what ranks write",
        description="Agents come by too seldom: their processors are taken by others, or too little.",
        severity="ticket",
        runbook="events-lost",
        lasts_s=60,
    ),
    AlertRule(
        uid="whichrank-agents-wait",
        title="WhichrankAgentsWait",
        expr=f"count({_SPOOL} > 64e6) > 0",
        summary="Agents keep on disk what they cannot hand to Kafka",
        description="More than 64 MB wait on some nodes: Kafka is away, or refuses them.",
        severity="ticket",
        runbook="agents-wait",
        lasts_s=60,
    ),
    AlertRule(
        uid="whichrank-pages-fail",
        title="WhichrankPagesFail",
        expr="max by (instance, receiver) (whichrank_notify_failing_seconds) > 120",
        summary="whichrank notify cannot reach a receiver of pages",
        description="Tries have failed for two minutes; what it was to be told waits.",
        severity="ticket",
        runbook="pages-fail",
        lasts_s=60,
    ),
    AlertRule(
        uid="whichrank-intake-drops",
        title="WhichrankIntakeDrops",
        expr=f"sum(increase({_INTAKE_DROPS}[10m])) > 0",
        summary="Telemetry of exporters and senders was dropped on its way into Kafka",
        description="The intake's queue is full: Kafka is away or slow, or more comes than was planned for.",
        severity="ticket",
        runbook="intake-drops",
    ),
)


def prometheus_rules() -> dict[str, Any]:
    """The alert rules as a rule file of Prometheus."""
    return {
        "groups": [
            {
                "name": GROUP if of_incident else SELF_GROUP,
                "interval": "10s",
                "rules": [_for_prometheus(rule) for rule in RULES if rule.of_incident is of_incident],
            }
            for of_incident in (True, False)
        ]
    }


def _for_prometheus(rule: AlertRule) -> dict[str, Any]:
    made: dict[str, Any] = {"alert": rule.title, "expr": rule.expr}
    if rule.lasts_s:
        made["for"] = f"{rule.lasts_s}s"
    if rule.of_incident:
        # A gauge that stops for a moment (a restart of the processors) is not the end of an incident.
        made["keep_firing_for"] = "2m"
    made["labels"] = {"severity": rule.severity}
    made["annotations"] = {"summary": rule.summary, "description": rule.description, "runbook": _runbook(rule)}
    if rule.of_incident:
        made["annotations"] |= {
            "runbook": f"docs/runbooks/{_looked_up(KIND_LABEL)}.md",
            "kind": _looked_up(KIND_LABEL),
            "job": _looked_up(JOB_LABEL),
            "suspect_rank": _looked_up(SUSPECT_RANK_LABEL),
            "suspect_node": _looked_up(SUSPECT_NODE_LABEL),
            "dashboard": f"/d/{INCIDENT}?var-incident={{{{ $labels.{INCIDENT_LABEL} }}}}",
        }
    return made


def _looked_up(label: str) -> str:
    """The label of the newest series of the incident, when the alert is told."""
    asked = f'{ACTIVE}{{{INCIDENT_LABEL}=\\"%s\\"}} > 0'
    return (
        f'{{{{ with printf "{asked}" $labels.{INCIDENT_LABEL} | query }}}}'
        f'{{{{ . | first | label "{label}" }}}}{{{{ end }}}}'
    )


def grafana_rules() -> dict[str, Any]:
    """The alert rules as provisioning of Grafana's own alerting, with the same expressions."""
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": GROUP if of_incident else SELF_GROUP,
                "folder": FOLDER,
                "interval": "10s",
                "rules": [_for_grafana(rule) for rule in RULES if rule.of_incident is of_incident],
            }
            for of_incident in (True, False)
        ],
    }


def _for_grafana(rule: AlertRule) -> dict[str, Any]:
    """In labels a literal dollar is doubled; annotations only expand the form with braces (shared facts, 3.2)."""
    annotations = {"summary": rule.summary, "description": rule.description, "runbook": _runbook(rule)}
    if rule.of_incident:
        annotations["incident"] = f"{{{{ $labels.{INCIDENT_LABEL} }}}} ({{{{ $labels.{BUCKET_LABEL} }}}})"
        annotations["page"] = f"/d/{INCIDENT}?var-incident={{{{ $labels.{INCIDENT_LABEL} }}}}"
    made: dict[str, Any] = {
        "uid": rule.uid,
        "title": rule.title,
        "condition": "C",
        "for": f"{rule.lasts_s}s",
        "noDataState": "OK",
        # Prometheus that does not answer is itself a dead pipeline; for incidents one such page is enough.
        "execErrState": "Alerting" if rule.absence else "OK" if rule.of_incident else "Error",
        "dashboardUid": rule.dashboard,
        "panelId": 1,
        "labels": {"severity": rule.severity},
        "annotations": annotations,
        "data": [
            {
                "refId": "A",
                "datasourceUid": "prometheus",
                "relativeTimeRange": {"from": 600, "to": 0},
                "model": {"refId": "A", "instant": True, "expr": rule.expr},
            },
            {
                "refId": "C",
                "datasourceUid": "__expr__",
                "model": {
                    "refId": "C",
                    "type": "threshold",
                    "expression": "A",
                    "conditions": [{"evaluator": {"type": "gt", "params": [-1]}}],
                },
            },
        ],
    }
    if rule.of_incident:
        made |= {"keepFiringFor": "2m", "missing_series_evals_to_resolve": 6}
    return made


def _runbook(rule: AlertRule) -> str:
    return f"docs/runbooks/{rule.runbook}.md"
