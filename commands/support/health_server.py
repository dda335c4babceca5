"""/healthz, /readyz and /metrics of a service, on threads of their own: an answer must not wait for the work.

Who says nothing is hung up on after seconds, and only so many are served beside each other: the oldest that waits goes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ...processors.runner_service import Role, ServiceHealth

#: A turn that takes longer than this means that the service hangs: its longest wait for Kafka is 10 s.
HUNG_S = 60.0
#: A whole request must have come by then; nobody asks a second one on the same connection.
REQUEST_S = 5.0
MAX_CONNECTIONS = 32
#: Connections; so many more at once after a pause.
MOST_PER_S, _BURST = 200.0, 64.0
_SAYS_EVERY_S = 60.0

logger = logging.getLogger("whichrank")


def is_alive(health: ServiceHealth) -> bool:
    """Whether the service's loop has turned within a minute."""
    return health.idle_s < HUNG_S


def is_ready(health: ServiceHealth) -> bool:
    """Whether the service is alive, Kafka answers, it is known who leads, and all is read that others have written."""
    return is_alive(health) and health.trouble is None and health.role is not Role.STARTING and health.caught_up


class ServiceFigures(Collector):
    """The service's figures at the moment they are asked for."""

    def __init__(self, health: Callable[[], ServiceHealth]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """The service's metrics at the moment at which they are asked for."""
        health = self._health()
        gauges = {
            "lag_seconds": ("age of the oldest record that waits", health.lag_s),
            "caught_up": ("1 when everything that is there was read", float(health.caught_up)),
            "idle_seconds": ("since the last turn of the loop", health.idle_s),
            "outbox": ("conclusions that are not published yet", float(health.outbox)),
            "kafka_reachable": ("0 while Kafka does not answer", float(health.trouble is None)),
            "state_rows": ("rows of state", float(health.rows)),
            "timers": ("timers that are set", float(health.timers)),
            "timers_late_seconds": ("how late the first timer is", health.timers_late_s),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"whichrank_process_{name}", text, value=value)
        role = GaugeMetricFamily("whichrank_process_role", "1 for the role it has", labels=["role"])
        for each in Role:
            role.add_metric([each.value], float(each is health.role))
        yield role
        counters = {
            "messages": ("messages processed", health.messages),
            "records": ("records processed", health.records),
            "published": ("conclusions published", health.published),
            "unreadable": ("records that went to the dead-letter topic", health.unreadable),
            "nameless_points": ("points of other people's exporters that name no host", health.nameless),
            "missed": ("messages that retention had deleted before they were read", health.missed),
            "too_large": ("conclusions that no broker takes because of their size", health.too_large),
            "failed_commits": ("commits that the disk refused", health.failed_commits),
            "contained": ("times that an operator failed on a record, which was set aside", health.contained),
            "forgotten": ("jobs and entities forgotten before their time, as there were too many", health.forgotten),
            "muted": ("records that were dropped, as an operator had failed twice on what they are of", health.muted),
        }
        for name, (text, count) in counters.items():
            yield CounterMetricFamily(f"whichrank_process_{name}", text, value=count)


class _BoundedServer(ThreadingHTTPServer):
    """At most so many connections, each for so long, however slowly it sends."""

    daemon_threads = True
    #: Connections that wait to be taken; with the library's 5 a probe waits seconds for its turn behind a stranger's.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._says_again_s = self._next_s = 0.0
        super().__init__(address, handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Makes room first: the oldest connection is hung up on where there are too many."""
        assert isinstance(request, socket.socket)
        self._pace()
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                self._hang_up(next(iter(self._open)))
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def _pace(self) -> None:
        """Waits where strangers come too fast: each costs a thread, which the service's work would go without."""
        now_s = time.monotonic()
        self._next_s = max(self._next_s + 1.0 / MOST_PER_S, now_s - _BURST / MOST_PER_S)
        if self._next_s > now_s:
            time.sleep(self._next_s - now_s)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Called once for each connection, when its thread is done with it."""
        assert isinstance(request, socket.socket)
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """What a stranger's connection can fail of is his; of anything else one line a minute, and no traceback."""
        error, now_s = sys.exc_info()[1], time.monotonic()
        if not isinstance(error, OSError) and now_s >= self._says_again_s:
            self._says_again_s = now_s + _SAYS_EVERY_S
            logger.warning("a page of health could not be made: %s: %s", type(error).__name__, error)

    def service_actions(self) -> None:
        """Twice a second, in the server's thread."""
        before = time.monotonic() - REQUEST_S
        with self._lock:
            for connection in [each for each, since in self._open.items() if since < before]:
                self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        """Its thread's read ends at once, and closes it."""
        del self._open[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


#: A page of health: whether all is well, and what is said of it, as JSON.
Page = Callable[[], tuple[bool, str]]


class PageServer:
    """Answers until ``close``: pages of health as JSON (200 or 503), and /metrics."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], collector: Collector) -> None:
        """pages: by path. Raises OSError when the address cannot be had."""
        registry = CollectorRegistry()
        registry.register(collector)
        known = ", ".join([*pages, "/metrics"])

        class Handler(BaseHTTPRequestHandler):
            server_version, sys_version = "whichrank", ""  # no stranger has to know which Python this is

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif self.path in pages:
                    good, body = pages[self.path]()
                    self._answer(200 if good else 503, "application/json", body.encode() + b"\n")
                else:
                    self._answer(404, "text/plain", f"{known} are here\n".encode())

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Whoever asks for health every few seconds is no news."""

        self._server = _BoundedServer((host, port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server; answers that are on their way are finished, for some seconds."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


class HealthServer(PageServer):
    """Of ``whichrank process``."""

    def __init__(self, host: str, port: int, health: Callable[[], ServiceHealth]) -> None:
        """Raises OSError when the address cannot be had."""

        def page(is_good: Callable[[ServiceHealth], bool]) -> tuple[bool, str]:
            now = health()
            good = is_good(now)
            told = {
                "ok": good,
                "role": now.role.value,
                "caught_up": now.caught_up,
                "lag_s": round(now.lag_s, 3),
                "kafka": now.trouble or "ok",
                "idle_s": round(now.idle_s, 3),
            }
            return good, json.dumps(told)

        pages: dict[str, Page] = {"/healthz": lambda: page(is_alive), "/readyz": lambda: page(is_ready)}
        super().__init__(host, port, pages, ServiceFigures(health))
