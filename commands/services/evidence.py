"""``whichrank evidence``: ask a node's agent over Kafka for what it can still tell of a rank, and write it down.

The request goes to ``whichrank.requests``, the answer comes on ``otlp_logs``: a stack as an event, files in pieces.
"""

from __future__ import annotations

import csv
import io
import os
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

from ...agents.rings.ring_events import EVENT, decode_slots
from ...telemetry.evidence_pieces import EvidencePiece, decode_evidence, join_pieces
from ...telemetry.otlp import decode_logs
from ...telemetry.otlp_encode import encode_payloads
from ...telemetry.printable import file_name
from ...telemetry.records import Event, Identity
from ...telemetry.topics import TOPIC_LOGS, TOPIC_REQUESTS
from ...telemetry.vocabulary import EventName
from ...transport.kafka import make_client
from ...transport.kafka_client import Client, Consumer, Fetched, KafkaTrouble, Sent
from ..settings.settings import TopicsOptions
from ..support.stderr import say

EXIT_NO_ANSWER = 1
EXIT_USAGE = 2
SEND_S = 10.0
#: More files than the first may come (a log per stream) within this time of the last piece.
MORE_S = 2.0
_POLL_S = 0.2
#: Of a ring, unpacked: as much as an agent reads of one.
_MOST_EVENT_BYTES = 32 << 20
_GZIP = 16 + zlib.MAX_WBITS
STACK = "stack"


def evidence(options: TopicsOptions, *, rank: int, node: str, job: str, action: str, out: Path, wait_s: float) -> int:
    """Asks a node's agent for evidence of a rank, and prints the stack or writes the files into ``out``.

    The exit status: 0 there is an answer, 1 none came in ``wait_s``, 2 Kafka cannot be asked or ``out`` not be written.
    """
    request_id = f"asked-{uuid.uuid4().hex[:12]}"
    attributes = {"id": request_id, "action": action.replace("-", "_"), "rank": rank, "node": node}
    identity = Identity(job=job, node=node, rank=rank)
    request = Event(name=EventName.EVIDENCE_REQUEST, identity=identity, time_ns=time.time_ns(), attributes=attributes)
    try:
        client = make_client(options.kafka_settings())
        answers = _from_now_on(client)
        try:
            _send(client, node, encode_payloads([request]))
            messages = _read(answers, wait_s)
            if action == STACK:
                return _show_stack(messages, request_id, rank, node)
            return _write_files(messages, request_id, out, rank, node)
        finally:
            answers.close()
    except KafkaTrouble as trouble:
        say(str(trouble))
    except OSError as error:
        say(f"{error.filename or out}: {error.strerror or error}; name another folder with --out")
    return EXIT_USAGE


def _from_now_on(client: Client) -> Consumer:
    reader = client.consumer(committed_only=False)
    partitions = [(TOPIC_LOGS, number) for number in reader.partitions(TOPIC_LOGS)]
    reader.assign({partition: end for partition, (_, end) in reader.bounds(partitions).items()})
    return reader


def _send(client: Client, node: str, value: bytes) -> None:
    producer = client.producer()
    troubles: list[KafkaTrouble] = []

    def hear(sent: Sent | None, trouble: KafkaTrouble | None) -> None:
        if trouble is not None:
            troubles.append(trouble)

    try:
        producer.send(TOPIC_REQUESTS, node.encode(), value, None, hear)
        if producer.flush(SEND_S):
            raise KafkaTrouble(f"{TOPIC_REQUESTS}: the brokers did not take the request within {SEND_S:.0f} s")
    finally:
        producer.close(1.0)
    if troubles:
        raise troubles[0]


def _read(reader: Consumer, wait_s: float) -> Iterator[Fetched | None]:
    """Messages as they come; None where none came for a moment."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        yield from reader.poll(_POLL_S) or (None,)


def _show_stack(messages: Iterator[Fetched | None], request_id: str, rank: int, node: str) -> int:
    for message in messages:
        for payload in decode_logs(TOPIC_LOGS, message.value) if message is not None else ():
            if not isinstance(payload, Event) or payload.name is not EventName.RANK_STACK:
                continue
            values = payload.attributes
            if values.get("request_id") != request_id:
                continue
            place = f"{values.get('file', '?')}:{values.get('line', '?')}"
            say(f"rank {rank} on {node} stands at {place} in {values.get('function', '?')} (by {values.get('method')})")
            for line in str(values.get("stack", "")).splitlines():
                file, number, function = (*line.split("\t"), "", "")[:3]
                say(f"    {file}:{number} {function}")
            return 0
    return _no_answer(rank, node)


def _write_files(messages: Iterator[Fetched | None], request_id: str, out: Path, rank: int, node: str) -> int:
    pieces: list[EvidencePiece] = []
    newest = time.monotonic()
    for message in messages:
        found = [piece for piece in decode_evidence(message.value) if piece.request_id == request_id] if message else []
        if found:
            pieces += found
            newest = time.monotonic()
        elif pieces and time.monotonic() - newest > MORE_S:
            break
    files = join_pieces(pieces)
    if not files:
        return _no_answer(rank, node)
    out.mkdir(parents=True, exist_ok=True)
    for file in files:
        for name, content in _readable(file):
            path = _free(out, file_name(name))
            with path.open("xb") as kept:  # nothing that is there: a name is the agent's word
                kept.write(content)
            say(f"{path}: {len(content)} bytes")
    if missing := len({piece.name for piece in pieces}) - len(files):
        say(f"{missing} more files came in part only")
    return 0


def _readable(file: EvidencePiece) -> Iterator[tuple[str, bytes]]:
    """A file as it came; events of a ring also as a table."""
    yield file.name, file.content
    if file.format == "ring-events.gz":
        try:
            unpacked = zlib.decompressobj(_GZIP).decompress(file.content, _MOST_EVENT_BYTES)
            events = decode_slots(unpacked[: len(unpacked) // EVENT.itemsize * EVENT.itemsize])
        except (zlib.error, ValueError) as error:
            say(f"{file.name}: cannot be unpacked ({error}); there is no table of it")
            return
        columns = [name for name in EVENT.names or () if name not in ("begin", "end")]
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(events[columns].tolist())
        yield f"{file.name.removesuffix('.gz')}.csv", text.getvalue().encode()


def _free(folder: Path, name: str) -> Path:
    """A path that nothing has yet: the name's, or with a number."""
    path, number = folder / name, 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{name}.{number}"
    return path


def _no_answer(rank: int, node: str) -> int:
    say(
        f"no answer: no agent on {node} that takes requests, or it knows no rank {rank}, or has nothing of it (a stack "
        "is only told of a rank that stands still)"
    )
    return EXIT_NO_ANSWER
