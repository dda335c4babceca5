"""The road over Kafka at full load: broker and producer on one core, the loop of ``whichrank process`` on the other.

Blocks of 4 real ranks replicated to jobs of 32, each with ids, clocks and jitter of its own, some of them in a fault;
sent in real time for more than a minute, in waves of jobs. State is persisted, incidents go out in transactions.
What counts is the rate at which collective records went through while the lag stayed bounded, and was 0 at the end.
Beside it: what the same records cost as plain OTLP data points. With ``--behind`` the consumer comes only when so many
records lie there: it must catch up while more come, and take nothing of it for a hang.
Run: ``python -m benchmarks.kafka_throughput [--capture DIR] [--jobs N] [--client confluent-kafka] [--behind 1000000]``.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.job_operator import RANKS_PER_NODE, read_capture, record
from benchmarks.job_operator_load import fault_of, replicate, rows_of
from benchmarks.report import Report
from tests.stack.faults.load import at
from tests.stack.parts.kafka import Kafka
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.runner_service import Service
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Block, Event, Incident, Record
from whichrank.telemetry.tables import COLLECTIVES
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_INCIDENTS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka import CLIENTS, make_client
from whichrank.transport.kafka_client import Admin, TopicFacts
from whichrank.transport.kafka_log import KafkaLog
from whichrank.transport.kafka_read import read_whole
from whichrank.transport.kafka_settings import KafkaSettings
from whichrank.transport.kafka_topics import TOPICS, check_topics, facts_of, identity_of

ASKED_RECORDS_PER_S = 200_000
ASKED_SECONDS = 60.0
ASKED_GROUPS = 64
ASKED_FAULTY = 0.05
ASKED_LAG_S = 5.0
PACE = 2
WAVES = 3
PARTITIONS = 12
#: From the first message that is due until all is prepared and everybody is connected.
AHEAD_S = 20.0
OTHER_CORE, OUR_CORE = 0, 1
SETTLE_S = 60.0
#: Of the rows that are turned into plain data points.
POINTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Messages by the time at which they are due, relative to the first."""

    messages: list[tuple[int, str, list[Block | Event]]]
    records: int
    groups: int
    seconds: float
    jobs: int


