"""A small cluster as its metrics tell it: two nodes of eight GPUs, one job, one GPU that is held back, past incidents.

Values are like those of real nodes, so that a page that shows them can be judged: units, ranges, lengths of names.
Ranks' metrics are those of ``benchmarks.panel_speed``; all others are made here, every one that a panel asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.panel_speed import GPUS, JOB, Nodes
from whichrank.grafana.boards import all_dashboards
from whichrank.grafana.elements.metric_names import prometheus_name
from whichrank.telemetry import attributes as names
from whichrank.telemetry.incident import Document, complete_document, incident_id
from whichrank.telemetry.metric_encode import METRICS, Instrument, metric_entry, number_attributes, number_point
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.otlp_wire import RequestBuilder, resource
from whichrank.telemetry.records import Identity, Point
from whichrank.telemetry.vocabulary import Kind, TimeBucket

NS = 10**9
CLUSTER, COUNT = "lab", 2
NODE_NAMES = tuple(f"node-{number:05d}" for number in range(COUNT))
#: The one that is held back: its rank is the one for which the others wait in ``panel_speed.Nodes``.
HOT_NODE, HOT_GPU = NODE_NAMES[0], 7
#: Of the job's GPU time, what it went to.
_SHARES = {
    TimeBucket.PRODUCTIVE: 0.872, TimeBucket.STARTING: 0.018, TimeBucket.STRAGGLER_LOSS: 0.052,
    TimeBucket.CHECKPOINT_SAVE: 0.014, TimeBucket.REWORK: 0.017, TimeBucket.RESTARTING: 0.011,
    TimeBucket.FAULT_BEFORE_DETECTION: 0.002, TimeBucket.FAULT_AFTER_DETECTION: 0.005, TimeBucket.SHUTDOWN: 0.003,
    TimeBucket.DATA_STALL: 0.006,
}  # fmt: skip
#: Of nodes, by metric: the labels of each series, and its value; of a counter, its growth a second.
_Series = Sequence[tuple[Mapping[str, str], float]]


class Cluster:
    """Moment by moment, in order. begin_ns: since when everything counts, Unix."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns, self._last_ns = begin_ns, begin_ns
        self._ranks = Nodes(0, COUNT, begin_ns, frozenset())
        self._draws = np.random.default_rng(7)
        asked = set(re.findall(r"\w+", json.dumps([board.build() for board in all_dashboards()])))
        self._of_nodes = {
            node: {name: series for name, series in _node_series(node).items() if prometheus_name(name) in asked}
            for node in NODE_NAMES
        }
        known = {name for name in node_metrics() if prometheus_name(name) in asked}
        missing = known - set().union(*self._of_nodes.values())
        if missing:
            raise ValueError(f"panels ask for metrics that this cluster does not tell: {sorted(missing)}")

    def messages(self, now_ns: int) -> Iterator[bytes]:
        """OTLP requests of everything at this moment."""
        yield from self._ranks.messages(now_ns, (now_ns - self._last_ns) / NS)
        self._last_ns = now_ns
        for node, series in self._of_nodes.items():
            points = [point for name, some in series.items() for point in self._points(name, some, now_ns)]
            yield from encode_points(Identity(cluster=CLUSTER, node=node), points, limit_bytes=900_000)
        yield request(self._own_entries(now_ns), "whichrank-processors")

    def _points(self, name: str, series: _Series, now_ns: int) -> Iterator[Point]:
        is_counter = node_metrics()[name].instrument.value == Instrument.COUNTER.value
        for labels, value in series:
            if is_counter:
                value *= (now_ns - self._begin_ns) / NS
            elif "temperature" in name or "pressure" in name or "utilization" in name or "load" in name:
                value *= self._draws.normal(1.0, 0.02)
            yield Point(name=name, value=value, attributes=labels, time_ns=now_ns, start_ns=self._begin_ns)

    def _own_entries(self, now_ns: int) -> list[bytes]:
        """Of agents, processors, and the account of the job."""
        age_s = (now_ns - self._begin_ns) / NS
        told: dict[str, _Series] = {
            names.METRIC_AGENT_RANKS: [(_agent(node), float(GPUS)) for node in NODE_NAMES],
            names.METRIC_AGENT_EVENTS_READ: [(_agent(node), 2600.0 * age_s) for node in NODE_NAMES],
            names.METRIC_AGENT_EVENTS_LOST: [(_agent(node), 0.0) for node in NODE_NAMES],
            names.METRIC_AGENT_SENT: [(_agent(node), 41_000.0 * age_s) for node in NODE_NAMES],
            names.METRIC_AGENT_SPOOL: [({names.NODE_ID: node}, 0.0) for node in NODE_NAMES],
            names.METRIC_AGENT_DROPS: [({**_agent(NODE_NAMES[1]), names.DROP_REASON: "queue_full"}, 0.002 * age_s)],
            names.METRIC_PIPELINE_LAG: [({}, 0.4 * self._draws.normal(1.0, 0.1))],
            names.METRIC_PIPELINE_RECORDS_IN: [({}, 480.0 * age_s)],
            names.METRIC_PIPELINE_RECORDS_OUT: [({}, 0.4 * age_s)],
            names.METRIC_PIPELINE_DECODE_ERRORS: [({}, 0.0)],
            names.METRIC_PIPELINE_DEAD_LETTERS: [({}, 0.0)],
            names.METRIC_PIPELINE_STATE_ROWS: [({}, 412.0)],
            names.METRIC_PIPELINE_TIMERS_LATE: [({}, 0.0)],
            names.METRIC_PIPELINE_DROPS: [({names.DROP_REASON: "people_queue"}, 0.0)],
            names.METRIC_PROCESS_CPU_TIME: [({}, 0.07 * age_s)],
        }
        job = {names.RUN_ID: JOB, names.JOB_ID: JOB}
        spent = [({**job, names.GOODPUT_BUCKET: bucket.value}, share * age_s) for bucket, share in _SHARES.items()]
        told[names.METRIC_GOODPUT_TIME] = spent
        told[names.METRIC_GOODPUT_GPU_TIME] = [(labels, seconds * GPUS * COUNT) for labels, seconds in spent]
        return [
            metric_entry(
                name,
                [
                    number_point(
                        number_attributes(labels),
                        float(value),
                        time_ns=now_ns,
                        start_ns=0 if METRICS[name].instrument is Instrument.GAUGE else self._begin_ns,
                    )
                    for labels, value in series
                ],
            )
            for name, series in told.items()
        ]


