"""Prometheus and Loki, started with the commands and files of docker-compose.yml on ports and folders of their own."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.stack.parts.compose import service
from tests.stack.parts.go_programs import LOKI, PROMETHEUS, built
from tests.stack.parts.placing import Placed, place, replace
from tests.stack.parts.service import Service, answers_http, get_json


class Prometheus:
    """It scrapes itself; of the other parts only what is told here (name in compose -> address)."""

    def __init__(self, folder: Path, scraped: dict[str, str] | None = None) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        definition = service("prometheus")
        (config,) = (path for path in definition.binds if path.endswith("prometheus.yml"))
        words = {"localhost:9090": self.address, **(scraped or {})}
        sources = {Path(path).name: source for path, source in definition.binds.items()}
        self.placed: list[Placed] = place(folder / "config", sources, words)
        arguments = {
            config: str(folder / "config" / Path(config).name),
            "path=/prometheus": f"path={folder / 'data'}",
            "=:9090": f"={self.address}",
        }
        self.service = Service(
            "Prometheus",
            [built(PROMETHEUS), *(replace(word, arguments) for word in definition.command)],
            log=folder / "prometheus.log",
            ready=lambda: answers_http(f"http://{self.address}/-/ready"),
        )

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The instant vector that answers: ``[{"metric": {...}, "value": [time, text]}]`` (or ``"histogram"``)."""
        question = urllib.parse.urlencode({"query": promql})
        answer = get_json(f"http://{self.address}/api/v1/query?{question}")
        return list(answer["data"]["result"])


class Loki:
    """One Loki process with its own disk folder."""

    def __init__(self, folder: Path) -> None:
        http, grpc = free_ports(2)
        self.address = f"127.0.0.1:{http}"
        definition = service("loki")
        (config,) = definition.binds
        data = folder / "data"
        words = {
            "http_listen_port: 3100": f"http_listen_port: {http}",
            "grpc_listen_port: 9096": f"grpc_listen_port: {grpc}",
            "path_prefix: /loki": f"path_prefix: {data}",
            "/loki/chunks": f"{data}/chunks",
            "/loki/rules": f"{data}/rules",
            "/loki/compactor": f"{data}/compactor",
        }
        self.placed: list[Placed] = place(folder / "config", {Path(config).name: definition.binds[config]}, words)
        self.service = Service(
            "Loki",
            [
                built(LOKI),
                *(replace(word, {config: str(folder / "config" / Path(config).name)}) for word in definition.command),
            ],
            log=folder / "loki.log",
            ready=lambda: answers_http(f"http://{self.address}/ready"),
        )

    def query(self, logql: str, since: str = "24h") -> list[dict[str, Any]]:
        """The streams that answer: ``[{"stream": labels and metadata, "values": [[time in ns, line], ...]}]``."""
        question = urllib.parse.urlencode({"query": logql, "since": since, "limit": 5000})
        answer = get_json(f"http://{self.address}/loki/api/v1/query_range?{question}")
        return list(answer["data"]["result"])
