"""Incidents and evidence as they lie on Kafka's topics: other jobs, repeats, lost pieces and garbage among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.commands.incidents.documents import ID, LAUNCH, document
from whichrank.commands.incidents.chosen import choose
from whichrank.commands.incidents.contents import arrange
from whichrank.commands.incidents.kafka_source import KafkaSource
from whichrank.telemetry.evidence_pieces import EvidencePiece, encode_evidence, split_evidence
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Event, Identity, Incident
from whichrank.telemetry.topics import TOPIC_INCIDENTS, TOPIC_LOGS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka_client import Admin, Fetched, Offsets, Partition, Producer

_ONSET_NS = 1_700_000_000_000_000_000
RANK = Identity(cluster="local", job="job-1", attempt=LAUNCH, node="node-1", rank=1)


class Topics:
    """A client whose brokers hold these messages: (stamp, value) by topic, one partition each."""

    name = "in memory"

    def __init__(self, messages: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        self._messages = messages

    def consumer(self, *, committed_only: bool) -> Reader:
        assert committed_only
        return Reader(self._messages)

    def producer(self, *, transactional_id: str | None = None) -> Producer:
        raise AssertionError("nothing is written")

    def admin(self) -> Admin:
        raise AssertionError("nothing is changed")


class Reader:
    gone = 0

    def __init__(self, messages: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        self._messages = messages
        self._next: dict[Partition, int] = {}

    def partitions(self, topic: str) -> Sequence[int]:
        return (0,)

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, tuple[int, int]]:
        return {partition: (0, len(self._messages.get(partition[0], ()))) for partition in partitions}

    def assign(self, offsets: Offsets) -> None:
        self._next = dict(offsets)

    def poll(self, timeout_s: float) -> Sequence[Fetched]:
        found = []
        for (topic, partition), offset in self._next.items():
            for stamp_ns, value in self._messages.get(topic, ())[offset : offset + 2]:
                found.append(
                    Fetched(
                        topic=topic,
                        partition=partition,
                        offset=self._next[topic, partition],
                        key=b"",
                        value=value,
                        stamp_ns=stamp_ns,
                        appended_by_broker=True,
                    )
                )
                self._next[topic, partition] += 1
        return found

    def next_offset(self, partition: Partition) -> int:
        return self._next[partition]

    def end_offset(self, partition: Partition) -> int | None:
        return None

    def pause(self, partitions: Sequence[Partition]) -> None: ...
    def resume(self, partitions: Sequence[Partition]) -> None: ...
    def close(self) -> None: ...


def piece(name: str, content: bytes, *, incident: str = ID, identity: Identity = RANK) -> EvidencePiece:
    return EvidencePiece(
        identity=identity,
        request_id=f"key/{name}",
        action="log_tail",
        name=name,
        format="text",
        time_ns=_ONSET_NS,
        content=content,
        incident=incident,
    )


def stack(identity: Identity) -> Event:
    attributes = {"pid": 4711, "why": "request", "stack": "/job/train.py\t88\tmain\n/job/data.py\t7\t__next__\n"}
    return Event(name=EventName.RANK_STACK, identity=identity, time_ns=_ONSET_NS, attributes=attributes)


def test_what_was_sent_for_an_incident_is_put_together() -> None:
    base = f"{LAUNCH}-rank-00001-4711"
    log = [encode_evidence(part) for part in split_evidence(piece(f"{base}-0.log", b"x" * 1000), 300)]
    torn = [encode_evidence(part) for part in split_evidence(piece(f"{base}-1.log", b"y" * 1000), 300)][:2]
    foreign = replace(RANK, job="job-2")
    logs = [
        *log,
        log[0],
        *torn,
        b"\xff no protobuf",
        encode_evidence(piece("of-another-job.log", b"z", identity=foreign)),
        encode_evidence(piece("of-another.log", b"z", incident="f" * 16)),
        encode_payloads([stack(RANK), stack(foreign), stack(replace(RANK, attempt="0" * 16, rank=0))]),
    ]
    before = [encode_evidence(piece(f"{base}-old.log", b"of the hour before"))]
    incidents = [
        encode_payloads([Incident(document=document())]),
        encode_payloads([Incident(document=document())]),
        encode_payloads([Incident(document=document(revision=2))]),
        b"\xff no protobuf",
    ]
    source = KafkaSource(
        Topics(
            {
                TOPIC_INCIDENTS: [(_ONSET_NS, value) for value in incidents],
                TOPIC_LOGS: [(_ONSET_NS - 3_600_000_000_000, value) for value in before]
                + [(_ONSET_NS + 1, value) for value in logs],
            }
        ),
        "h:1",
    )
    revisions = source.revisions()
    assert revisions == [read_incident(document()), read_incident(document(revision=2))]
    chosen = choose(revisions, ID)
    entries = {entry.path: entry.content for entry in arrange(source.evidence(chosen), chosen)}
    stack_path = f"rank-00001/{LAUNCH}-4711-request.stack.txt"
    assert sorted(entries) == [f"rank-00001/{LAUNCH}-4711-0.log", stack_path]
    assert entries[f"rank-00001/{LAUNCH}-4711-0.log"] == b"x" * 1000
    assert entries[stack_path].decode().splitlines() == [
        "# rank 1, 2023-11-14T22:13:20Z, innermost last",
        "/job/train.py:88 main",
        "/job/data.py:7 __next__",
    ]
    assert source.problems == [f"{TOPIC_LOGS}: of 1 more files only parts are there"]
    assert source.run() is None
