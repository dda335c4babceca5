"""Sends prepared messages to Kafka, each in its time: the producer's side of ``kafka_throughput``.

``python -m benchmarks.kafka_feed FILE SETTINGS CPU``: FILE is a pickled list of (Unix time in ns, key, value) in order
of time; SETTINGS KafkaSettings as JSON. Says "sent N late L" at the end, L the most a message was late, in seconds.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path

from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import KafkaTrouble, QueueFull, Sent
from whichrank.transport.kafka_settings import KafkaSettings

ANSWER_S = 60.0


def main() -> int:
    path, settings, cpu = Path(sys.argv[1]), KafkaSettings(**json.loads(sys.argv[2])), int(sys.argv[3])
    os.sched_setaffinity(0, {cpu})
    with path.open("rb") as file:
        messages: list[tuple[int, str, bytes]] = pickle.load(file)
    producer = make_client(settings).producer()
    lost: list[KafkaTrouble] = []
    latest_s = 0.0

    def done(sent: Sent | None, trouble: KafkaTrouble | None) -> None:
        if trouble is not None:
            lost.append(trouble)

    for at_ns, key, value in messages:
        while (early_s := (at_ns - time.time_ns()) / 1e9) > 0:
            producer.poll()
            time.sleep(min(early_s, 0.01))
        latest_s = max(latest_s, -early_s)
        while True:
            try:
                producer.send(TOPIC_BLOCKS, key.encode(), value, None, done)
                break
            except QueueFull:
                producer.poll()
                time.sleep(0.001)
    left = producer.flush(ANSWER_S)
    producer.close(5.0)
    print(f"sent {len(messages) - len(lost) - left} late {latest_s:.3f}", flush=True)
    return 0 if not lost and not left else 1


if __name__ == "__main__":
    sys.exit(main())
