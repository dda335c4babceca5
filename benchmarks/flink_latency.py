"""How much later an incident of Flink's is seen than the embedded engine's of the same messages, at the pace of life.

Both get the same jobs at the same moments, with the broker's stamps and beats as in life. What counts is when a reader
of committed messages sees the first revision of an incident.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.stack.flink.fed_jobs import FedJob, Feed, messages_of
from tests.stack.flink.submitted import submit
from tests.stack.parts.flink import Flink
from tests.stack.parts.kafka import Kafka
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Incident
from whichrank.telemetry.topics import TOPIC_INCIDENTS

#: Of the job's own setting.
CHECKPOINT_S = 1.0
#: After the last message both have told all within so long, on a machine with others at work.
AFTER_S, PATIENCE_S = 20.0, 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRun:
    """later_s: of each incident that both have told, ascending. only_one: told by one of them alone, and what of it."""

    later_s: Sequence[float]
    only_one: Sequence[str]

    @property
    def p95_s(self) -> float:
        return self.later_s[min(len(self.later_s) - 1, round(0.95 * len(self.later_s)))] if self.later_s else 0.0

    @property
    def is_ok(self) -> bool:
        return bool(self.later_s) and not self.only_one and self.p95_s <= CHECKPOINT_S + 1.0


class FirstSeen:
    """Notes when each incident is seen first, in a thread of its own."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ends = threading.Event()
        self.seen_s: dict[str, float] = {}
        self.kinds: dict[str, str] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(10.0)

    def _read(self) -> None:
        consumer = self._feed.client.consumer(committed_only=True)
        consumer.partitions(TOPIC_INCIDENTS)
        consumer.assign({(TOPIC_INCIDENTS, 0): 0})
        while not self._ends.is_set():
            for message in consumer.poll(0.05):
                for payload in decode_logs(TOPIC_INCIDENTS, message.value):
                    if isinstance(payload, Incident):
                        name = str(payload.document["id"])
                        self.kinds.setdefault(name, str(payload.document["kind"]))
                        self.seen_s.setdefault(name, time.monotonic())
        consumer.close()


def measure_latency(kafka: Kafka, flink: Flink, jobs: Sequence[FedJob], prefix: str, folder: Path) -> LatencyRun:
    """One run of some minutes."""
    feeds = [Feed(kafka, f"{prefix}{name}.", brokers_stamps=True) for name in ("embedded", "flink")]
    messages = messages_of(jobs, feeds[0].partitions)
    submit(flink, feeds[1], parallelism=2, beats=4)
    embedded = _embedded(feeds[0], folder)
    seen = [FirstSeen(feed) for feed in feeds]
    try:
        time.sleep(10.0)
        threads = [threading.Thread(target=feed.run, args=(messages, 1.0), daemon=True) for feed in feeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(AFTER_S)
        until_s = time.monotonic() + PATIENCE_S
        while set(seen[0].seen_s) != set(seen[1].seen_s) and time.monotonic() < until_s:
            time.sleep(1.0)
    finally:
        for each in seen:
            each.close()
        embedded.terminate()
        embedded.wait(60)
        flink.command("cancel", flink.job_id())
    one, other = (each.seen_s for each in seen)
    both = set(one) & set(other)
    alone = [
        f"{kind} by {engine} alone"
        for engine, each, of in (("embedded", seen[0], other), ("Flink", seen[1], one))
        for name, kind in each.kinds.items()
        if name not in of
    ]
    return LatencyRun(later_s=sorted(other[name] - one[name] for name in both), only_one=alone)


def _embedded(feed: Feed, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "embedded.log").open("ab") as log:
        return subprocess.Popen(
            [Path(sys.executable).with_name("whichrank"), "process", "--state", folder / "embedded", "--health", ""],
            env={
                **os.environ,
                "WHICHRANK_KAFKA": feed.settings.brokers,
                "WHICHRANK_KAFKA_TOPIC_PREFIX": feed.settings.topic_prefix,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
