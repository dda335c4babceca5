"""How fast every panel answers for a job of 16,384 ranks: a real Prometheus with an hour of their metrics at 15 s.

Ranks' and nodes' metrics are encoded as agents do and pushed to its OTLP receiver, an hour of them in order; of nodes'
all that any dashboard asks, of eight GPUs each. What Prometheus' recording rules would have made of that hour is asked
of it every five minutes, by the rules' own expressions, and pushed like the rest, every 30 s. Then each query of each
dashboard is asked over the dashboard's default range, ``--repeats`` times; the slowest of a panel's queries counts.
Needs Go (the first time 10 minutes, to build Prometheus). Run: ``python -m benchmarks.panel_speed [--ranks N]``
(16,384: an hour on two cores, 10 GB of memory). Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import urllib3

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Report
from tests.stack.parts.stores import Prometheus
from whichrank.grafana.boards import all_dashboards
from whichrank.grafana.elements.metric_names import prometheus_name
from whichrank.grafana.elements.recordings import CALL_RATES, RECORDINGS, RecordingRule
from whichrank.grafana.elements.recordings import GROUPS as INTERVALS_S
from whichrank.telemetry import attributes as names
from whichrank.telemetry.histogram_table import HistogramTable
from whichrank.telemetry.metric_encode import (
    Instrument,
    histogram_attributes,
    metric_entry,
    number_attributes,
    number_entry,
    number_point,
)
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.otlp_wire import RequestBuilder, resource
from whichrank.telemetry.records import Identity, Point
from whichrank.telemetry.vocabulary import Phase, TimeBucket

ASKED_S = 1.0
JOB, INCIDENT = "pretrain", "1f0c1f0c1f0c1f0c"
GPUS = 8
#: Nodes of one message.
TOGETHER = 32
STEP_S = 0.5
GROUPS = ("dp", "tp", "pp", "ep")
OPS = ("all_reduce", "all_gather", "reduce_scatter")
#: Grafana asks for no more points than a panel is wide.
MAX_POINTS = 1000
#: What the recording rules make is asked so seldom, and stands for all of the time until then.
ASKED_EVERY_S, PUSHED_EVERY_S = 300, 30
_NS = 10**9
_GAUGES = (
    names.METRIC_RANK_STEP,
    names.METRIC_RANK_PACE,
    names.METRIC_COLLECTIVE_OPEN_AGE,
    names.METRIC_HEARTBEAT_AGE,
    names.METRIC_RANK_WAIT,
)


class Nodes:
    """Some nodes' metrics, moment by moment. begin_ns: since when they count, Unix."""

    def __init__(self, first: int, count: int, begin_ns: int, asked: frozenset[str]) -> None:
        self._draws = np.random.default_rng(first)
        self._begin_ns = begin_ns
        ranks = [(node, rank) for node in range(first, first + count) for rank in range(node * GPUS, (node + 1) * GPUS)]
        who: list[dict[str, str | int]] = [
            {names.JOB_ID: JOB, names.WORLD: "1", names.NODE_ID: _node(node), names.RANK: rank} for node, rank in ranks
        ]
        self._numbers = [number_attributes(each) for each in who]
        self._tables = {
            names.METRIC_STEP_DURATION: self._table([[each] for each in who]),
            names.METRIC_PHASE_DURATION: self._table(
                [[{**each, names.PHASE: phase.name.lower()} for phase in Phase] for each in who]
            ),
            names.METRIC_COLLECTIVE_DURATION: self._table(
                [[{**each, names.GROUP_NAME: g, names.COLLECTIVE_OP: op} for g in GROUPS for op in OPS] for each in who]
            ),
        }
        self._wait_s = np.zeros(len(ranks))
        # A guilty rank waits least; the others wait for it.
        self._waits = np.where(np.arange(len(ranks)) + first * GPUS == 4_711 % max(1, len(ranks)), 0.01, 0.2)
        self._still = [
            (message, _time_bytes(begin_ns))
            for node in range(first, first + count)
            for message in _node_metrics(node, begin_ns, asked)
        ]

    def messages(self, now_ns: int, seconds: float) -> Iterator[bytes]:
        """seconds: since the last."""
        steps = max(1, round(seconds / STEP_S / 10))  # a tenth of them: counts, not times, are what a query reads
        entries = []
        for metric, table in self._tables.items():
            rows = np.repeat(np.arange(len(table)), steps)
            table.record(rows, self._draws.lognormal(-3.0, 0.3, len(rows)))
            entries.append(metric_entry(metric, table.points(now_ns)))
        self._wait_s += self._waits * seconds * self._draws.normal(1.0, 0.03, len(self._wait_s))
        step = (now_ns - self._begin_ns) / _NS / STEP_S
        values = {name: np.full(len(self._numbers), 0.1) for name in _GAUGES}
        values[names.METRIC_RANK_STEP] += step
        values[names.METRIC_RANK_PACE] = self._draws.normal(1 / STEP_S, 0.02, len(self._numbers))
        values[names.METRIC_RANK_WAIT] = self._wait_s
        for name, of_ranks in values.items():
            points = [
                number_point(attributes, float(value), time_ns=now_ns, start_ns=self._begin_ns)
                for attributes, value in zip(self._numbers, of_ranks.tolist(), strict=True)
            ]
            entries.append(metric_entry(name, points))
        yield from _messages(entries, "whichrank-agent")
        for message, marker in self._still:
            yield message.replace(marker, _time_bytes(now_ns))

    def _table(self, series: list[list[dict[str, Any]]]) -> HistogramTable:
        flat = [each for of_rank in series for each in of_rank]
        table = HistogramTable(len(flat))
        for number, each in enumerate(flat):
            table.series(number, histogram_attributes(each), self._begin_ns)
        return table


