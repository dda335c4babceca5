"""The same rules for Prometheus and for Grafana, and what their alerts carry."""

from __future__ import annotations

from whichrank.grafana.boards import all_dashboards
from whichrank.grafana.rules import RULES, grafana_rules, prometheus_rules


def test_grafana_asks_what_prometheus_asks() -> None:
    of_prometheus = {r["alert"]: r["expr"] for group in prometheus_rules()["groups"] for r in group["rules"]}
    of_grafana = {
        r["title"]: r["data"][0]["model"]["expr"] for group in grafana_rules()["groups"] for r in group["rules"]
    }
    assert of_grafana == of_prometheus == {rule.title: rule.expr for rule in RULES}


def test_no_suspect_kind_or_job_is_a_label_of_an_alert() -> None:
    for rule in RULES:
        if rule.of_incident:
            by = rule.expr.partition("(")[2].partition(")")[0]
            assert {name.strip().rpartition("_")[2] for name in by.split(",")} == {"id", "severity", "bucket"}


def test_rules_lead_to_panels_that_there_are() -> None:
    panels = {each.uid: {panel["id"] for panel in each.build()["panels"]} for each in all_dashboards()}
    for group in grafana_rules()["groups"]:
        for rule in group["rules"]:
            assert rule["panelId"] in panels[rule["dashboardUid"]]


def test_only_a_silent_pipeline_and_what_stops_jobs_call_somebody() -> None:
    assert {rule.uid for rule in RULES if rule.severity == "page"} == {
        *("whichrank-incident-page", "whichrank-silent", "whichrank-late"),
    }


def test_grafana_s_keys_are_spelled_as_it_reads_them() -> None:
    """One spelled in the other way is dropped silently."""
    known = {
        *("uid", "title", "condition", "for", "keepFiringFor", "missing_series_evals_to_resolve", "noDataState"),
        *("execErrState", "dashboardUid", "panelId", "labels", "annotations", "data"),
    }
    for group in grafana_rules()["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= known
