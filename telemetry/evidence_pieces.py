"""Evidence on the wire: files about a rank, in pieces that a broker and a log store take, as OTLP log records.

A piece is one LogRecord named ``whichrank.evidence`` on ``otlp_logs``: its body is bytes, its attributes say of which
file it is and where in it. Pieces of one bundle may come twice or not at all; ``join_pieces`` says which files are
whole. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from . import attributes as names
from .otlp import read_identity
from .otlp_encode import resource_bytes
from .records import Identity
from .vocabulary import EventName

#: What any store takes as one line, with its bytes in base64: Loki 256 KiB unless told otherwise, VictoriaLogs 2 MiB
#: with all of its fields (a longer one is dropped with a line in its log, and answered with 200).
PIECE_BYTES = 180_000
MAX_PIECES = 4096

_REQUEST = "whichrank.evidence.request_id"
_ACTION = "whichrank.evidence.action"
_NAME = "whichrank.evidence.name"
_FORMAT = "whichrank.evidence.format"
_INCIDENT = "whichrank.evidence.incident"
_PIECE = "whichrank.evidence.piece"
_PIECES = "whichrank.evidence.pieces"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePiece:
    """A part of a file. ``piece`` counts from 0.

    format: "ring.gz", "ring-events.gz" (slots as in the ring), "dump.gz" (of a flight recorder), "text".
    incident: for whose sake it was asked for; "": a person's own question.
    """

    identity: Identity
    request_id: str
    action: str
    name: str
    format: str
    time_ns: int
    content: bytes
    piece: int = 0
    pieces: int = 1
    incident: str = ""


def split_evidence(whole: EvidencePiece, piece_bytes: int = PIECE_BYTES) -> Iterator[EvidencePiece]:
    """Cuts a file that is held in one piece into pieces of ``piece_bytes`` at most; one even if it is empty."""
    pieces = max(1, -(-len(whole.content) // piece_bytes))
    for piece in range(pieces):
        content = whole.content[piece * piece_bytes : (piece + 1) * piece_bytes]
        yield replace(whole, content=content, piece=piece, pieces=pieces)


def encode_evidence(piece: EvidencePiece) -> bytes:
    """The piece as one serialized ExportLogsServiceRequest."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    resource_logs.resource.MergeFromString(resource_bytes(piece.identity))
    scope = resource_logs.scope_logs.add()
    scope.scope.name = names.SCOPE_NAME
    record = scope.log_records.add()
    record.time_unix_nano = piece.time_ns
    record.event_name = EventName.EVIDENCE.value
    record.severity_number = SeverityNumber.SEVERITY_NUMBER_INFO
    for key, text in (
        (_REQUEST, piece.request_id),
        (_ACTION, piece.action),
        (_NAME, piece.name),
        (_FORMAT, piece.format),
        (_INCIDENT, piece.incident),
    ):
        record.attributes.add(key=key).value.string_value = text
    for key, number in ((_PIECE, piece.piece), (_PIECES, piece.pieces)):
        record.attributes.add(key=key).value.int_value = number
    record.body.bytes_value = piece.content
    return request.SerializeToString()


def decode_evidence(value: bytes) -> list[EvidencePiece]:
    """Pieces in a message of ``otlp_logs``; none in one that holds something else, or cannot be read."""
    try:
        request = ExportLogsServiceRequest.FromString(value)
    except DecodeError:
        return []
    return [
        _decode(record, resource_logs.resource.attributes)
        for resource_logs in request.resource_logs
        for scope in resource_logs.scope_logs
        for record in scope.log_records
        if record.event_name == EventName.EVIDENCE.value
    ]


def _decode(record: LogRecord, resource: Iterable[KeyValue]) -> EvidencePiece:
    found = {pair.key: pair.value for pair in record.attributes}

    def text(key: str) -> str:
        return found[key].string_value if key in found else ""

    def number(key: str) -> int:
        return found[key].int_value if key in found else 0

    return EvidencePiece(
        identity=read_identity(list(resource)),
        request_id=text(_REQUEST),
        action=text(_ACTION),
        name=text(_NAME),
        format=text(_FORMAT),
        time_ns=record.time_unix_nano,
        content=record.body.bytes_value,
        piece=number(_PIECE),
        pieces=number(_PIECES),
        incident=text(_INCIDENT),
    )


def join_pieces(pieces: Iterable[EvidencePiece]) -> list[EvidencePiece]:
    """The files of which every piece is there, each in one; repeats are taken once."""
    files: dict[tuple[str, str], dict[int, EvidencePiece]] = {}
    for piece in pieces:
        if 0 <= piece.piece < piece.pieces <= MAX_PIECES:
            files.setdefault((piece.request_id, piece.name), {})[piece.piece] = piece
    whole: list[EvidencePiece] = []
    for found in files.values():
        first = found.get(0)
        if first is not None and len(found) == first.pieces:
            content = b"".join(found[number].content for number in range(first.pieces))
            whole.append(replace(first, content=content, piece=0, pieces=1))
    return whole
