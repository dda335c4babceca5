"""A simulation onto Kafka, at the pace of life: brokers stamp what arrives, so it must come when it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...simulator.sent import SentMessage
from ...transport.kafka import make_client
from ...transport.kafka_client import Producer, QueueFull
from ...transport.kafka_settings import KafkaSettings
from .judge import encoded

_PATIENCE_S = 30.0


class KafkaSink:
    """``take`` windows; each message is sent when it is due. Raises KafkaTrouble where Kafka refuses."""

    def __init__(self, settings: KafkaSettings, *, clock_s: Callable[[], float] = time.time) -> None:
        self._producer: Producer = make_client(settings).producer()
        self._clock_s = clock_s
        self._began_s = clock_s()
        self.messages = 0

    @property
    def began_ns(self) -> int:
        """Unix nanoseconds of the simulation's begin."""
        return int(self._began_s * 1e9)

    def take(self, until_s: float, sent: Sequence[SentMessage]) -> None:
        """Sends each message at its own time, then waits until ``until_s`` (seconds since the simulation's begin).

        Raises QueueFull where the producer has had no room for 30 s.
        """
        for message in sent:
            self._wait_until(message.at_s)
            for value in encoded(message):
                self._send(message, value)
        self._wait_until(until_s)
        self._producer.poll()

    def close(self) -> int:
        """Waits some seconds for answers, and closes the producer; how many messages nobody has confirmed."""
        left = self._producer.flush(_PATIENCE_S)
        self._producer.close(1.0)
        return left

    def _wait_until(self, at_s: float) -> None:
        time.sleep(max(0.0, self._began_s + at_s - self._clock_s()))

    def _send(self, message: SentMessage, value: bytes) -> None:
        until_s = self._clock_s() + _PATIENCE_S
        while True:
            try:
                self._producer.send(message.topic, message.key.encode(), value)
            except QueueFull:
                if self._clock_s() > until_s:
                    raise
                self._producer.poll()
                time.sleep(0.01)
            else:
                self.messages += 1
                return
