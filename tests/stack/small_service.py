"""``python -m tests.stack.small_service SETTINGS STATE INSTANCE``: a Service with the small operators, to be killed.

SETTINGS: KafkaSettings as JSON. It says "ready" once it leads or stands by, and ends well on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from tests.processors.runner_examples import make_operators
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.runner_service import Role, Service
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_log import KafkaLog
from whichrank.transport.kafka_settings import KafkaSettings


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    settings = KafkaSettings(**json.loads(sys.argv[1]))
    log = KafkaLog(
        make_client(settings),
        [TOPIC_BLOCKS, TOPIC_LOGS],
        instance=sys.argv[3],
        transactional_id="processors",
        identity=settings.topic_prefix,
        report=say,
    )
    runner = EmbeddedRunner(
        log,
        Path(sys.argv[2]),
        make_operators(),
        lambda record: None,
        live=False,
        start_after=log.start_position(),
        report=say,
        input_topics=[TOPIC_BLOCKS],
    )
    service = Service(runner, log, shadow=False, report=say)
    over = False

    def end(number: int, frame: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, end)
    is_ready = False
    while not over:
        time.sleep(service.turn())
        if not is_ready and service.role is not Role.STARTING:
            is_ready = True
            say(f"ready as {service.role.value}")
    runner.close()
    log.close()


if __name__ == "__main__":
    main()
