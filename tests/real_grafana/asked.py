"""What is asked of a Grafana through its API, as its own pages ask it: sources, dashboards, panels, rules, alerts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.real_grafana.cluster import HOT_NODE
from tests.real_grafana.program import Grafana, Unanswered
from whichrank.grafana.boards import all_dashboards
from whichrank.grafana.desired import SOURCES
from whichrank.grafana.elements.dashboard_words import BUCKET_LABEL, INCIDENT_LABEL, SEVERITY_LABEL
from whichrank.grafana.rules import FOLDER, RULES
from whichrank.telemetry.incident import Document

#: What is empty where all is well: nobody has labelled an incident.
EMPTY_WHERE_ALL_IS_WELL = {("whichrank-pipeline", "What people said")}
_WAIT_S, _RULES_S = 300.0, 90.0
_HEALTHY = "OK"
PLUG_IN = SOURCES["victorialogs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Of one panel: trouble "" where every query answered. rows: of all its queries."""

    board: str
    panel: str
    trouble: str
    rows: int


def health(grafana: Grafana, uid: str) -> str:
    """What is wrong, or ""."""
    try:
        told = grafana.ask(f"/api/datasources/uid/{uid}/health")
    except Unanswered as error:
        return str(error)
    return "" if told.get("status") == _HEALTHY else str(told)[:200]


def has_plug_in(grafana: Grafana) -> bool:
    """Whether it knows the source that panels of events ask."""
    try:
        grafana.ask(f"/api/plugins/{PLUG_IN}/settings")
    except Unanswered:
        return False
    return True


def dashboards(grafana: Grafana) -> Iterator[tuple[str, str]]:
    """Each of ours, and what is wrong with it there: not in our folder, or other panels than the file has."""
    for wanted in (board.build() for board in all_dashboards()):
        try:
            there = grafana.ask(f"/api/dashboards/uid/{wanted['uid']}")
        except Unanswered as error:
            yield wanted["uid"], str(error)
            continue
        titles = [(panel["type"], panel["title"]) for panel in there["dashboard"]["panels"]]
        same = titles == [(panel["type"], panel["title"]) for panel in wanted["panels"]]
        wrong = "" if there["meta"]["folderTitle"] == FOLDER else f"lies in {there['meta']['folderTitle']}"
        yield wanted["uid"], wrong or ("" if same else "has other panels")


def panels(grafana: Grafana, incident: str) -> Iterator[Answer]:
    """Every panel of every dashboard that is there, but those whose plug-in is not. incident: the one that is shown."""
    unknown = "" if has_plug_in(grafana) else PLUG_IN
    given = {"job": ".+", "node": HOT_NODE, "incident": incident}
    for board in all_dashboards():
        there = grafana.ask(f"/api/dashboards/uid/{board.uid}")["dashboard"]
        for panel in there["panels"]:
            if not panel.get("targets") or panel["datasource"]["type"] == unknown:
                continue
            troubles, rows = [], 0
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in given.items():
                    expression = expression.replace(f"${name}", value).replace(f'="{value}"', f'=~"{value}"')
                trouble, count = _query(grafana, {**target, "expr": expression}, there["time"]["from"])
                troubles += [trouble] if trouble else []
                rows += count
            yield Answer(board=board.uid, panel=panel["title"], trouble="; ".join(troubles), rows=rows)


def _query(grafana: Grafana, target: Mapping[str, Any], since: str) -> tuple[str, int]:
    """(what is wrong, number of values)."""
    body = {"queries": [{**target, "intervalMs": 15_000, "maxDataPoints": 600}], "from": since, "to": "now"}
    try:
        answer = grafana.ask("/api/ds/query", body)
    except Unanswered as error:
        return str(error), 0
    found = answer["results"][target["refId"]]
    values = sum(len(column) for frame in found.get("frames", ()) for column in frame["data"]["values"][-1:])
    return str(found.get("error") or ""), values


def rules(grafana: Grafana) -> dict[str, str]:
    """By title of each of our rules: "" once it was evaluated without an error, else what is wrong."""
    groups = grafana.ask("/api/prometheus/grafana/api/v1/rules")["data"]["groups"]
    there = {rule["name"]: rule for group in groups if group["file"] == FOLDER for rule in group["rules"]}
    return {rule.title: _wrong_with(there.get(rule.title)) for rule in RULES}


def _wrong_with(rule: Mapping[str, Any] | None) -> str:
    if rule is None:
        return "is not there"
    if rule.get("lastError") or rule["health"] != "ok":
        return f"{rule['health']}: {rule.get('lastError', '')}"
    return "" if not rule["lastEvaluation"].startswith("0001") else "was not evaluated"


def wait_for_rules(grafana: Grafana) -> dict[str, str]:
    deadline = time.monotonic() + _RULES_S
    while any((found := rules(grafana)).values()) and time.monotonic() < deadline:
        time.sleep(2.0)
    return found


def firing(grafana: Grafana, incident: str) -> list[dict[str, Any]]:
    """Alerts of this incident, as the alertmanager inside Grafana has them: labels without Grafana's private ones."""
    found = grafana.ask("/api/alertmanager/grafana/api/v2/alerts")
    return [
        {**each, "labels": {name: value for name, value in each["labels"].items() if not name.startswith("__")}}
        for each in found
        if each["labels"].get(INCIDENT_LABEL) == incident and each["status"]["state"] != "suppressed"
    ]


def wait_for_alert(grafana: Grafana, incident: str, *, fires: bool) -> tuple[float, list[dict[str, Any]]]:
    """Seconds until it does (or does no longer), and what was there at the end."""
    begin = time.monotonic()
    while bool(found := firing(grafana, incident)) is not fires and time.monotonic() < begin + _WAIT_S:
        time.sleep(1.0)
    return time.monotonic() - begin, found


def labels_of(document: Document) -> dict[str, str]:
    """Of its alert, all of them."""
    return {
        "alertname": "WhichrankIncident",
        "grafana_folder": FOLDER,
        "severity": "page",
        INCIDENT_LABEL: document["id"],
        SEVERITY_LABEL: document["severity"],
        BUCKET_LABEL: document["bucket"],
    }


def annotations_of(grafana: Grafana, incident: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(grafana.raw("GET", f"/api/annotations?tags=incident:{incident}"))
    return found
