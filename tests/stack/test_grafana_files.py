"""Grafana's provisioning, by file only: it cannot be had here (no image registry)."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.stack.parts.compose import OPEN, services
from tests.stack.parts.placing import DEPLOY, REPOSITORY
from whichrank.grafana.desired import SOURCES

PROVISIONING = DEPLOY / "grafana" / "provisioning"
DASHBOARDS = REPOSITORY / "grafana" / "dashboards"
#: Where each listens inside of the network, by its own configuration or command.
LISTENS = {"prometheus": 9090, "victorialogs": 9428, "jaeger": 16686}


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
    assert re.findall(r"(?<!\$)\$(?!\$|__file\{)", text) == []


def test_grafana_logs_in_to_prometheus_with_a_secret_that_it_has() -> None:
    (source,) = (each for each in read("datasources/whichrank.yaml")["datasources"] if each["uid"] == "prometheus")
    assert (source["basicAuth"], source["basicAuthUser"]) == (True, "whichrank")
    file = re.fullmatch(r"\$__file\{/run/secrets/(\w+)\}", source["secureJsonData"]["basicAuthPassword"])
    assert file is not None
    assert set(services()["grafana"].secrets) == {file[1]}
    assert file[1] in services()["prometheus"].secrets


def test_without_users_the_same_files_ask_for_nothing() -> None:
    opened = services([OPEN])["prometheus"].secrets
    assert yaml.safe_load(opened["prometheus_web"].read_text()) is None
    assert opened["prometheus_password"].read_bytes() == b""


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


def test_each_source_is_of_the_type_that_sync_makes() -> None:
    sources = read("datasources/whichrank.yaml")["datasources"]
    assert {source["uid"]: source["type"] for source in sources} == dict(SOURCES)


def test_grafana_installs_the_plug_in_of_the_source_that_it_does_not_bring() -> None:
    name, _, version = services()["grafana"].environment["GF_PLUGINS_PREINSTALL"].partition("@")
    assert name == SOURCES["victorialogs"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_links_lead_from_metrics_and_events_to_traces_and_back() -> None:
    sources = {source["uid"]: source["jsonData"] for source in read("datasources/whichrank.yaml")["datasources"]}
    (exemplar,) = sources["prometheus"]["exemplarTraceIdDestinations"]
    (trace,) = sources["victorialogs"]["derivedFields"]
    assert exemplar["datasourceUid"] == trace["datasourceUid"] == "jaeger"
    assert (trace["matcherType"], trace["matcherRegex"], trace["url"]) == ("label", "trace_id", "$${__value.raw}")
    back = sources["jaeger"]["tracesToLogsV2"]
    assert back["datasourceUid"] == "victorialogs"
    assert "whichrank.job.id" in back["query"]


def test_stores_listen_where_collector_grafana_and_prometheus_look() -> None:
    jaeger = yaml.safe_load((DEPLOY / "jaeger" / "jaeger.yaml").read_text())
    collector = yaml.safe_load((DEPLOY / "collector" / "collector.yaml").read_text())
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    asked = {target for each in scraped for part in each.get("static_configs", ()) for target in part["targets"]}
    assert jaeger["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == "0.0.0.0:4318"
    assert jaeger["extensions"]["jaeger_query"]["http"]["endpoint"] == f"0.0.0.0:{LISTENS['jaeger']}"
    assert collector["exporters"]["otlp_http/jaeger"]["traces_endpoint"] == "http://jaeger:4318/v1/traces"
    logs = f"http://victorialogs:{LISTENS['victorialogs']}/insert/opentelemetry/v1/logs"
    assert collector["exporters"]["otlp_http/victorialogs"]["logs_endpoint"] == logs
    assert f"-httpListenAddr=:{LISTENS['victorialogs']}" in services()["victorialogs"].command
    assert {f"victorialogs:{LISTENS['victorialogs']}", "jaeger:8888"} <= asked
    (volume,) = (place for place, name in services()["jaeger"].volumes.items() if name == "jaeger-data")
    kept = jaeger["extensions"]["jaeger_storage"]["backends"]["spans"]["badger"]
    assert all(place.startswith(volume + "/") for place in kept["directories"].values())
    assert kept["ephemeral"] is False


def test_what_victorialogs_sorts_by_cannot_be_there_twice() -> None:
    """Twice ends it (1.52.1): the processors before it leave one in a resource, and move a record's there."""
    collector = yaml.safe_load((DEPLOY / "collector" / "collector.yaml").read_text())
    streams = collector["exporters"]["otlp_http/victorialogs"]["headers"]["VL-Stream-Fields"].split(",")
    limiter, once, moved, left = collector["service"]["pipelines"]["logs"]["processors"]
    assert limiter == "memory_limiter"  # before all others, so that it can refuse
    keys = collector["processors"][moved]["keys"]
    assert set(streams) < set(keys)
    actions = collector["processors"][once]["attributes"]
    kept = {action["from_attribute"]: action["key"] for action in actions if action.get("from_attribute") in keys}
    assert list(kept) == keys
    assert [a["key"] for a in actions if a.get("from_attribute") in kept.values()] == keys
    actions += collector["processors"][left]["actions"]
    removed = [re.compile(action["pattern"]) for action in actions if action["action"] == "delete"]
    for pattern, names in zip(removed, (keys, kept.values(), keys), strict=True):
        assert all(pattern.fullmatch(name) for name in names)
