"""The agent's publisher alone, fed with numbered messages, in a process that can be killed. Not a test module.

usage: numbered_agent.py BROKERS PREFIX FOLDER SPOOL_BYTES FIRST COUNT PAUSE_S
"COUNTS {...}" on stdout with the publisher's counters, ten times a second; ends by SIGTERM as the agent does.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from whichrank.agents.base.priority import Priority
from whichrank.agents.publish.kafka_publisher import KafkaPublisher
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_settings import KafkaSettings

KEYS = 5


def message(number: int) -> tuple[str, str, bytes, Priority]:
    """Of a size, key, topic and priority that follow from its number."""
    priority = Priority(number % 5)
    topic = TOPIC_LOGS if priority in (Priority.EVIDENCE, Priority.COPIES) else TOPIC_BLOCKS
    return topic, f"job-{number % KEYS}", b"%d %s" % (number, b"x" * (200 + number % 800)), priority


def number_of(value: bytes) -> int:
    return int(value.split(b" ", 1)[0])


def main() -> None:
    brokers, prefix, folder = sys.argv[1:4]
    spool_bytes, first, count, pause_s = int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]), float(sys.argv[7])
    settings = KafkaSettings(brokers=brokers, topic_prefix=prefix, delivery_timeout_s=3600.0)
    publisher = KafkaPublisher(
        make_client(settings).producer,
        spool_directory=Path(folder),
        spool_bytes=spool_bytes,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    publisher.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    published = 0
    while not ended.wait(pause_s if published < count else 0.1):
        if published < count:
            publisher.publish(*message(first + published))
            published += 1
        if published % 50 == 0 or published >= count:
            print("COUNTS", json.dumps({**publisher.stats, "published": published}), flush=True)
    publisher.close(1.5)
    print("COUNTS", json.dumps({**publisher.stats, "published": published}), flush=True)


if __name__ == "__main__":
    main()
