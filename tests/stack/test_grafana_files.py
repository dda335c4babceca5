"""Grafana's provisioning and Tempo's configuration, by file only: neither can be had here (no image registry)."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.stack.parts.compose import services
from tests.stack.parts.placing import DEPLOY, REPOSITORY

PROVISIONING = DEPLOY / "grafana" / "provisioning"
DASHBOARDS = REPOSITORY / "grafana" / "dashboards"
#: Where each listens inside of the network, by its own configuration or command.
LISTENS = {"prometheus": 9090, "loki": 3100, "tempo": 3200}


def read(path: str) -> dict[str, Any]:
    content = yaml.safe_load((PROVISIONING / path).read_text())
    assert content["apiVersion"] == 1
    return dict(content)


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


def test_the_dashboards_are_where_compose_puts_them_and_where_the_provider_looks() -> None:
    (provider,) = read("dashboards/whichrank.yaml")["providers"]
    grafana = services()["grafana"]
    assert grafana.binds[provider["options"]["path"]] == DASHBOARDS
    assert grafana.binds["/etc/grafana/provisioning"] == PROVISIONING
    home = grafana.environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DASHBOARDS / home.removeprefix(provider["options"]["path"] + "/")).is_file()


def test_every_data_source_of_dashboards_and_rules_is_provisioned() -> None:
    text = "".join(path.read_text() for path in DASHBOARDS.glob("*.json"))
    assert set(re.findall(r'"uid": "([a-z]+)"', text)) <= source_uids()
    rules = [rule for group in read("alerting/whichrank.yaml")["groups"] for rule in group["rules"]]
    assert {query["datasourceUid"] for rule in rules for query in rule["data"]} == {"prometheus", "__expr__"}


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