def prepare(recorded: list[list[Record]], jobs: int) -> Prepared:
    """``jobs`` at a time, in waves one after the other."""
    messages: list[tuple[int, str, list[Block | Event]]] = []
    records, begin_ns = 0, 0
    groups: set[tuple[int, str]] = set()
    for wave in range(WAVES):
        end_ns = begin_ns
        for number in range(wave * jobs, (wave + 1) * jobs):
            streams = replicate(recorded, number, RANKS_PER_NODE)
            first_ns = streams[0][0].stamp_ns
            for batch in streams:
                after_ns = begin_ns + batch[-1].stamp_ns - first_ns
                end_ns = max(end_ns, after_ns)
                payloads = [at(r.payload, begin_ns - first_ns) for r in batch if isinstance(r.payload, Block | Event)]
                messages.append((after_ns, f"job-{number}", payloads))
                for each in batch:
                    for rows in rows_of(each, EventName.BLOCK_COLLECTIVES):
                        records += len(rows)
                    if isinstance(each.payload, Block):
                        groups.update((number, group.uid) for group in each.payload.groups)
        begin_ns = end_ns
    messages.sort(key=lambda message: message[0])
    return Prepared(messages=messages, records=records, groups=len(groups), seconds=begin_ns / 1e9, jobs=WAVES * jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--capture", type=Path, help="capture folder of an earlier run instead of recording one")
    parser.add_argument("--jobs", type=int, default=40, help="of 32 ranks, at a time")
    parser.add_argument("--client", choices=CLIENTS, default="kafka-python")
    parser.add_argument("--behind", type=int, default=0, help="records that lie there when the consumer starts")
    options = parser.parse_args()
    behind = f", {options.behind:,} records behind" if options.behind else ""
    report = Report(f"over Kafka, end to end, {options.client}{behind}: records of real ranks, replicated")
    with tempfile.TemporaryDirectory() as folder:
        capture = options.capture or record(Path(folder), PACE)
        recorded = list(read_capture(capture))
        prepared = prepare(recorded, options.jobs)
        kafka = Kafka(Path(folder) / "kafka", is_quick=False)
        try:
            kafka.start()
            os.sched_setaffinity(kafka.service.pid, {OTHER_CORE})
            measure(report, prepared, kafka, Path(folder), options.client, options.behind)
        finally:
            kafka.kill()
        plain_points(report, recorded)
    return report.finish()


def measure(report: Report, prepared: Prepared, kafka: Kafka, folder: Path, client: str, behind: int) -> None:
    settings = kafka.settings(client=client)
    admin = make_client(settings).admin()
    for plan in TOPICS:
        admin.create(facts_of(plan, partitions=PARTITIONS, replication=1, max_message_bytes=1_064_000))
    identity = identity_of(admin, _once_there(admin))
    feed, began_ns = start_feed(prepared, settings, folder)
    os.sched_setaffinity(0, {OUR_CORE})
    starts_ns = began_ns + _due_ns(prepared, behind) if behind else 0
    time.sleep(max(0.0, (starts_ns - time.time_ns()) / 1e9))
    log = KafkaLog(
        make_client(settings),
        [TOPIC_BLOCKS],
        instance="bench",
        transactional_id="whichrank-process",
        identity=identity,
        report=print,
    )
    runner = EmbeddedRunner(
        log,
        folder / "state.sqlite",
        [JobOperator(), EntityOperator(), ClusterOperator()],
        lambda record: None,
        live=False,
        start_after=log.start_position(),
        input_topics=[TOPIC_BLOCKS],
        report=print,
    )
    service = Service(runner, log, shadow=False, report=print)
    lags: list[float] = []
    caught_up_ns = 0
    cpu = time.process_time()
    while feed.poll() is None or not log.caught_up():
        time.sleep(service.turn())
        if time.time_ns() > began_ns:
            lags.append(log.lag_s())
            if not caught_up_ns and log.caught_up():
                caught_up_ns = time.time_ns()
        if feed.poll() is not None and time.time_ns() > began_ns + (prepared.seconds + SETTLE_S) * 1e9:
            break
    ended_ns = time.time_ns()
    cpu = time.process_time() - cpu
    end_lag_s = log.lag_s()
    until = time.monotonic() + 10.0
    while time.monotonic() < until:  # what is concluded from silence
        time.sleep(service.turn())
    runner.close()
    log.close()
    took_s = (ended_ns - began_ns) / 1e9
    said = feed.stdout.read().decode().strip() if feed.stdout else ""
    report.at_least("seconds", ASKED_SECONDS, took_s)
    report.at_least("groups", ASKED_GROUPS, prepared.groups)
    if behind:
        report.at_least("records that lay there when it started", behind, _due(prepared, starts_ns - began_ns))
        report.all_of("caught up while more came", int(bool(caught_up_ns)), 1)
        report.shown("seconds that it took", f"{(caught_up_ns - starts_ns) / 1e9:.1f}")
    else:
        report.at_least("collective records a second, end to end", ASKED_RECORDS_PER_S, prepared.records / took_s)
        report.at_most("lag, 99th of 100 (s)", ASKED_LAG_S, float(np.percentile(lags, 99)) if lags else float("inf"))
    report.shown("of the consumer's core", f"{cpu / took_s:.0%}; {prepared.records / cpu / 1e6:.2f} M records a second")
    report.shown("sender", said)
    report.at_most("lag at the end (s)", 0.0, end_lag_s)
    check_faults(report, prepared, settings)


def _collectives(payloads: list[Block | Event]) -> int:
    blocks = (each for each in payloads if isinstance(each, Block) and each.name is EventName.BLOCK_COLLECTIVES)
    return sum(len(block.rows) for block in blocks)


def _due(prepared: Prepared, after_ns: int) -> int:
    """Collective records of the messages that are due by then."""
    return sum(_collectives(payloads) for due_ns, _, payloads in prepared.messages if due_ns <= after_ns)


def _due_ns(prepared: Prepared, records: int) -> int:
    """After which time so many are due."""
    for due_ns, _, payloads in prepared.messages:
        records -= _collectives(payloads)
        if records <= 0:
            return due_ns
    raise ValueError(f"the load has not so many records: {records:,} are missing")


def _once_there(admin: Admin) -> Mapping[str, TopicFacts]:
    until = time.monotonic() + 30.0
    while True:
        try:
            return check_topics(admin)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def start_feed(prepared: Prepared, settings: KafkaSettings, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The sender, and when its first message is due (Unix ns): after all has been encoded for that time."""
    sample = prepared.messages[:: max(1, len(prepared.messages) // 200)]
    clock = time.perf_counter()
    for _, _, payloads in sample:
        encode_payloads(payloads)
    encoding_s = (time.perf_counter() - clock) / len(sample) * len(prepared.messages)
    began_ns = time.time_ns() + round((AHEAD_S + 2.0 * encoding_s) * 1e9)
    messages = [
        (began_ns + after_ns, key, encode_payloads([at(payload, began_ns) for payload in payloads]))
        for after_ns, key, payloads in prepared.messages
    ]
    path = folder / "feed.pickle"
    with path.open("wb") as file:
        pickle.dump(messages, file)
    given = json.dumps({**asdict(replace(settings, queue_bytes=256 << 20)), "tls_ca": None})
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.kafka_feed", str(path), given, str(OTHER_CORE)]
    return subprocess.Popen(command, stdout=subprocess.PIPE), began_ns


def check_faults(report: Report, prepared: Prepared, settings: KafkaSettings) -> None:
    last: dict[str, dict[str, object]] = {}
    for message in read_whole(make_client(settings), TOPIC_INCIDENTS):
        for payload in decode_logs(TOPIC_INCIDENTS, message.value):
            if isinstance(payload, Incident) and payload.document["bucket"] != "telemetry":
                last[str(payload.document["id"])] = dict(payload.document)
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for document in last.values():
        job, suspects = document["job"], document["suspects"]
        assert isinstance(job, dict)
        assert isinstance(suspects, list)
        ranks = tuple(suspect["rank"] for suspect in suspects)
        found.setdefault(str(job["id"]), []).append((str(document["kind"]), ranks))
    faulty = {f"job-{n}": fault_of(n) for n in range(prepared.jobs) if fault_of(n)}
    right = sum(found.get(job) == [fault] for job, fault in faulty.items())
    report.at_least("share of jobs in a fault", ASKED_FAULTY, len(faulty) / prepared.jobs)
    report.all_of("faults: one incident, right kind and rank", right, len(faulty))
    for job in sorted(set(found) | set(faulty)):
        if found.get(job, []) != ([faulty[job]] if job in faulty else []):
            print(f"  {job}: {faulty.get(job, 'sound')}, said: {found.get(job, 'nothing')}", flush=True)
    sound = prepared.jobs - len(faulty)
    quiet = sum(f"job-{n}" not in found for n in range(prepared.jobs) if not fault_of(n))
    report.all_of("sound jobs without an incident", quiet, sound)


# --- the same as plain OTLP -------------------------------------------------------------------------------------------
def plain_points(report: Report, recorded: list[list[Record]]) -> None:
    """One data point a record with its attributes: read as whoever has no packed blocks must."""
    rows = np.concatenate(
        [rows for batch in recorded for each in batch for rows in rows_of(each, EventName.BLOCK_COLLECTIVES)]
    )
    rows = rows[:POINTS]
    requests = [_points(rows[start : start + 1000]) for start in range(0, len(rows), 1000)]
    clock = time.process_time()
    walked = sum(1 for value in requests for _ in _walk(value))
    plain_s = (time.process_time() - clock) / walked
    packed = encode_payloads([_block_of(recorded, rows[:700])])
    clock, times = time.process_time(), 200
    for _ in range(times):
        decode_logs(TOPIC_BLOCKS, packed)
    packed_s = (time.process_time() - clock) / (times * min(len(rows), 700))
    size = sum(map(len, requests)) / len(rows)
    report.shown("plain OTLP points: decoded per second, bytes each", f"{1 / plain_s / 1e3:.0f} k, {size:.0f}")
    report.shown("packed blocks: the same", f"{1 / packed_s / 1e6:.1f} M, {len(packed) / min(len(rows), 700):.0f}")


def _points(rows: np.ndarray) -> bytes:
    request = ExportMetricsServiceRequest()
    metric = (
        request.resource_metrics.add().scope_metrics.add().metrics.add(name="whichrank.collective.duration", unit="s")
    )
    for row in rows:
        point = metric.gauge.data_points.add()
        point.time_unix_nano = int(row["enqueued_ns"])
        point.as_double = max(0, int(row["done_ns"]) - int(row["enqueued_ns"])) / 1e9
        for name in ("rank", "group", "op", "seq", "bytes", "step", "dtype", "phase"):
            pair = point.attributes.add()
            pair.key, pair.value.int_value = f"whichrank.{name}", int(row[name])
    return request.SerializeToString()


def _walk(value: bytes) -> Iterator[dict[str, int | float]]:
    request = ExportMetricsServiceRequest.FromString(value)
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.gauge.data_points:
                    found: dict[str, int | float] = {pair.key: pair.value.int_value for pair in point.attributes}
                    found["time"], found["value"] = point.time_unix_nano, point.as_double
                    yield found


def _block_of(recorded: list[list[Record]], rows: np.ndarray) -> Block:
    blocks = (each.payload for batch in recorded for each in batch if isinstance(each.payload, Block))
    first = next(block for block in blocks if block.name is EventName.BLOCK_COLLECTIVES)
    fitting = rows.astype(COLLECTIVES)
    fitting["group"] = 0
    return replace(first, rows=fitting)


if __name__ == "__main__":
    sys.exit(main())