def request(entries: Sequence[bytes], service: str) -> bytes:
    builder = RequestBuilder("whichrank", 64_000_000)
    builder.add(resource({names.SERVICE_NAME: service}), entries)
    (message,) = builder.take()
    return message


def gauge(document: Document, value: int, now_ns: int) -> bytes:
    """``whichrank.incident.active`` of this incident, as a request."""
    (suspect,) = document["suspects"]
    labels = {
        names.CLUSTER_ID: CLUSTER,
        names.JOB_ID: document["job"]["id"],
        names.INCIDENT_ID: document["id"],
        names.INCIDENT_SEVERITY: document["severity"],
        names.INCIDENT_BUCKET: document["bucket"],
        names.INCIDENT_KIND: document["kind"],
        names.SUSPECT_RANK: str(suspect["rank"]),
        names.SUSPECT_NODE: suspect["node"],
    }
    point = number_point(number_attributes(labels), value, time_ns=now_ns, start_ns=now_ns - NS)
    return request([metric_entry(names.METRIC_INCIDENT_ACTIVE, [point])], "whichrank-processors")


def incident(kind: Kind, bucket: str, severity: str, *, rank: int, onset: float, revision: int = 1) -> Document:
    """Open since ``onset`` (Unix seconds), as whole as the operators make one."""
    node = NODE_NAMES[rank // GPUS]
    others = GPUS * COUNT - 1
    return complete_document(
        {
            "id": incident_id(JOB, str(int(onset)), kind, f"dp {rank}"),
            "revision": revision,
            "change": "opened" if revision == 1 else "updated",
            "state": "open",
            "severity": severity,
            "cluster": CLUSTER,
            "job": {"id": JOB, "name": "llm-7b", "attempt": "a", "owner": "anna", "now": "running"},
            "jobs": [{"id": JOB, "role": "culprit", "victims": others}],
            "bucket": bucket,
            "kind": kind.value,
            "scope": "rank",
            "suspects": [
                {"scope": "rank", "id": str(rank), "rank": rank, "node": node, "gpu": f"GPU-{rank % GPUS}",
                 "pid": 4242, "probability": 0.97,
                 "where": {"file": "train.py", "line": 118, "phase": "data"}}
            ],
            "victims": {"count": others, "ranks": f"0-{others}"},
            "coverage": {"ranks_seen": others + 1, "ranks_expected": others + 1},
            "first_bad": {"step": 7042, "group": "dp", "sequence": 97, "operation": "all_reduce"},
            "times": {"onset": onset, "detected": onset + 3.0, "attributed": onset + 3.5},
            "evidence": [
                {"signal": "collectives", "source": "rings of 16 ranks", "time": onset + 3.0, "value": 1,
                 "shows": f"{others} ranks are in all_reduce 97 of group dp; rank {rank} has not called it"},
                {"signal": "stack", "source": f"py-spy on {node}", "time": onset + 3.5, "value": None,
                 "shows": "its main thread stands in train.py:118, reading the next batch"},
            ],
            "ruled_out": [
                {"who": "rank 3", "looks_guilty": "NCCL's watchdog names it first",
                 "because": "it waits in the same call as all others"}
            ],
            "history": {"suspect_incidents": 1, "last_change": None},
            "confidence": 0.97,
            "advice": {"action": "restart_without_node", "by": "human", "text": f"Restart the job without {node}."},
            "cost": {"gpu_seconds": 192.0},
        }
    )  # fmt: skip


def ended(document: Document, when: float) -> Document:
    """Its last revision."""
    times = {**document["times"], "resolved": when}
    changed = {"revision": document["revision"] + 1, "change": "resolved", "state": "resolved", "times": times}
    return {**document, **changed}


def _agent(node: str) -> dict[str, str]:
    return {names.JOB_ID: JOB, names.NODE_ID: node}


def _node_series(node: str) -> dict[str, _Series]:
    is_hot = node == HOT_NODE
    gpus = [{"hw.id": f"GPU-{number}", "hw.name": "NVIDIA H100 80GB HBM3"} for number in range(GPUS)]
    hot = [is_hot and number == HOT_GPU for number in range(GPUS)]
    ports = [f"mlx5_{number}" for number in range(4)]
    mounts = {"/": (38e9, 250e9, "ext4"), "/scratch": (610e12, 800e12, "lustre")}
    collectors = ("gpu", "host", "kernel_log", "network", "processes", "storage")
    return {
        "whichrank.collector.failures": [({"whichrank.collector": "network"}, 0.001 if not is_hot else 0.0)],
        "whichrank.collector.watching": [
            ({"whichrank.collector": each}, float(is_hot or each != "network")) for each in collectors
        ],
        "hw.gpu.utilization": [({**gpu, "hw.gpu.task": "general"}, 0.955) for gpu in gpus],
        "hw.temperature": [
            ({**gpu, "hw.sensor_location": "gpu"}, 86.0 if held else 57.0 + number)
            for number, (gpu, held) in enumerate(zip(gpus, hot, strict=True))
        ],
        "whichrank.gpu.info": [
            ({**gpu, "hw.vendor": "NVIDIA", "hw.model": "NVIDIA H100 80GB HBM3", "hw.driver_version": "570.86.15"}, 1.0)
            for gpu in gpus
        ],
        "whichrank.gpu.speed": [
            ({**gpu, "whichrank.gpu.clock": "sm"}, 1.41e9 if held else 1.755e9)
            for gpu, held in zip(gpus, hot, strict=True)
        ],
        "whichrank.gpu.throttled": [
            ({**gpu, "whichrank.gpu.reason": "hw_thermal"}, 0.35 if held else 0.0)
            for gpu, held in zip(gpus, hot, strict=True)
        ],
        "whichrank.gpu.ecc.errors": [
            ({**gpu, "error.type": "corrected", "whichrank.gpu.memory": "hbm"}, 0.01 if held else 0.0)
            for gpu, held in zip(gpus, hot, strict=True)
        ],
        "whichrank.gpu.nvlink.links": [({**gpu, "whichrank.gpu.nvlink.state": "up"}, 18.0) for gpu in gpus],
        "hw.errors": [({"hw.id": "mlx5_3", "hw.type": "network", "error.type": "symbol_error"}, 0.02 * is_hot)],
        "hw.network.io": [
            ({"hw.id": port, "network.io.direction": way}, 21e9 + 0.4e9 * number)
            for number, port in enumerate(ports)
            for way in ("receive", "transmit")
        ],
        "whichrank.network.carrier.changes": [({"hw.id": "mlx5_3"}, 0.001 * is_hot)],
        "whichrank.pressure.share": [
            ({"whichrank.resource": resource_of, "whichrank.kind": kind}, value)
            for resource_of, kind, value in (
                ("cpu", "some", 0.03),
                ("memory", "some", 0.002),
                ("memory", "full", 0.001),
                ("io", "some", 0.05),
                ("io", "full", 0.02),
            )
        ],
        "whichrank.memory.available.share": [({}, 0.62)],
        "whichrank.cpu.load_per_core": [({}, 0.41)],
        "whichrank.clock.offset": [({}, 12e-6)],
        "system.filesystem.usage": [
            ({"system.filesystem.mountpoint": at, "system.filesystem.type": kind, "system.filesystem.state": "used"}, u)
            for at, (u, _, kind) in mounts.items()
        ],
        "system.filesystem.limit": [
            ({"system.filesystem.mountpoint": at, "system.filesystem.type": kind}, limit)
            for at, (_, limit, kind) in mounts.items()
        ],
        "whichrank.mount.probe.age": [
            ({"system.filesystem.mountpoint": at, "system.filesystem.type": kind}, 0.4)
            for at, (_, _, kind) in mounts.items()
        ],
    }
