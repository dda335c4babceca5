"""Prometheus, VictoriaLogs and Jaeger, started as docker-compose.yml has them, on ports and in folders of their own."""

from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.stack.parts.compose import OPEN, REQUIRED, service
from tests.stack.parts.go_programs import JAEGER, PROMETHEUS, VICTORIALOGS, VMAUTH, built
from tests.stack.parts.placing import DEPLOY, Placed, place, replace
from tests.stack.parts.service import NO_HEADERS, Service, answers_http, get_json

_LOOK_BACK_US = 3_600_000_000


class Prometheus:
    """It scrapes itself; of the other parts only what is told here (name in compose -> address).

    values: variables of compose. secrets: the folder of passwords, of a stack with users; without it nobody is asked
    for one (compose.open.yaml).
    ``headers``: of a request that it answers. ``config``: the folder that is /etc/prometheus.
    """

    def __init__(
        self,
        folder: Path,
        scraped: dict[str, str] | None = None,
        *,
        secrets: Path | None = None,
        values: Mapping[str, str] = REQUIRED,
    ) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.config = folder / "config"
        self.headers: Mapping[str, str] = NO_HEADERS
        definition = service("prometheus", [OPEN], values)
        if secrets is not None:
            subprocess.run([DEPLOY / "prometheus" / "passwords.sh", secrets], check=True, capture_output=True)
            definition = service("prometheus", values={**values, "WHICHRANK_SECRETS": str(secrets)})
            self.headers = login((secrets / "prometheus_password").read_text())
        held = {f"/run/secrets/{name}": str(path) for name, path in definition.secrets.items()}
        words = {"localhost:9090": self.address, **(scraped or {})}
        words |= {name: path for name, path in held.items() if name.endswith("_password")}
        sources = {Path(path).name: source for path, source in definition.binds.items()}
        self.placed: list[Placed] = place(self.config, sources, words)
        arguments = {
            "/etc/prometheus": str(self.config),
            "path=/prometheus": f"path={folder / 'data'}",
            "=:9090": f"={self.address}",
            **held,
        }
        self.service = Service(
            "Prometheus",
            [built(PROMETHEUS), *(replace(word, arguments) for word in definition.command)],
            log=folder / "prometheus.log",
            ready=lambda: answers_http(f"http://{self.address}/-/ready", self.headers),
        )

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The instant vector that answers: ``[{"metric": {...}, "value": [time, text]}]`` (or ``"histogram"``)."""
        return list(self.ask(f"query?{urllib.parse.urlencode({'query': promql})}")["result"])

    def ask(self, path: str) -> Any:
        """What its API has at this path below ``/api/v1/``. Raises OSError."""
        return get_json(f"http://{self.address}/api/v1/{path}", self.headers)["data"]


def login(password: str) -> dict[str, str]:
    """Headers of a request of Prometheus' user."""
    return {"Authorization": f"Basic {base64.b64encode(f'whichrank:{password}'.encode()).decode()}"}


class VictoriaLogs:
    """One process with its own disk folder. It has no file of settings: its command says all."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        definition = service("victorialogs")
        words = {"=/victoria-logs-data": f"={folder / 'data'}", "=:9428": f"={self.address}"}
        folder.mkdir(parents=True, exist_ok=True)
        self.service = Service(
            "VictoriaLogs",
            [built(VICTORIALOGS), *(replace(word, words) for word in definition.command)],
            log=folder / "victorialogs.log",
            ready=lambda: answers_http(f"http://{self.address}/health"),
        )

    def query(self, logsql: str, limit: int = 5000) -> list[dict[str, str]]:
        """The rows that answer, each as its fields; asked as Grafana's plug-in asks. Raises OSError."""
        question = urllib.parse.urlencode({"query": logsql, "limit": limit}).encode()
        with urllib.request.urlopen(f"http://{self.address}/select/logsql/query", question, timeout=30) as answer:
            return [json.loads(line) for line in answer]


