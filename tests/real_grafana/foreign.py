"""What somebody else keeps in a Grafana: one of each kind of object, made through its API, and read back as it is."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.real_grafana.program import Grafana
from whichrank.grafana.desired import SOURCES as TYPES

#: By kind, the uid of the data source that others made; our dashboards are to use them.
SOURCES = {kind: f"their-{kind}" for kind in TYPES}
_EDITABLE = {"X-Disable-Provenance": "true"}
#: All of it, by what it is: where it is read.
READ = {
    "folder": "/api/folders/theirs",
    "dashboard": "/api/dashboards/uid/their-board",
    "data source": "/api/datasources/uid/their-prometheus",
    "data source of logs": "/api/datasources/uid/their-victorialogs",
    "group of rules": "/api/v1/provisioning/folder/theirs/rule-groups/disks",
    "rule": "/api/v1/provisioning/alert-rules/their-rule",
    "contact points": "/api/v1/provisioning/contact-points",
    "policy tree": "/api/v1/provisioning/policies",
    "mute timings": "/api/v1/provisioning/mute-timings",
    "templates": "/api/v1/provisioning/templates",
    "annotation": "/api/annotations?tags=theirs",
    "organisation": "/api/org",
    "preferences": "/api/org/preferences",
}


def make(grafana: Grafana, urls: Mapping[str, str], password: str) -> None:
    """urls: of data sources, by kind. password: of Prometheus' user. Raises Unanswered."""
    for kind, uid in SOURCES.items():
        source = {"name": f"their {kind}", "uid": uid, "type": TYPES[kind], "access": "proxy", "url": urls[kind]}
        login = {"basicAuth": True, "basicAuthUser": "whichrank", "secureJsonData": {"basicAuthPassword": password}}
        grafana.ask("/api/datasources", {**source, **(login if kind == "prometheus" else {})})
    grafana.ask("/api/folders", {"uid": "theirs", "title": "Theirs"})
    panel = {"id": 1, "type": "timeseries", "title": "up", "gridPos": {"h": 8, "w": 12, "x": 0, "y": 0},
             "targets": [{"refId": "A", "expr": "up"}]}  # fmt: skip
    board = {"uid": "their-board", "title": "Disks", "tags": ["whichrank"], "panels": [panel], "schemaVersion": 37}
    grafana.ask("/api/dashboards/db", {"dashboard": board, "folderUid": "theirs", "overwrite": False})
    data = [
        {"refId": "A", "datasourceUid": "their-prometheus", "relativeTimeRange": {"from": 600, "to": 0},
         "model": {"refId": "A", "instant": True, "expr": "vector(0)"}},
        {"refId": "C", "datasourceUid": "__expr__", "relativeTimeRange": {"from": 600, "to": 0},
         "model": {"refId": "C", "type": "math", "expression": "$A > 1"}},
    ]  # fmt: skip
    rule = {
        "uid": "their-rule", "title": "Disk is full", "orgID": 1, "folderUID": "theirs", "ruleGroup": "disks",
        "condition": "C", "data": data, "noDataState": "OK", "execErrState": "OK", "for": "1m", "labels": {"team": "x"},
    }  # fmt: skip
    grafana.raw("POST", "/api/v1/provisioning/alert-rules", rule, _EDITABLE)
    point = {"name": "them", "type": "webhook", "settings": {"url": "http://127.0.0.1:9/"}}
    grafana.raw("POST", "/api/v1/provisioning/contact-points", point, _EDITABLE)
    timing = {"name": "nights", "time_intervals": [{"times": [{"start_time": "22:00", "end_time": "23:59"}]}]}
    grafana.raw("POST", "/api/v1/provisioning/mute-timings", timing, _EDITABLE)
    template = {"template": '{{ define "theirs" }}{{ len .Alerts }}{{ end }}'}
    grafana.raw("PUT", "/api/v1/provisioning/templates/theirs", template, _EDITABLE)
    # Nobody is called from here: all alerts go to a port on which nobody listens.
    tree = {"receiver": "them", "group_by": ["alertname"], "routes": [{"receiver": "them", "object_matchers": [["team", "=", "x"]]}]}  # fmt: skip  # noqa: E501
    grafana.raw("PUT", "/api/v1/provisioning/policies", tree, _EDITABLE)
    grafana.ask("/api/annotations", {"time": int(time.time() * 1000) - 60_000, "tags": ["theirs"], "text": "moved"})


def read(grafana: Grafana) -> dict[str, bytes]:
    """Byte for byte, as the API tells it. Raises Unanswered."""
    return {name: grafana.raw("GET", path) for name, path in READ.items()}
