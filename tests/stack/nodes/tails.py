"""What lies on Kafka since a run began: the incidents of its jobs, with the broker's stamps, and who started when."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.scenarios.runner import IncidentTail
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Incident
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_INCIDENTS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka_client import Client, Consumer

_POLL_S = 0.005


def _from_now_on(client: Client, topic: str) -> Consumer:
    reader = client.consumer(committed_only=True)
    partitions = [(topic, number) for number in reader.partitions(topic)]
    reader.assign({partition: end for partition, (_, end) in reader.bounds(partitions).items()})
    return reader


class KafkaTail(IncidentTail):
    """Follows the topic of incidents as ``IncidentTail`` follows a file; times are those at which they were appended.

    others: jobs whose revisions are kept apart. copy: gets every revision as a line.
    """

    def __init__(self, client: Client, job: str, others: Collection[str], copy: Path) -> None:
        super().__init__(copy)
        self._job, self._others = job, others
        self._reader = _from_now_on(client, TOPIC_INCIDENTS)
        self.of_others: list[dict[str, Any]] = []
        #: By incident and revision: how often it lies there.
        self.copies: dict[tuple[str, int], int] = {}

    def poll(self) -> None:
        for message in self._reader.poll(_POLL_S):
            for payload in decode_logs(TOPIC_INCIDENTS, message.value):
                if isinstance(payload, Incident):
                    self._take(dict(payload.document), message.stamp_ns / 1e9)

    def _take(self, document: dict[str, Any], stamp_s: float) -> None:
        job = document["job"]["id"]
        if job in self._others:
            self.of_others.append(document)
        if job != self._job:
            return
        with self._path.open("a") as file:
            file.write(json.dumps({"appended": stamp_s, **document}) + "\n")
        key = (document["id"], int(document["revision"]))
        self.copies[key] = self.copies.get(key, 0) + 1
        self.revisions.append(document)
        self.seen.setdefault(document["id"], stamp_s)
        if document["state"] == "resolved":
            self.resolved_seen.setdefault(document["id"], stamp_s)
        else:
            self.resolved_seen.pop(document["id"], None)

    def all_resolved(self) -> bool:
        return self.resolved_seen.keys() == self.seen.keys()

    def close(self) -> None:
        self._reader.close()


class Launches:
    """Which launches (``identity.attempt``) of a job told of a rank that started, and when the first such word came."""

    def __init__(self, client: Client, job: str) -> None:
        self._job = job
        self._reader = _from_now_on(client, TOPIC_BLOCKS)
        self.first_s: dict[str, float] = {}

    def read(self) -> None:
        """To the present end."""
        while messages := self._reader.poll(0.5):
            for message in messages:
                for payload in decode_logs(TOPIC_BLOCKS, message.value):
                    if not isinstance(payload, Event) or payload.identity.job != self._job:
                        continue
                    if payload.name is EventName.RANK_STARTED:
                        self.first_s.setdefault(payload.identity.attempt, message.stamp_ns / 1e9)

    def close(self) -> None:
        self._reader.close()
