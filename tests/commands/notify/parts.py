"""Receivers on loopback that play each API as it is documented, and count what people would get. Not a test module.

``Api.answers`` scripts the next requests: a status with headers, DROP (the request is read and done, the answer is
lost), SLOW (done, answered after ``slow_s``), then all is well again. PagerDuty: an event with the dedup key of an open
alert adds to that one. Alertmanager: an alert is its labels, and ends at its endsAt. Slack: errors are in the body, and
a message is posted as often as it is asked for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

DROP, SLOW = "drop", "slow"
SECRET = "made-up-s3cret-of-notify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


class Api:
    """``pages``: for each thing that would wake somebody, its key, in order, with the time in ``paged_at``."""

    path = ""

    def __init__(self, port: int = 0) -> None:
        self.answers: list[Status | str] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.pages: list[str] = []
        self.paged_at: list[float] = []
        self.wrong: list[str] = []
        self.slow_s = 1.0
        self.clock = time.time
        self._mutex = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._serve(json.loads(body), body)

            def do_GET(self) -> None:
                self._serve(dict(parse_qsl(urlsplit(self.path).query)), b"")

            def _serve(self, told: Any, body: bytes) -> None:
                with api._mutex:
                    script = api.answers.pop(0) if api.answers else None
                    api.requests.append((urlsplit(self.path).path, told))
                    if isinstance(script, Status):
                        status = script
                    else:
                        status = api.answer(urlsplit(self.path).path, told, self.headers, body)
                if script == SLOW:
                    time.sleep(api.slow_s)
                if script == DROP:
                    self.close_connection = True
                    return
                content = json.dumps(status.body).encode()
                try:
                    self.send_response(status.code)
                    for name, value in status.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # it does not wait any more

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}{self.path}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str, told: Any, headers: Any, body: bytes) -> Status:
        raise NotImplementedError

    def page(self, key: str) -> None:
        self.pages.append(key)
        self.paged_at.append(time.time())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class PagerDutyApi(Api):
    path = "/v2/enqueue"
    _SEVERITIES = frozenset({"critical", "error", "warning", "info"})

    def __init__(self, port: int = 0) -> None:
        #: By dedup key: triggered, acknowledged or resolved.
        self.alerts: dict[str, str] = {}
        self.summaries: dict[str, list[str]] = {}
        super().__init__(port)

    def answer(self, path: str, told: Any, headers: Any, body: bytes) -> Status:
        if wrong := self._wrong_with(told, body):
            self.wrong.append(wrong)
            return Status(code=400, body={"status": "invalid event", "errors": [wrong]})
        key, action = told["dedup_key"], told["event_action"]
        if action == "trigger":
            if self.alerts.get(key) not in ("triggered", "acknowledged"):
                self.page(key)
                self.alerts[key] = "triggered"
            self.summaries.setdefault(key, []).append(told["payload"]["summary"])
        elif key in self.alerts:
            self.alerts[key] = "acknowledged" if action == "acknowledge" else "resolved"
        return Status(code=202, body={"status": "success", "dedup_key": key})

    def _wrong_with(self, told: Any, body: bytes) -> str:
        if told.get("routing_key") != SECRET:
            return "routing_key"
        if told.get("event_action") not in ("trigger", "acknowledge", "resolve"):
            return "event_action"
        if not 0 < len(told.get("dedup_key", "")) <= 255:
            return "dedup_key"
        if len(body) > 512 << 10:
            return "size"
        payload = told.get("payload")
        if told["event_action"] == "trigger" and payload is None:
            return "payload"
        if payload is not None:
            if not payload.get("summary") or len(payload["summary"]) > 1024 or not payload.get("source"):
                return "summary or source"
            if payload.get("severity") not in self._SEVERITIES:
                return "severity"
        return ""


class AlertmanagerApi(Api):
    def __init__(self, port: int = 0) -> None:
        #: By labels: the alert as told last.
        self.alerts: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        super().__init__(port)

    def answer(self, path: str, told: Any, headers: Any, body: bytes) -> Status:
        if path != "/api/v2/alerts":
            return Status(code=404)
        now = self.clock()
        for alert in told:
            labels = tuple(sorted(alert["labels"].items()))
            begin, end = (_seconds(alert[name]) for name in ("startsAt", "endsAt"))
            if not alert["labels"] or end < begin or not all(re.match(r"[a-zA-Z_]\w*\Z", name) for name, _ in labels):
                self.wrong.append(json.dumps(alert))
                return Status(code=400)
            before = self.alerts.get(labels)
            is_firing = before is not None and _seconds(before["endsAt"]) > now
            if not is_firing and end > now and alert["labels"]["severity"] == "page":
                self.page(alert["labels"]["incident"])
            self.alerts[labels] = alert
        return Status(code=200)

    def firing(self) -> list[dict[str, Any]]:
        now = self.clock()
        return [a for a in self.alerts.values() if _seconds(a["endsAt"]) > now]


class SlackApi(Api):
    path = "/api"

    def __init__(self, port: int = 0) -> None:
        self.messages: list[dict[str, Any]] = []
        self.scopes = {"chat:write", "channels:history"}
        super().__init__(port)

    def answer(self, path: str, told: Any, headers: Any, body: bytes) -> Status:
        if headers["Authorization"] != f"Bearer {SECRET}":
            return self._error("invalid_auth")
        method = path.rpartition("/")[2]
        if told["channel"] != "C042":
            return self._error("channel_not_found")
        if method == "chat.postMessage":
            ts = f"{1_700_000_000 + len(self.messages)}.000100"
            self.messages.append({**told, "ts": ts, "edits": 0})
            if "thread_ts" not in told:
                self.page(told["metadata"]["event_payload"]["key"])
            return Status(code=200, body={"ok": True, "ts": ts, "channel": told["channel"]})
        if method == "chat.update":
            found = next((m for m in self.messages if m["ts"] == told["ts"]), None)
            if found is None:
                return self._error("message_not_found")
            found.update({**told, "edits": found["edits"] + 1})
            return Status(code=200, body={"ok": True, "ts": told["ts"]})
        if "channels:history" not in self.scopes:
            return self._error("missing_scope")
        if method == "conversations.history":
            return self._some([m for m in self.messages if "thread_ts" not in m], told)
        if method == "conversations.replies":
            return self._some([m for m in self.messages if told["ts"] in (m["ts"], m.get("thread_ts"))], told)
        return self._error("unknown_method")

    def _some(self, messages: list[dict[str, Any]], told: Mapping[str, Any]) -> Status:
        """Two on a page, so that the cursor is followed."""
        first = int(told.get("cursor") or 0)
        shown = [m if told.get("include_all_metadata") == "true" else {**m, "metadata": None} for m in messages]
        cursor = str(first + 2) if first + 2 < len(messages) else ""
        body = {"ok": True, "messages": shown[first : first + 2], "response_metadata": {"next_cursor": cursor}}
        return Status(code=200, body=body)

    def _error(self, error: str) -> Status:
        return Status(code=200, body={"ok": False, "error": error})

    @property
    def roots(self) -> list[dict[str, Any]]:
        return [m for m in self.messages if "thread_ts" not in m]

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [m for m in self.messages if "thread_ts" in m]


class WebhookApi(Api):
    """Checks signatures after the Standard Webhooks scheme, written here anew; knows repetitions by their id."""

    path = "/hooks"
    REPLAY_S = 300

    def __init__(self, port: int = 0) -> None:
        self.told: list[dict[str, Any]] = []
        self._seen: set[str] = set()
        super().__init__(port)

    def answer(self, path: str, told: Any, headers: Any, body: bytes) -> Status:
        identity, stamp = headers["webhook-id"], headers["webhook-timestamp"]
        expected = hmac.new(SECRET.encode(), f"{identity}.{stamp}.".encode() + body, hashlib.sha256).digest()
        version, _, signature = headers["webhook-signature"].partition(",")
        if version != "v1" or not hmac.compare_digest(base64.b64decode(signature), expected):
            self.wrong.append("a wrong signature")
            return Status(code=401)
        if abs(self.clock() - int(stamp)) > self.REPLAY_S:
            self.wrong.append("an old timestamp")
            return Status(code=401)
        if identity in self._seen:
            return Status(code=200)
        self._seen.add(identity)
        self.told.append(told)
        if told["is_new"] and told["standing"] == "open":
            self.page(told["key"])
        return Status(code=200)


APIS: Mapping[str, type[Api]] = {
    "pagerduty": PagerDutyApi,
    "alertmanager": AlertmanagerApi,
    "slack": SlackApi,
    "webhook": WebhookApi,
}


def receiver_table(api: Api, kind: str, name: str = "", **more: Any) -> str:
    """Of the settings file; the secret is in the variable NOTIFY_SECRET."""
    values = {"kind": kind, "url": api.url, "secret_variable": "NOTIFY_SECRET", **more}
    values |= {"channel": "C042"} if kind == "slack" else {}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[notify_receivers.{name or kind}]", *lines, ""])
