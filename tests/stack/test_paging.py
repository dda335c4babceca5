"""The profile ``paging`` as compose has it: ``whichrank notify``, a real Alertmanager, and Prometheus beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.incidents.documents import document
from tests.ports import free_ports
from tests.stack.parts.compose import REQUIRED, service
from tests.stack.parts.go_programs import ALERTMANAGER, built
from tests.stack.parts.kafka import PLAIN, Kafka
from tests.stack.parts.placing import DEPLOY, place, replace
from tests.stack.parts.service import Service, answers_http, eventually, get_json
from tests.stack.parts.stores import Prometheus
from tests.stack.test_process_command import WHICHRANK, Bench
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Incident
from whichrank.telemetry.topics import TOPIC_INCIDENTS

ID = "00000000000071f0"


class Alertmanager:
    """The real one, with the configuration that compose mounts."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        definition = service("alertmanager")
        (config,) = definition.binds.values()
        folder.mkdir()
        words = {"/etc/alertmanager/alertmanager.yml": str(config), "=/alertmanager": f"={folder / 'data'}"}
        self.service = Service(
            "Alertmanager",
            [
                built(ALERTMANAGER),
                *(replace(word, words) for word in definition.command),
                f"--web.listen-address={self.address}",
            ],
            log=folder / "alertmanager.log",
            ready=lambda: answers_http(f"http://{self.address}/-/ready"),
        )

    def alerts(self) -> list[dict[str, Any]]:
        """Those that have not ended."""
        return list(get_json(f"http://{self.address}/api/v2/alerts?active=true"))


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[Alertmanager]:
    made = Alertmanager(tmp_path / "alertmanager")
    try:
        made.service.start()
        yield made
    finally:
        made.service.kill()


def test_an_incident_is_an_alert_as_long_as_it_lasts(
    alertmanager: Alertmanager, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    bench = Bench(kafka, topic_prefix, tmp_path)
    assert bench.command("topics", "--partitions", "2").returncode == 0
    definition = service("notify", PLAIN.overlays)
    (settings,) = definition.binds.values()
    place(tmp_path / "config", {"whichrank.toml": settings}, {"alertmanager:9093": alertmanager.address})
    environment = {
        **bench.environment,
        **{name: value for name, value in definition.environment.items() if not name.startswith("WHICHRANK_KAFKA")},
        "WHICHRANK_CONFIG": str(tmp_path / "config/whichrank.toml"),
        "WHICHRANK_NOTIFY_STATE": str(tmp_path / "state"),
        "WHICHRANK_NOTIFY_HEALTH": bench.health,
    }
    notify = Service(
        "notify",
        [WHICHRANK, *definition.command],
        log=tmp_path / "notify.log",
        ready=lambda: bench.ask("/readyz")[0] == 200,
        environment=environment,
    )
    try:
        notify.start()
        now = time.time()
        opened = document(ID, 1, times={"onset": now, "detected": now})
        bench.send(TOPIC_INCIDENTS, encode_payloads([Incident(document=opened)]), key=ID)
        eventually(lambda: len(alertmanager.alerts()) == 1, what=f"an alert; {notify.output()}", timeout_s=60)
        (alert,) = alertmanager.alerts()
        assert {name: alert["labels"][name] for name in ("alertname", "incident", "severity", "bucket")} == {
            "alertname": "WhichrankIncident",
            "incident": ID,
            "severity": "page",
            "bucket": "communication_hang",
        }
        assert [receiver["name"] for receiver in alert["receivers"]] == ["people"]
        over = document(
            ID, 2, change="resolved", state="resolved", times={"onset": now, "detected": now, "resolved": now + 1}
        )
        bench.send(TOPIC_INCIDENTS, encode_payloads([Incident(document=over)]), key=ID)
        eventually(lambda: not alertmanager.alerts(), what=f"its end; {notify.output()}", timeout_s=60)
    finally:
        notify.kill()


def test_prometheus_knows_the_alertmanager_and_watches_what_pages(alertmanager: Alertmanager, tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    places = {"alertmanager:9093": alertmanager.address, "notify:8463": f"127.0.0.1:{nobody}"}
    prometheus = Prometheus(
        tmp_path / "prometheus", places, values={**REQUIRED, "PAGING": str(DEPLOY / "prometheus/paging")}
    )
    try:
        prometheus.service.start()
        api = f"http://{prometheus.address}/api/v1"
        eventually(
            lambda: (
                [each["url"] for each in get_json(f"{api}/alertmanagers")["data"]["activeAlertmanagers"]]
                == [f"http://{alertmanager.address}/api/v2/alerts"]
            ),
            what="the Alertmanager is known",
            timeout_s=30,
        )
        eventually(
            lambda: (
                {job: value for job, value in _up(prometheus).items() if job in ("notify", "alertmanager")}
                == {"notify": "0", "alertmanager": "1"}
            ),
            what=f"both are watched; {_up(prometheus)}",
            timeout_s=60,
        )
    finally:
        prometheus.service.kill()


def _up(prometheus: Prometheus) -> dict[str, str]:
    return {result["metric"]["job"]: result["value"][1] for result in prometheus.query("up")}
