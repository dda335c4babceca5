"""Incidents and evidence on Kafka's topics, as far as retention has left them. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...agents.evidence.evidence_store import kept_name
from ...telemetry.evidence_pieces import EvidencePiece, decode_evidence, join_pieces
from ...telemetry.incident import check_document
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident
from ...telemetry.otlp import decode_logs
from ...telemetry.records import Event, Incident
from ...telemetry.topics import TOPIC_INCIDENTS, TOPIC_LOGS
from ...telemetry.vocabulary import EventName
from ...transport.kafka_client import Client, Fetched
from ...transport.kafka_read import read_whole
from ..run_folder.people_codec import PeopleLabel
from ..run_folder.run_description import RunDescription
from .chosen import MAX_BYTES, Chosen, KeptFile, belongs
from .label import send_label

#: What was seen so long before an incident's onset may belong to it.
_BEFORE_S = 60.0
_POLL_S = 0.5
_S = 1_000_000_000


class KafkaSource:
    """Topics from their beginnings: what retention has left."""

    def __init__(self, client: Client, brokers: str) -> None:
        self._client = client
        self.where = f"Kafka at {brokers}"
        self.problems: list[str] = []

    def revisions(self) -> list[IncidentDocument]:
        """All revisions that retention has left, each once, by onset: several partitions have no common order.

        Raises KafkaTrouble.
        """
        found: dict[tuple[str, int], IncidentDocument] = {}
        for message in read_whole(self._client, TOPIC_INCIDENTS):
            for incident in self._incidents(message):
                found.setdefault((incident.id, incident.revision), incident)
        return sorted(found.values(), key=lambda incident: (incident.times.onset_s, incident.revision))

    def follow(self) -> Iterator[list[IncidentDocument]]:
        """Revisions from the topic's beginning on, as something may have come since ``revisions``; without end.

        An empty list now and then. Raises KafkaTrouble.
        """
        reader = self._client.consumer(committed_only=True)
        try:
            partitions = [(TOPIC_INCIDENTS, number) for number in reader.partitions(TOPIC_INCIDENTS)]
            reader.assign({partition: first for partition, (first, _) in reader.bounds(partitions).items()})
            while True:
                messages = reader.poll(_POLL_S)
                yield [incident for message in messages for incident in self._incidents(message)]
        finally:
            reader.close()

    def _incidents(self, message: Fetched) -> Iterator[IncidentDocument]:
        for payload in decode_logs(TOPIC_INCIDENTS, message.value):
            if not isinstance(payload, Incident):
                continue
            if check_document(payload.document):
                self.problems.append(f"{TOPIC_INCIDENTS} {message.partition}/{message.offset}: no incident document")
            else:
                yield read_incident(payload.document)

    def evidence(self, chosen: Chosen) -> list[KeptFile]:
        """Evidence that agents sent for this incident, its pieces put together. Raises KafkaTrouble.

        What is too much, or in parts only, is a problem.
        """
        job = chosen.last.job.id or ""
        since_ns = int((chosen.last.times.onset_s - _BEFORE_S) * _S)
        pieces: list[EvidencePiece] = []
        stacks: dict[str, KeptFile] = {}
        left_bytes = MAX_BYTES
        for message in read_whole(self._client, TOPIC_LOGS):
            if message.stamp_ns < since_ns:
                continue
            for piece in decode_evidence(message.value):
                if piece.identity.job == job and belongs(kept_name(piece), chosen):
                    left_bytes -= len(piece.content)
                    if left_bytes >= 0:
                        pieces.append(piece)
            if EventName.RANK_STACK.value.encode() in message.value:
                for stack in _stacks(message.value, job):
                    if belongs(stack.name, chosen):
                        stacks[stack.name] = stack
        if left_bytes < 0:
            self.problems.append(f"{TOPIC_LOGS}: more than {MAX_BYTES >> 20} MB for one incident; the rest is left")
        files = join_pieces(pieces)
        if missing := len({(piece.request_id, piece.name) for piece in pieces}) - len(files):
            self.problems.append(f"{TOPIC_LOGS}: of {missing} more files only parts are there")
        return [*(KeptFile(name=kept_name(file), content=file.content) for file in files), *stacks.values()]

    def run(self) -> RunDescription | None:
        """Always None: no topic describes a run."""
        return None

    def label(self, incident: IncidentDocument, label: PeopleLabel) -> None:
        """Sends what a person says as a finding that the processors read. Raises KafkaTrouble."""
        send_label(self._client, label, incident.cluster or "")


def _stacks(value: bytes, job: str) -> Iterator[KeptFile]:
    """Stacks that agents have told as events, as the files that they keep of them."""
    for payload in decode_logs(TOPIC_LOGS, value):
        if not isinstance(payload, Event) or payload.name is not EventName.RANK_STACK or payload.identity.job != job:
            continue
        values, identity = payload.attributes, payload.identity
        who = f"{identity.attempt}-rank-{identity.rank:05d}-{values.get('pid', 0)}"
        lines = [line.split("\t") for line in str(values.get("stack", "")).splitlines()]
        if lines:
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(payload.time_ns / 1e9))
            text = "".join(f"{':'.join(place)} {function}\n" for *place, function in lines)
            content = f"# rank {identity.rank}, {moment}, innermost last\n{text}".encode("utf-8", "replace")
            yield KeptFile(name=f"{who}-{values.get('why', 'asked')}.stack.txt", content=content)
