"""A Grafana that somebody has built or unpacked, as a child process on loopback with a folder of its own, and its API.

Grafana is a separate program under its own licence: nothing of it lies in this repository, and all that is done with it
goes over HTTP.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3

from tests.ports import free_ports
from tests.stack.parts.placing import place
from tests.stack.parts.service import Service, answers_http

TIMEOUT_S = 60.0
#: It asks nobody outside of this machine, and shows nothing to who has not logged in.
_CLOSED = {
    "GF_AUTH_ANONYMOUS_ENABLED": "false",
    "GF_USERS_ALLOW_SIGN_UP": "false",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_SECURITY_DISABLE_GRAVATAR": "true",
    "GF_NEWS_NEWS_FEED_ENABLED": "false",
    "GF_PLUGINS_PLUGIN_ADMIN_ENABLED": "false",
    "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    "GF_SNAPSHOTS_EXTERNAL_ENABLED": "false",
    "GF_LOG_MODE": "console",
    "GF_LOG_CONSOLE_FORMAT": "text",
}


class Unanswered(Exception):
    """An answer that is no success: status and words."""


def command_of(home: Path) -> list[str]:
    """Raises SystemExit where there is none. Since 9.4 the server is a subcommand, and ``grafana-server`` calls it."""
    for name, words in (("grafana", ["server"]), ("grafana-server", [])):
        if (home / "bin" / name).is_file():
            return [str(home / "bin" / name), *words]
    raise SystemExit(f"{home}: has neither bin/grafana nor bin/grafana-server: give the folder of a Grafana")


def has_pages(home: Path) -> bool:
    """Whether the part that browsers run was built, too."""
    return (home / "public" / "build").is_dir() and (home / "public" / "views" / "index.html").is_file()


class Grafana:
    """home: of the program. provisioning: as in a Grafana's own folder, or None. environment: more variables."""

    def __init__(
        self,
        home: Path,
        folder: Path,
        *,
        provisioning: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.password = secrets.token_urlsafe(18)
        folder.mkdir(parents=True)
        for name in ("plugins", "provisioning"):
            (folder / name).mkdir()
        self.service = Service(
            "Grafana",
            [*command_of(home), "-homepath", str(home)],
            log=folder / "grafana.log",
            ready=lambda: answers_http(f"{self.url}/api/health"),
            environment={
                **_CLOSED,
                "GF_PATHS_DATA": str(folder / "data"),
                "GF_PATHS_LOGS": str(folder / "logs"),
                "GF_PATHS_PLUGINS": str(brought if (brought := home / "plugins").is_dir() else folder / "plugins"),
                "GF_PATHS_PROVISIONING": str(provisioning or folder / "provisioning"),
                "GF_SERVER_HTTP_ADDR": "127.0.0.1",
                "GF_SERVER_HTTP_PORT": str(port),
                "GF_SECURITY_ADMIN_USER": "admin",
                "GF_SECURITY_ADMIN_PASSWORD": self.password,
                **(environment or {}),
            },
        )
        self._http = urllib3.PoolManager(timeout=TIMEOUT_S, retries=False)
        self._headers = urllib3.util.make_headers(basic_auth=f"admin:{self.password}")

    def raw(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> bytes:
        """Raises Unanswered."""
        answer = self._http.request(
            method,
            f"{self.url}{path}",
            body=None if body is None else json.dumps(body).encode(),
            headers={**self._headers, "Content-Type": "application/json", **(headers or {})},
        )
        if answer.status >= 300:
            raise Unanswered(f"{method} {path}: {answer.status}: {answer.data[:500].decode(errors='replace')}")
        return bytes(answer.data)

    def ask(self, path: str, body: Any = None) -> Any:
        """GET, or POST where there is a body. Raises Unanswered."""
        return json.loads(self.raw("GET" if body is None else "POST", path, body))

    @property
    def version(self) -> str:
        return str(self.ask("/api/health")["version"])

    def token(self, role: str) -> str:
        """Of a new service account."""
        account = self.ask("/api/serviceaccounts", {"name": f"whichrank-{role}", "role": role})
        return str(self.ask(f"/api/serviceaccounts/{account['id']}/tokens", {"name": "sync"})["key"])

    def complaints(self) -> list[str]:
        """Lines of its log that tell of an error in what was provisioned."""
        return [
            line
            for line in self.service.output().splitlines()
            if ("level=error" in line or "lvl=eror" in line) and "provisioning" in line
        ]


def provisioned(folder: Path, words: Mapping[str, Mapping[str, str]], sources: Mapping[str, Path]) -> Path:
    """Copies of files. sources: "datasources/whichrank.yaml" -> file; words: what is replaced in it, by that name."""
    for name in ("datasources", "dashboards", "alerting", "plugins", "notifiers", "access-control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        place((folder / name).parent, {Path(name).name: source}, words.get(name, {}))
    return folder
