"""How much of a client's queue is taken: the bound in bytes that neither library keeps as we need it."""

from __future__ import annotations

import threading

from .kafka_client import QueueFull
from .kafka_settings import KafkaSettings


class QueuedBytes:
    """Messages that a client was handed and has not answered. Thread-safe."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._limit_bytes, self._brokers = settings.queue_bytes, settings.brokers
        self._lock = threading.Lock()
        self._bytes = 0
        self._messages = 0

    def take(self, size: int) -> None:
        """Room for a message of this size. A queue that is empty has room for any. Raises QueueFull."""
        with self._lock:
            if self._messages and self._bytes + size > self._limit_bytes:
                raise self._full()
            self._bytes += size
            self._messages += 1

    def give_back(self, size: int) -> None:
        """The message was answered, or never taken."""
        with self._lock:
            self._bytes -= size
            self._messages -= 1

    @property
    def messages(self) -> int:
        """Handed to the client and not answered for."""
        return self._messages

    def full(self) -> QueueFull:
        """For a library that has a bound of its own."""
        with self._lock:
            return self._full()

    def _full(self) -> QueueFull:
        return QueueFull(f"{self._bytes} bytes wait for Kafka at {self._brokers}")
