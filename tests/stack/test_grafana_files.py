"""Grafana's provisioning and Tempo's configuration, by file only: neither can be had here (no image registry)."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import yaml

from tests.stack.parts.compose import services
from tests.stack.parts.placing import DEPLOY

GRAFANA = DEPLOY / "grafana"
PROVISIONING = GRAFANA / "provisioning"
#: Where each listens inside of the network, by its own configuration or command.
LISTENS = {"prometheus": 9090, "loki": 3100, "tempo": 3200}


def read(path: str) -> dict[str, Any]:
    content = yaml.safe_load((PROVISIONING / path).read_text())
    assert content["apiVersion"] == 1
    return dict(content)


def dashboard() -> dict[str, Any]:
    return dict(json.loads((GRAFANA / "dashboards" / "whichrank-overview.json").read_text()))


def source_uids() -> set[str]:
    return {source["uid"] for source in read("datasources/whichrank.yaml")["datasources"]}


def test_the_data_sources_are_the_services_of_compose() -> None:
    sources = read("datasources/whichrank.yaml")["datasources"]
    assert {source["url"] for source in sources} == {f"http://{name}:{port}" for name, port in LISTENS.items()}
    assert set(LISTENS) <= set(services())
    assert [source["uid"] for source in sources if source.get("isDefault")] == ["prometheus"]
    # An environment variable would be filled in for a single dollar.
    text = (PROVISIONING / "datasources/whichrank.yaml").read_text()
    assert re.findall(r"(?<!\$)\$(?!\$)", text) == []


def test_the_dashboard_is_where_compose_puts_it_and_where_the_provider_looks() -> None:
    (provider,) = read("dashboards/whichrank.yaml")["providers"]
    grafana = services()["grafana"]
    assert grafana.binds[provider["options"]["path"]] == GRAFANA / "dashboards"
    assert grafana.binds["/etc/grafana/provisioning"] == PROVISIONING
    home = grafana.environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (GRAFANA / "dashboards" / home.removeprefix(provider["options"]["path"] + "/")).is_file()


def test_the_dashboard_is_classic_and_its_panels_do_not_overlap() -> None:
    content = dashboard()
    assert "id" not in content
    assert content["schemaVersion"] == 42
    panels = content["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_every_data_source_and_variable_of_the_dashboard_is_there() -> None:
    content = dashboard()
    used = {panel["datasource"]["uid"] for panel in content["panels"]}
    used |= {target["datasource"]["uid"] for panel in content["panels"] for target in panel["targets"]}
    assert used <= source_uids()
    variables = {variable["name"] for variable in content["templating"]["list"]}
    asked = set(re.findall(r"\$(\w+)", json.dumps(content["panels"]))) - {"__rate_interval"}
    assert asked <= variables


def test_the_alert_asks_what_is_there_and_leads_to_the_dashboard() -> None:
    (group,) = read("alerting/incidents.yaml")["groups"]
    (rule,) = group["rules"]
    assert rule["dashboardUid"] == dashboard()["uid"]
    assert rule["panelId"] in {panel["id"] for panel in dashboard()["panels"]}
    assert {query["datasourceUid"] for query in rule["data"]} <= source_uids() | {"__expr__"}
    assert rule["condition"] in {query["refId"] for query in rule["data"]}
    # One spelled in the other way is dropped silently.
    known = {
        *("uid", "title", "condition", "for", "keepFiringFor", "missing_series_evals_to_resolve", "noDataState"),
        *("execErrState", "dashboardUid", "panelId", "labels", "annotations", "data"),
    }
    assert set(rule) == known


def test_tempo_listens_where_the_collector_and_grafana_look() -> None:
    tempo = yaml.safe_load((DEPLOY / "tempo" / "tempo.yaml").read_text())
    collector = yaml.safe_load((DEPLOY / "collector" / "collector.yaml").read_text())
    assert tempo["server"]["http_listen_port"] == LISTENS["tempo"]
    endpoint = tempo["distributor"]["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert endpoint == "0.0.0.0:4318"
    assert collector["exporters"]["otlp_http/tempo"]["traces_endpoint"] == "http://tempo:4318/v1/traces"
    (volume,) = services()["tempo"].volumes
    kept = tempo["storage"]["trace"]
    assert all(kept[kind]["path"].startswith(volume + "/") for kind in ("wal", "local"))
