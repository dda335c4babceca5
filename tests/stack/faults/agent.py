"""The stream from a process that can be killed, through the publisher that an agent has. Not a test module.

``python -m tests.stack.faults.agent BROKERS PREFIX SPOOL SPOOL_BYTES BEGAN_S SHIFT_NS``: BEGAN_S is the monotonic time
at which the stream began. As an agent's rings do, it has everything from the beginning on: one that starts later sends
what was due so far at once, whether an earlier one has sent it or not. On stdout "PLAYED" once all is handed over,
and "COUNTS {...}" at the end, which SIGTERM asks for.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from tests.stack.faults.load import play, stream
from whichrank.agents.publish.kafka_publisher import KafkaPublisher
from whichrank.commands.services.kafka_service import DELIVERY_S
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_settings import KafkaSettings

CLOSE_S = 10.0
PLAYED, COUNTS = "PLAYED", "COUNTS "


def main() -> None:
    brokers, prefix, spool = sys.argv[1:4]
    spool_bytes, began_s, shift_ns = int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    settings = KafkaSettings(brokers=brokers, topic_prefix=prefix, delivery_timeout_s=DELIVERY_S)
    publisher = KafkaPublisher(
        make_client(settings).producer,
        spool_directory=Path(spool),
        spool_bytes=spool_bytes,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    publisher.start()
    play(
        stream(),
        lambda key, value, priority: publisher.publish(TOPIC_BLOCKS, key, value, priority),
        began_s=began_s,
        shift_ns=lambda each: shift_ns,
        over=ended.is_set,
    )
    print(PLAYED, flush=True)
    ended.wait()
    publisher.close(CLOSE_S)
    print(COUNTS + json.dumps(dict(publisher.stats)), flush=True)


if __name__ == "__main__":
    main()