class LogReaders:
    """vmauth in front of VictoriaLogs, as the profile ``readers`` has it. owners: who has a token."""

    def __init__(self, folder: Path, logs: VictoriaLogs, owners: Sequence[str]) -> None:
        port, internal = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        secrets = folder / "secrets"
        subprocess.run([DEPLOY / "victorialogs" / "readers.sh", secrets, *owners], check=True, capture_output=True)
        kept = (path.read_text().split() for path in (secrets / "log_reader_tokens").iterdir())
        self.tokens = {owner: token for owner, token in kept}
        place(folder / "config", {"log_readers": secrets / "log_readers"}, {"victorialogs:9428": logs.address})
        words = {"/run/secrets/log_readers": str(folder / "config" / "log_readers"), "=:8427": f"={self.address}"}
        words["=127.0.0.1:8426"] = f"=127.0.0.1:{internal}"
        self.service = Service(
            "vmauth",
            [built(VMAUTH), *(replace(word, words) for word in service("log-readers").command)],
            log=folder / "vmauth.log",
            ready=lambda: answers_http(f"http://127.0.0.1:{internal}/health"),
        )


class Jaeger:
    """One process with its own disk folder. ``address``: its query API; ``otlp``: where spans go."""

    def __init__(self, folder: Path, metrics_port: int | None = None) -> None:
        otlp, health, http, grpc, metrics = free_ports(5)
        metrics = metrics_port or metrics
        self.address, self.otlp = f"127.0.0.1:{http}", f"127.0.0.1:{otlp}"
        self.health_address = f"127.0.0.1:{health}"
        self.metrics_address = f"127.0.0.1:{metrics}"
        definition = service("jaeger")
        (config,) = definition.binds
        words = {
            "0.0.0.0:4318": self.otlp,
            "0.0.0.0:13133": self.health_address,
            "0.0.0.0:16686": self.address,
            "127.0.0.1:16685": f"127.0.0.1:{grpc}",
            "host: 0.0.0.0, port: 8888": f"host: 127.0.0.1, port: {metrics}",
            "/var/lib/jaeger/keys": f"{folder / 'data' / 'keys'}",
            "/var/lib/jaeger/values": f"{folder / 'data' / 'values'}",
        }
        self.placed: list[Placed] = place(folder / "config", {Path(config).name: definition.binds[config]}, words)
        here = {config: str(folder / "config" / Path(config).name)}
        self.service = Service(
            "Jaeger",
            [built(JAEGER), *(replace(word, here) for word in definition.command)],
            log=folder / "jaeger.log",
            ready=lambda: answers_http(f"http://{self.health_address}/status") and self.services() is not None,
        )

    def services(self) -> list[str]:
        return list(get_json(f"http://{self.address}/api/services")["data"] or ())

    def spans_of_trace(self, trace_id: str) -> list[dict[str, Any]]:
        """As a link from a line or an exemplar leads to it; none where there is no such trace."""
        try:
            return list(_spans(get_json(f"http://{self.address}/api/traces/{trace_id}")))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []

    def spans(self, tags: Mapping[str, str], service: str | None = None) -> list[dict[str, Any]]:
        """All spans of traces around now in which one has these attributes; of every service unless told."""
        found: list[dict[str, Any]] = []
        now_us = time.time_ns() // 1000
        limits = {"start": now_us - _LOOK_BACK_US, "end": now_us + _LOOK_BACK_US, "limit": 1500}
        for name in [service] if service is not None else self.services():
            question = {"service": name, "tags": json.dumps(dict(tags)), **limits}
            found += _spans(get_json(f"http://{self.address}/api/traces?{urllib.parse.urlencode(question)}"))
        return found

    def spans_of_job(self, job: str) -> list[dict[str, Any]]:
        spans = self.spans({"whichrank.job.id": job})
        return [span for span in spans if span["resource"].get("whichrank.job.id") == job]


def _spans(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each with the names that OTLP has for what we look at; links: ids of the traces that it refers to."""
    for trace in answer["data"] or ():
        for span in trace["spans"]:
            process = trace["processes"][span["processID"]]
            parents = [each for each in span["references"] if each["refType"] == "CHILD_OF"]
            yield {
                "traceId": span["traceID"],
                "spanId": span["spanID"],
                "parentSpanId": parents[0]["spanID"] if parents else "",
                "name": span["operationName"],
                "attributes": {tag["key"]: str(tag["value"]) for tag in span["tags"]},
                "resource": {
                    "service.name": process["serviceName"],
                    **{tag["key"]: str(tag["value"]) for tag in process["tags"]},
                },
                "links": [each["traceID"] for each in span["references"] if each["refType"] != "CHILD_OF"],
            }
