"""Each rule's fault as series, with all other series healthy: what fires, from when, what must not, and the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.stack.parts.promtool import STEP_S, Expected
from whichrank.grafana.elements.dashboard_words import ACTIVE
from whichrank.grafana.elements.metric_names import prometheus_name
from whichrank.grafana.rules import RULES, prometheus_rules
from whichrank.telemetry import attributes as names

#: The fault is there from 5 to 15 minutes after the begin; it ends 10 minutes before the last point.
BEGINS, LASTS, AFTER = 20, 40, 60
BEGINS_S, ENDS_S = BEGINS * STEP_S, (BEGINS + LASTS) * STEP_S
#: Looked at: before, when it must fire at the latest, just before its end, and when it must be over at the latest.
BEFORE_S, FIRES_S, LAST_S = BEGINS_S - 30, BEGINS_S + 120, ENDS_S - 30
#: increase(...[10m]) sees what happened for ten minutes more.
OVER_S = ENDS_S + 780

_LAG = prometheus_name(names.METRIC_PIPELINE_LAG)
_LETTERS = prometheus_name(names.METRIC_PIPELINE_DEAD_LETTERS)
_LOST, _READ = prometheus_name(names.METRIC_AGENT_EVENTS_LOST), prometheus_name(names.METRIC_AGENT_EVENTS_READ)
_SPOOL = prometheus_name(names.METRIC_AGENT_SPOOL)
_FAILING, _PAGED = "whichrank_notify_failing_seconds", '{instance="notify:8463", receiver="oncall"}'
_INTAKE_DROPS = "otelcol_exporter_enqueue_failed_metric_points_total"
_ALL = BEGINS + LASTS + AFTER
_UP = 'up{job="whichrank-process", instance="one"}'
_NODE = '{whichrank_job_id="pretrain", whichrank_node_id="node-02"}'

HEALTHY: Mapping[str, str] = {
    _LAG: f"0.4x{_ALL}",
    _UP: f"1x{_ALL}",
    _LETTERS: f"3x{_ALL}",
    f"{_READ}{_NODE}": f"0+60000x{_ALL}",
    f"{_LOST}{_NODE}": f"0+3x{_ALL}",
    f"{_SPOOL}{_NODE}": f"900000x{_ALL}",
    f"{_FAILING}{_PAGED}": f"0x{_ALL}",
    _INTAKE_DROPS: f"3x{_ALL}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """series: what differs from HEALTHY. alert: the one that must fire; labels and annotations beyond its own."""

    name: str
    alert: str
    series: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def all_series(self) -> dict[str, str]:
        return {**HEALTHY, **self.series}

    def expected(self) -> list[Expected]:
        """Of every rule at every time; all but this one are quiet throughout."""
        found = []
        for rule in RULES:
            for at_s in (BEFORE_S, FIRES_S, LAST_S, OVER_S):
                fires = rule.title == self.alert and at_s in (FIRES_S, LAST_S)
                found.append(Expected(at_s=at_s, alert=rule.title, fires=[self._alert()] if fires else ()))
        return found

    def _alert(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        rule = _rule(self.alert)
        return {**rule["labels"], **self.labels}, {**rule["annotations"], **self.annotations}


def faults() -> list[Fault]:
    return [
        _incident("an incident that pages", "WhichrankIncident", "page"),
        _incident("an incident that can wait", "WhichrankTicket", "ticket"),
        _incident("its suspect is revised", "WhichrankIncident", "page", revised=True),
        _incident("its gauge is away for 6 minutes", "WhichrankIncident", "page", gap=24),
        _own("processors tell nothing", "WhichrankSilent", {_LAG: _while("_", "0.4")}),
        _own("processors are late", "WhichrankLate", {_LAG: _while("45", "0.4")}),
        _own("a part is down", "WhichrankPartDown", {_UP: _while("0", "1")}, instance="one", job="whichrank-process"),
        _own("records nobody can read", "WhichrankUnreadable", {_LETTERS: f"3x{BEGINS} 4+1x{LASTS} 43x{AFTER}"}),
        _own(
            "agents lose events",
            "WhichrankEventsLost",
            {f"{_LOST}{_NODE}": f"0+3x{BEGINS} 60+6000x{LASTS} 240100+3x{AFTER}"},
        ),
        _own("agents keep what Kafka refuses", "WhichrankAgentsWait", {f"{_SPOOL}{_NODE}": _while("90000000", "0")}),
        _own(
            "a receiver of pages is away",
            "WhichrankPagesFail",
            {f"{_FAILING}{_PAGED}": _while("300", "0")},
            instance="notify:8463",
            receiver="oncall",
        ),
        _own("the intake drops", "WhichrankIntakeDrops", {_INTAKE_DROPS: f"3x{BEGINS} 4+1x{LASTS} 43x{AFTER}"}),
    ]


def _while(value: str, else_value: str) -> str:
    return f"{else_value}x{BEGINS - 1} {value}x{LASTS - 1} {else_value}x{AFTER}"


def _own(name: str, alert: str, series: Mapping[str, str], **labels: str) -> Fault:
    return Fault(name=name, alert=alert, series=series, labels=labels, annotations={})


def _incident(name: str, alert: str, severity: str, *, revised: bool = False, gap: int = 0) -> Fault:
    identity = {names.INCIDENT_ID: "1f0c", names.INCIDENT_SEVERITY: severity, names.INCIDENT_BUCKET: "immediate_crash"}
    first = {**identity, names.JOB_ID: "pretrain", names.INCIDENT_KIND: "rank_died", **_suspect("13", "node-02")}
    first_part = LASTS // 5
    if revised:
        # The first suspect is looked at before the revision, the second after it: two times, two sets of annotations.
        second = {**first, **_suspect("7", "node-01")}
        series = {
            _active(first): f"_x{BEGINS - 1} 1x3 0x{LASTS + AFTER}",
            _active(second): f"_x{BEGINS + 3} 1x{LASTS - 5} 0x{AFTER}",
        }
        last = second
    else:
        series = {_active(first): f"_x{BEGINS - 1} 1x{first_part - 1} " + (f"_x{gap - 1} " if gap else "")
                  + f"1x{LASTS - first_part - gap - 1} 0x{AFTER}"}  # fmt: skip
        last = first
    return Fault(
        name=name,
        alert=alert,
        series=series,
        labels={_label(key): value for key, value in identity.items()},
        annotations={
            "kind": last[names.INCIDENT_KIND],
            "job": last[names.JOB_ID],
            "runbook": f"docs/runbooks/{last[names.INCIDENT_KIND]}.md",
            "suspect_rank": last[names.SUSPECT_RANK],
            "suspect_node": last[names.SUSPECT_NODE],
            "dashboard": "/d/whichrank-incident?var-incident=1f0c",
        },
    )


def _suspect(rank: str, node: str) -> dict[str, str]:
    return {names.SUSPECT_RANK: rank, names.SUSPECT_NODE: node}


def _active(attributes: Mapping[str, str]) -> str:
    return ACTIVE + "{" + ", ".join(f'{_label(key)}="{value}"' for key, value in attributes.items()) + "}"


def _label(attribute: str) -> str:
    return attribute.replace(".", "_")


def _rule(title: str) -> dict[str, Any]:
    return next(rule for group in prometheus_rules()["groups"] for rule in group["rules"] if rule["alert"] == title)