def _node(number: int) -> str:
    return f"node-{number:05d}"


def _time_bytes(time_ns: int) -> bytes:
    """``time_unix_nano`` of a point, with its tag."""
    return b"\x19" + struct.pack("<Q", time_ns)


#: Of attributes by which panels choose.
_ASKED_FOR = {"whichrank.gpu.nvlink.state": "up", "system.filesystem.state": "used"}


def _node_metrics(node: int, time_ns: int, asked: frozenset[str]) -> list[bytes]:
    """What dashboards ask of a node and its GPUs; a value each, with every attribute that it has."""
    points = []
    for name, metric in node_metrics().items():
        if prometheus_name(name) not in asked:
            continue
        ids = [f"GPU-{node:05d}-{gpu}" for gpu in range(GPUS)] if "hw.id" in metric.attributes else [""]
        for identifier in ids:
            values = {key: _ASKED_FOR.get(key, "one") for key in metric.attributes}
            values |= {"hw.id": identifier} if identifier else {}
            points.append(Point(name=name, value=1.0, attributes=values, time_ns=time_ns, start_ns=time_ns - _NS))
    return list(encode_points(Identity(cluster="lab", node=_node(node)), points, limit_bytes=900_000))


def of_job(begin_ns: int, now_ns: int) -> list[bytes]:
    """What the processors tell: an incident, the account, themselves."""
    age_s = (now_ns - begin_ns) / _NS
    job = {names.JOB_ID: JOB, names.RUN_ID: JOB}
    incident = {
        **{names.CLUSTER_ID: "lab", names.JOB_ID: JOB, names.INCIDENT_ID: INCIDENT, names.INCIDENT_SEVERITY: "page"},
        **{names.INCIDENT_BUCKET: "speed_regression", names.INCIDENT_KIND: "rank_slow"},
        **{names.SUSPECT_RANK: "4711", names.SUSPECT_NODE: _node(4711 // GPUS)},
    }
    told: list[tuple[str, Mapping[str, Any], float]] = [
        (names.METRIC_INCIDENT_ACTIVE, incident, 1.0),
        (names.METRIC_PIPELINE_LAG, {}, 0.4),
        *((name, {**job, names.GOODPUT_BUCKET: b.value}, age_s) for b in TimeBucket for name in _ACCOUNTS),
    ]
    entries = [
        metric_entry(name, [number_point(number_attributes(at), value, time_ns=now_ns, start_ns=begin_ns)])
        for name, at, value in told
    ]
    return _messages(entries, "whichrank-processors")


_ACCOUNTS = (names.METRIC_GOODPUT_TIME, names.METRIC_GOODPUT_GPU_TIME)


def _messages(entries: list[bytes], service: str) -> list[bytes]:
    builder = RequestBuilder("whichrank", 64_000_000)
    builder.add(resource({names.SERVICE_NAME: service}), entries)
    return builder.take()


class Room:
    """A Prometheus with the hour in it. end_s: of the hour, Unix seconds. scraped, secrets: as ``Prometheus`` has."""

    def __init__(self, folder: Path, scraped: dict[str, str] | None = None, *, secrets: Path | None = None) -> None:
        self.folder = folder
        self.prometheus = Prometheus(folder, scraped, secrets=secrets)
        self.prometheus.service.start()
        self.end_s = 0.0
        self._http = urllib3.PoolManager(timeout=600.0, retries=False, headers=self.prometheus.headers)

    def fill(self, ranks: int, hours: float, period_s: int) -> None:
        asked = frozenset(re.findall(r"\w+", " ".join(query for _, query in _queries())))
        end_ns = time.time_ns()
        begin_ns = end_ns - int(hours * 3600 * _NS)
        count = max(1, ranks // GPUS)
        nodes = [Nodes(n, min(TOGETHER, count - n), begin_ns, asked) for n in range(0, count, TOGETHER)]
        for now_ns in range(begin_ns, end_ns, period_s * _NS):
            for some in nodes:
                for message in some.messages(now_ns, period_s):
                    self.push(message)
            for message in of_job(begin_ns, now_ns):
                self.push(message)
            self.end_s = now_ns / _NS
            print(f"  {(now_ns - begin_ns) / _NS / 60:.1f} min are in", file=sys.stderr, flush=True)

    def work_out(self, hours: float) -> float:
        """The recording rules of that hour, pushed like the rest; so much of a second their evaluations take in one."""
        busy = []
        rates = next(each.expr for each in RECORDINGS if each.record == CALL_RATES)
        moment = self.end_s - hours * 3600 + 2 * PUSHED_EVERY_S
        while moment <= self.end_s:
            found: dict[str, list[tuple[Any, float]]] = {}
            shares = []
            for each in RECORDINGS:
                begin_s = time.monotonic()
                # What is made of histograms that are recorded is asked of what these are made of: none is pushed.
                results = self.ask("query", query=each.expr.replace(CALL_RATES, f"({rates})"), time=f"{moment:.3f}")
                if CALL_RATES not in each.expr:
                    shares.append((time.monotonic() - begin_s) / INTERVALS_S[each.group])
                if each.record != CALL_RATES:
                    numbers = [(_labels(each, one["metric"]), float(one["value"][1])) for one in results]
                    found.setdefault(each.record, []).extend(numbers)
            busy.append(sum(shares))
            until = min(moment + ASKED_EVERY_S, self.end_s)
            while moment <= until:
                self._push_numbers(found, int(moment * _NS))
                moment += PUSHED_EVERY_S
        return statistics.median(busy)

    def _push_numbers(self, found: Mapping[str, list[tuple[Any, float]]], time_ns: int) -> None:
        """Under the names that they have in Prometheus: without a unit nothing is appended."""
        points = {
            name: [number_point(at, value, time_ns=time_ns) for at, value in some] for name, some in found.items()
        }
        entries = [number_entry(name, "", "", Instrument.GAUGE, some) for name, some in points.items() if some]
        for message in _messages(entries, ""):
            self.push(message)

    def ask(self, what: str, **fields: str) -> list[Any]:
        answer = self._http.request("POST", f"http://{self.prometheus.address}/api/v1/{what}", fields=fields, encode_multipart=False)  # fmt: skip  # noqa: E501
        content = json.loads(answer.data)
        if answer.status != 200:
            raise RuntimeError(f"{fields}: {content}")
        return list(content["data"]["result"])

    def series(self) -> int:
        answer = self._http.request("GET", f"http://{self.prometheus.address}/api/v1/status/tsdb")
        return int(json.loads(answer.data)["data"]["headStats"]["numSeries"])

    def push(self, message: bytes) -> None:
        url = f"http://{self.prometheus.address}/api/v1/otlp/v1/metrics"
        answer = self._http.request("POST", url, body=message, headers={**self.prometheus.headers, "Content-Type": "application/x-protobuf"})  # fmt: skip  # noqa: E501
        if answer.status >= 300:
            raise RuntimeError(f"Prometheus answers {answer.status}: {answer.data[:300]!r}")


def _labels(recording: RecordingRule, metric: Mapping[str, str]) -> bytes:
    return number_attributes({k: v for k, v in metric.items() if k != "__name__"} | dict(recording.labels))


def _queries() -> Iterator[tuple[str, str]]:
    for board in all_dashboards():
        for panel in board.build()["panels"]:
            for target in panel.get("targets", ()):
                if target["datasource"]["type"] == "prometheus":
                    yield f"{board.uid}: {panel['title']}", target["expr"]


def ask_panels(room: Room, repeats: int) -> dict[str, tuple[float, int]]:
    """By panel, seconds of its slowest query (median over repeats) and how many series came."""
    found: dict[str, tuple[float, int]] = {}
    for board in all_dashboards():
        made = board.build()
        range_s = _seconds(made["time"]["from"].removeprefix("now-"))
        step_s = max(15.0, math.ceil(range_s / MAX_POINTS))
        given = {"job": JOB, "node": _node(0), "incident": INCIDENT}
        given |= {"__rate_interval": f"{max(60, step_s + 15):.0f}s", "__range": f"{range_s:.0f}s"}
        for panel in made["panels"]:
            for target in panel.get("targets", ()):
                if target["datasource"]["type"] != "prometheus":
                    continue
                query = target["expr"]
                for name, value in given.items():
                    query = query.replace(f"${name}", value)
                took_s, count = [], 0
                for _ in range(repeats):
                    begin_s = time.monotonic()
                    if target["instant"]:
                        count = len(room.ask("query", query=query, time=f"{room.end_s:.3f}"))
                    else:
                        times = {"start": f"{room.end_s - range_s:.3f}", "end": f"{room.end_s:.3f}"}
                        count = len(room.ask("query_range", query=query, step=f"{step_s:.0f}", **times))
                    took_s.append(time.monotonic() - begin_s)
                before, series = found.get(f"{made['uid']}: {panel['title']}", (0.0, 0))
                found[f"{made['uid']}: {panel['title']}"] = max(before, statistics.median(took_s)), series + count
    return found


def _seconds(words: str) -> float:
    return float(words[:-1]) * {"m": 60, "h": 3600, "d": 86400}[words[-1]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--period", type=int, default=15, help="seconds between points")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    report = Report(f"panels of {given.ranks:,} ranks, {given.hours:g} h at {given.period} s")
    with tempfile.TemporaryDirectory(prefix="whichrank-panels-") as name:
        room = Room(Path(name))
        try:
            room.fill(given.ranks, given.hours, given.period)
            report.shown("series in Prometheus", f"{room.series():,}, {room.series() / given.ranks:.0f} a rank")
            report.shown("recording rules", f"{room.work_out(given.hours):.1%} of a core")
            panels = ask_panels(room, given.repeats)
        finally:
            room.prometheus.service.kill()
    for panel, (seconds, series) in sorted(panels.items(), key=lambda pair: -pair[1][0])[:10]:
        report.shown(panel, f"{seconds:.3f} s, {series} series")
    within = sum(seconds < ASKED_S for seconds, _ in panels.values())
    report.at_most("slowest panel, s", ASKED_S, max(seconds for seconds, _ in panels.values()), k=within, n=len(panels))
    most = max(series for _, series in panels.values())
    report.at_most("most series in a panel", 500, most, k=sum(s <= 500 for _, s in panels.values()), n=len(panels))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
