"""The Flink job on a real cluster and a real broker: the incidents of the embedded engine, kill -9 or not."""

from __future__ import annotations

import threading
import time

from tests.same_incidents.facts import first_difference
from tests.stack.flink.fed_jobs import FedJob, Feed, by_id, messages_of, repeated, twin_of
from tests.stack.flink.submitted import submit
from tests.stack.parts.flink import Flink
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from whichrank.telemetry.topics import TOPIC_DLQ

SPEED = 6.0
JOBS = (
    FedJob(scenario="process_killed+never_enters", ranks=16, number=1),
    FedJob(scenario="slow_gpu", ranks=16, number=2, after_s=7.0),
    FedJob(scenario="other_branch", ranks=16, number=3, after_s=13.0),
    FedJob(scenario="gpu_off_the_bus+harmless", ranks=16, number=4, after_s=3.0),
)


def test_a_killed_taskmanager_changes_nothing(kafka: Kafka, flink: Flink, topic_prefix: str) -> None:
    feed = Feed(kafka, topic_prefix)
    messages = messages_of(JOBS, feed.partitions)
    feeding = threading.Thread(target=lambda: feed.run(messages, SPEED), daemon=True)
    submit(flink, feed, parallelism=2)
    feeding.start()
    twin = twin_of(messages)
    eventually(lambda: bool(feed.incidents()), what=f"a first incident: {flink.why()}")
    before = flink.completed_checkpoints()
    flink.taskmanagers[0].kill()
    flink.add_taskmanager()
    eventually(lambda: flink.completed_checkpoints() > before, what=f"a checkpoint after the kill: {flink.why()}")
    feeding.join(300)
    eventually(lambda: len(feed.incidents()) >= len(twin), what=f"{len(twin)} revisions, {flink.why()}")
    time.sleep(3.0)  # what is told twice would come now
    told = feed.incidents()
    assert repeated(told) == []
    assert first_difference(by_id(twin), by_id(told)) == ""
    assert feed.count(TOPIC_DLQ) == 0
    flink.command("cancel", flink.job_id())
