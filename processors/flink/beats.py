"""Beats: an empty message into every input partition, some times a second, by which a reader knows how far it is.

A partition's stamps never go back, so who has read a beat has read all that came before it. The least of all the
partitions' newest stamps is a time up to which everything is here: it passes no backlog, however long nobody has read,
and it goes on where nobody says anything. An empty message is a valid OTLP request of every sort that holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...transport.kafka_client import Client, KafkaTrouble, Producer
from ...transport.partition_keys import key_of_each

#: New partitions are looked for this often, and a connection that failed is tried again.
LOOK_S = 15.0
KEY_PREFIX = "whichrank-beat-"


class BeatWriter:
    """Writes beats; what Kafka does not take is missing, and time stands still meanwhile. For one thread."""

    def __init__(
        self,
        client: Client,
        topics: Sequence[str],
        report: Callable[[str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._topics, self._report, self._monotonic_s = client, tuple(topics), report, monotonic_s
        self._producer: Producer | None = None
        self._keys: dict[str, Sequence[bytes]] = {}
        self._looked_s = -LOOK_S
        self._trouble = ""
        #: Beats given to the client, in this process.
        self.sent = 0

    def beat(self) -> None:
        """One beat into each partition."""
        try:
            self._look()
            if self._producer is None:
                self._producer = self._client.producer()
            for topic, keys in self._keys.items():
                for key in keys:
                    self._producer.send(topic, key, b"")
                    self.sent += 1
            self._producer.poll()
        except KafkaTrouble as trouble:
            self._report_once(str(trouble))
        else:
            self._trouble = ""

    def close(self) -> None:
        """Lets go of the connection; what is under way may be lost."""
        if self._producer is not None:
            self._producer.close(0.5)
            self._producer = None

    def _look(self) -> None:
        if self._monotonic_s() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._monotonic_s()
        admin = self._client.admin()
        try:
            found = admin.describe(self._topics)
        finally:
            admin.close()
        self._keys = {name: key_of_each(facts.partitions, KEY_PREFIX) for name, facts in found.items()}

    def _report_once(self, line: str) -> None:
        if line != self._trouble:
            self._trouble = line
            self._report(f"no beats, so that time stands still: {line}")
