"""A real Prometheus and VictoriaLogs with an hour of a small cluster in them; a thread goes on with it, every 5 s."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import urllib3

from benchmarks.panel_speed import Room
from tests.real_grafana.cluster import NS, Cluster, ended, gauge, incident
from tests.stack.parts.stores import VictoriaLogs
from whichrank.telemetry.incident import Document
from whichrank.telemetry.incident_events import incident_event, incident_resource
from whichrank.telemetry.otlp_wire import RequestBuilder
from whichrank.telemetry.vocabulary import Kind

HOURS, PERIOD_S, LIVE_S = 1.0, 15, 5.0


class Stores:
    """``open`` and ``close`` an incident in both. Everything goes straight to their OTLP receivers."""

    def __init__(self, folder: Path) -> None:
        for name in ("victorialogs", "prometheus"):
            (folder / name).mkdir()
        self.logs = VictoriaLogs(folder / "victorialogs")
        self.logs.service.start()
        #: Prometheus has users, as compose starts it.
        self.secrets = folder / "secrets"
        scraped = {"victorialogs:9428": self.logs.address}
        self._room = Room(folder / "prometheus", scraped, secrets=self.secrets)
        self.prometheus = self._room.prometheus
        self._http = urllib3.PoolManager(timeout=60.0, retries=False)
        #: By id: its document, and what its gauge says.
        self._told: dict[str, tuple[Document, int]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_coming, name="metrics", daemon=True)

    def fill(self) -> None:
        """An hour, with an incident that was over in it and one that is open still; then the thread goes on."""
        end_ns = time.time_ns()
        begin_ns = end_ns - int(HOURS * 3600 * NS)
        past = incident(Kind.RANK_DIED, "immediate_crash", "page", rank=11, onset=begin_ns / NS + 900.0)
        over_s = begin_ns / NS + 1400.0
        slow = incident(Kind.RANK_SLOW, "speed_regression", "ticket", rank=7, onset=begin_ns / NS + 2000.0)
        self._cluster = Cluster(begin_ns)
        for now_ns in range(begin_ns + PERIOD_S * NS, end_ns, PERIOD_S * NS):
            for message in self._cluster.messages(now_ns):
                self._room.push(message)
            for document, until_s in ((past, over_s), (slow, end_ns / NS)):
                if document["times"]["onset"] <= now_ns / NS < until_s + 300.0:
                    self._room.push(gauge(document, int(now_ns / NS < until_s), now_ns))
        self._told[slow["id"]] = slow, 1
        self._thread.start()
        self._room.end_s = end_ns / NS - PERIOD_S
        self._room.work_out(HOURS)
        for document in (past, ended(past, over_s), slow):
            self._tell(document)

    def open(self, document: Document) -> None:
        with self._lock:
            self._told[document["id"]] = document, 1
        self._tell(document)

    def close(self, document: Document) -> None:
        with self._lock:
            self._told[document["id"]] = document, 0
        self._tell(ended(document, time.time()))

    def stop(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self.prometheus.service.kill()
        self.logs.service.kill()

    def _keep_coming(self) -> None:
        while not self._is_over.wait(LIVE_S):
            now_ns = time.time_ns()
            with self._lock:
                told = list(self._told.values())
            for message in self._cluster.messages(now_ns):
                self._room.push(message)
            for document, value in told:
                self._room.push(gauge(document, value, now_ns))

    def _tell(self, document: Document) -> None:
        url = f"http://{self.logs.address}/insert/opentelemetry/v1/logs"
        builder = RequestBuilder("whichrank", 900_000)
        builder.add(incident_resource(document), [incident_event(document)])
        (body,) = builder.take()
        # What stands twice in these events, the Collector would move; by their name alone they are sorted as well.
        headers = {"Content-Type": "application/x-protobuf", "VL-Stream-Fields": "service.name"}
        answer = self._http.request("POST", url, body=body, headers=headers)
        if answer.status >= 300:
            raise RuntimeError(f"VictoriaLogs answers {answer.status}: {answer.data[:300]!r}")
