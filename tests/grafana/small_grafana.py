"""A Grafana as its published HTTP API has it, as far as ``whichrank grafana`` uses it: real HTTP, state in memory.

What is stored comes back as a real one gives it: with ids, versions and defaults of its own added.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "not-a-real-one"


class SmallGrafana:
    def __init__(self) -> None:
        self.folders: dict[str, dict[str, Any]] = {}
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.where: dict[str, str] = {}
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        #: By uid; those of ``groups`` that were made before it.
        self.rules: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.annotations: dict[int, dict[str, Any]] = {}
        #: Never to be asked for; every path that was written to.
        self.written: list[tuple[str, str]] = []
        self._numbers = itertools.count(1)
        self.url = ""
        #: Before 12 it drops what it does not know of rules.
        self.version = "13.2.0"
        #: A status that is answered to everything; a tag whose annotations are not taken.
        self.fails_with: int | None = None
        self.refuses = ""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        parts = path.removeprefix("/api/").split("/")
        if method != "GET":
            self.written.append((method, path))
        if self.fails_with is not None:
            return self.fails_with, {"message": "is being repaired"}
        if method == "POST" and self.refuses in (body or {}).get("tags", ()):
            return 400, {"message": "bad request data"}
        match method, parts:
            case "GET", ["health"]:
                return 200, {"database": "ok", "version": self.version}
            case "GET", ["folders", uid]:
                # Rights are kept with a folder: of one that is not there an Editor has none.
                there = self.folders.get(uid)
                return (403, {"message": "Permissions needed: folders:read"}) if there is None else (200, there)
            case "POST", ["folders"]:
                self.folders[body["uid"]] = {"id": next(self._numbers), **body}
                return 200, self.folders[body["uid"]]
            case "GET", ["dashboards", "uid", uid]:
                there = self.dashboards.get(uid)
                found = {"dashboard": there, "meta": {"folderUid": self.where.get(uid)}} if there else None
                return self._found(found)
            case "POST", ["dashboards", "db"]:
                dashboard = body["dashboard"]
                if dashboard["uid"] in self.dashboards and not body.get("overwrite"):
                    return 412, {"message": "a dashboard with the same uid already exists"}
                number = next(self._numbers)
                self.dashboards[dashboard["uid"]] = {**dashboard, "id": number, "version": number, "weekStart": ""}
                self.where[dashboard["uid"]] = body["folderUid"]
                return 200, {"status": "success", "uid": dashboard["uid"]}
            case "GET", ["v1", "provisioning", "folder", folder, "rule-groups", name]:
                return self._found(self.groups.get((folder, name)))
            case "GET", ["v1", "provisioning", "alert-rules"]:
                return 200, list(self.rules.values())
            case "POST", ["v1", "provisioning", "alert-rules"]:
                self.rules[body["uid"]] = {"id": next(self._numbers), **body}
                return 201, self.rules[body["uid"]]
            case "PUT", ["v1", "provisioning", "folder", folder, "rule-groups", name]:
                if not {rule["uid"] for rule in body["rules"]} <= set(self.rules):
                    return 500, {"message": "failed to update rule because could not find alert rule"}
                unknown = set() if self.version.startswith("13") else {"keep_firing_for", "missingSeriesEvalsToResolve"}
                rules = [
                    {"id": next(self._numbers), "isPaused": False, "provenance": ""}
                    | {key: value for key, value in rule.items() if key not in unknown}
                    for rule in body["rules"]
                ]
                self.groups[folder, name] = {**body, "rules": rules}
                return 200, self.groups[folder, name]
            case "GET", ["datasources", "uid", uid]:
                return self._found(self.sources.get(uid))
            case "POST", ["datasources"]:
                self.sources[body["uid"]] = {"id": next(self._numbers), "orgId": 1, **body}
                return 200, {"datasource": self.sources[body["uid"]]}
            case "GET", ["annotations"]:
                wanted = set(query.get("tags", []))
                return 200, [a for a in self.annotations.values() if wanted <= set(a["tags"])]
            case "POST", ["annotations"]:
                number = next(self._numbers)
                self.annotations[number] = {"id": number, "timeEnd": body.get("timeEnd") or body["time"], **body}
                return 200, {"id": number, "message": "Annotation added"}
            case "PUT", ["annotations", number_word]:
                self.annotations[int(number_word)] |= body
                return 200, {"message": "Annotation updated"}
        return 404, {"message": "Not found"}

    @staticmethod
    def _found(there: Any) -> tuple[int, Any]:
        return (404, {"message": "not found"}) if there is None else (200, there)


@contextmanager
def running(grafana: SmallGrafana) -> Iterator[SmallGrafana]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, said = 401, {"message": "Unauthorized"}
            else:
                status, said = grafana.answer(self.command, parts.path, parse_qs(parts.query), body)
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    grafana.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield grafana
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
