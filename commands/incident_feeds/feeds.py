"""Where incidents come from: the topic, or the file of a run. Each says where it goes on, and reads only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from ...telemetry.incident import check_document
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident
from ...telemetry.otlp import decode_logs
from ...telemetry.records import Incident
from ...telemetry.regular_files import open_regular
from ...telemetry.topics import TOPIC_INCIDENTS
from ...transport.kafka_client import Client, Consumer, KafkaTrouble
from ...transport.kafka_topics import check_topics
from ..run_folder.incident_log import read_incident_line
from ..run_folder.run_directory import RunDirectory, Unusable
from .feed_position import FeedPosition
from .incident_times import told_at

_MAX_LINE_BYTES = 16 << 20
Revisions = list[tuple[IncidentDocument, float]]


class Feed(Protocol):
    """``where`` says what is read. unreadable: how many messages or lines are no incident."""

    where: str
    unreadable: int

    def read(self, wait_s: float) -> Revisions:
        """Revisions that have come since, with the time of each (Unix seconds); waits up to ``wait_s`` for one.

        Raises KafkaTrouble, Unusable.
        """
        ...

    @property
    def position(self) -> FeedPosition:
        """The position behind what ``read`` has given."""
        ...

    @property
    def is_caught_up(self) -> bool:
        """Whether all that was there at the last look has been read."""
        ...

    def close(self) -> None:
        """Lets go of connections; the next ``read`` connects again."""


class KafkaFeed:
    """The topic of incidents from a position on; without one from what retention has left."""

    def __init__(self, client: Client, position: FeedPosition, brokers: str) -> None:
        self.where = f"{TOPIC_INCIDENTS} of Kafka at {brokers}"
        self.unreadable = 0
        self.is_caught_up = False
        self._client = client
        self._topic = position.topic
        self._next = dict(position.offsets)
        self._ends: dict[int, int] = {}
        self._consumer: Consumer | None = None

    def read(self, wait_s: float) -> Revisions:
        """Revisions that have come since, with the time of each (Unix seconds); waits up to ``wait_s`` for something.

        What is no incident is counted. Raises KafkaTrouble; the next call connects anew.
        """
        consumer = self._connected()
        found: Revisions = []
        try:
            for message in consumer.poll(wait_s):
                found += [(incident, message.stamp_ns / 1e9) for incident in self._incidents(message.value)]
            for number in self._next:
                partition = (TOPIC_INCIDENTS, number)
                self._next[number] = consumer.next_offset(partition)
                self._ends[number] = max(self._ends[number], consumer.end_offset(partition) or 0)
        except KafkaTrouble:
            self.close()
            raise
        self.is_caught_up = all(self._next[number] >= end for number, end in self._ends.items())
        return found

    @property
    def position(self) -> FeedPosition:
        """The position behind what was read, with the topic's identity.

        Offsets of another topic of that name mean nothing.
        """
        return FeedPosition(topic=self._topic, offsets=dict(self._next))

    def close(self) -> None:
        """Ends the connection; the next ``read`` goes on where it was."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self.is_caught_up = False

    def _connected(self) -> Consumer:
        """Raises KafkaTrouble."""
        if self._consumer is None:
            topic = self._identity()
            known = self._next if topic == self._topic else {}
            consumer = self._client.consumer(committed_only=True)
            try:
                partitions = [(TOPIC_INCIDENTS, number) for number in consumer.partitions(TOPIC_INCIDENTS)]
                bounds = consumer.bounds(partitions)
                starts = {number: max(first, known.get(number, first)) for (_, number), (first, _) in bounds.items()}
                consumer.assign({(TOPIC_INCIDENTS, number): offset for number, offset in starts.items()})
            except KafkaTrouble:
                consumer.close()
                raise
            self._topic, self._next, self._consumer = topic, starts, consumer
            self._ends = {number: end for (_, number), (_, end) in bounds.items()}
        return self._consumer

    def _identity(self) -> str:
        """Of the topic: positions in one that was made anew, or of another cluster, are none. Raises KafkaTrouble."""
        admin = self._client.admin()
        try:
            found = check_topics(admin, [TOPIC_INCIDENTS])
            return f"{admin.cluster_id()}/{found[TOPIC_INCIDENTS].topic_id}"
        finally:
            admin.close()

    def _incidents(self, value: bytes) -> list[IncidentDocument]:
        incidents: list[IncidentDocument] = []
        for payload in decode_logs(TOPIC_INCIDENTS, value):
            if isinstance(payload, Incident) and not check_document(payload.document):
                incidents.append(read_incident(payload.document))
            else:
                self.unreadable += 1
        return incidents


class FolderFeed:
    """``incidents.jsonl`` of a run, while it grows."""

    def __init__(self, folder: Path, position: FeedPosition) -> None:
        """Raises Unusable."""
        self._run = RunDirectory(folder)
        self._path = self._run.incidents
        if not self._path.is_file():
            raise Unusable(f"{self._path}: not there; is {folder} the folder of a run?")
        self.where = str(self._path)
        self.unreadable = 0
        # Of another file of that name nothing is known.
        self._offset = position.byte if position.file == self._identity() else 0
        self.is_caught_up = False

    def read(self, wait_s: float) -> Revisions:
        """Revisions in the file's next whole lines, with the time of each (Unix seconds). Never waits.

        Raises Unusable.
        """
        try:
            with open(open_regular(self._path, self._run.owner), "rb") as file:
                file.seek(self._offset)
                content = file.read(_MAX_LINE_BYTES)
        except OSError as error:
            raise Unusable(f"{self._path}: {error.strerror or error}") from error
        whole, end, _ = content.rpartition(b"\n")
        self._offset += len(whole) + len(end)
        self.is_caught_up = len(content) < _MAX_LINE_BYTES
        found: Revisions = []
        for line in whole.splitlines():
            try:
                incident = read_incident_line(line)
            except ValueError:
                self.unreadable += bool(line.strip())
                continue
            found.append((incident, told_at(incident)))
        return found

    @property
    def position(self) -> FeedPosition:
        """The position behind what was read, with the file's identity.

        A byte of another file of that name means nothing.
        """
        return FeedPosition(file=self._identity(), byte=self._offset)

    def close(self) -> None:
        """Does nothing: nothing is held open between looks."""
        pass

    def _identity(self) -> str:
        try:
            status = os.stat(self._path)
        except OSError:
            return ""
        return f"{status.st_dev}:{status.st_ino}"
