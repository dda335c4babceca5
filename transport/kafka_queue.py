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
        """Counts a message of ``size`` bytes as queued.

        Raises QueueFull without room; an empty queue has room for any.
        """
        with self._lock:
            if self._messages and self._bytes + size > self._limit_bytes:
                raise self._full()
            self._bytes += size
            self._messages += 1

    def give_back(self, size: int) -> None:
        """Counts a message of ``size`` bytes as gone: it was answered, or never taken."""
        with self._lock:
            self._bytes -= size
            self._messages -= 1

    @property
    def messages(self) -> int:
        """How many messages the client was handed and has not answered for."""
        return self._messages

    def full(self) -> QueueFull:
        """The error to raise where a library's own queue is full."""
        with self._lock:
            return self._full()

    def _full(self) -> QueueFull:
        return QueueFull(f"{self._bytes} bytes wait for Kafka at {self._brokers}")
