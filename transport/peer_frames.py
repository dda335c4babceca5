"""What peers of one job say to each other over TCP: frames, and the proof that both know the job's secret. Pure.

A frame is length, kind, body. The judge opens with CHALLENGE, the follower answers HELLO, the judge WELCOME (or
REFUSED); both proofs are HMACs over the other side's nonce, so nothing overheard can be said again. Bodies are never
unpickled, and a length beyond the bound ends the connection before anything is kept of it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

VERSION = 1
#: Messages are at most 900 kB (``telemetry.otlp_encode``), incidents far less.
MAX_BODY_BYTES = 1 << 20
#: Before its proof a peer may say this much.
MAX_HELLO_BYTES = 4096
NONCE_BYTES = PROOF_BYTES = 32
OTHER_SECRET = "another secret: set WHICHRANK_JUDGE_SECRET to the same on all nodes, or let them share the home folder"
_HEADER = struct.Struct("!IB")
_MESSAGE = struct.Struct("!QBH")
_PING = struct.Struct("!qQ")


class PeerFrame(IntEnum):
    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSED = 4
    #: Follower to judge: one message for the bus.
    MESSAGE = 5
    #: Both ways, twice a second: the sender's monotonic clock, and the number of the last message that came in.
    PING = 6
    #: Judge to follower: a revision of an incident; a request for evidence.
    INCIDENT = 7
    REQUEST = 8
    #: Both ways: this side's command has ended, and nothing more will come.
    BYE = 9
    #: Judge to follower, only to one that has said that it takes them: its command is to end, or to start again.
    ORDER = 10


class BrokenPeer(Exception):
    """What came is not of this protocol; the connection is of no more use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMessage:
    """One message for the bus. Numbers count up from 1 over all connections of one follower."""

    number: int
    topic: str
    key: str
    value: bytes


def pack_frame(kind: PeerFrame, body: bytes = b"") -> bytes:
    """A frame as bytes: length, kind and body, as ``Unframer`` takes them apart."""
    return _HEADER.pack(len(body), kind) + body


class Unframer:
    """Bytes in, frames out."""

    def __init__(self, limit: int = MAX_HELLO_BYTES) -> None:
        #: Longest body that is taken; raised once the peer has proved who it is.
        self.limit = limit
        self._bytes = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """How much has come of a frame that is not whole."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        """Takes in bytes as they came, cut anywhere."""
        self._bytes += data

    def next(self) -> tuple[PeerFrame, bytes] | None:
        """Takes out the next whole frame as (kind, body), None until there is one.

        Raises BrokenPeer for one that is too long or of no known kind.
        """
        if len(self._bytes) < _HEADER.size:
            return None
        length, kind = _HEADER.unpack_from(self._bytes)
        if length > self.limit:
            raise BrokenPeer(f"a frame of {length} bytes")
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[_HEADER.size : end])
        del self._bytes[:end]
        try:
            return PeerFrame(kind), body
        except ValueError:
            raise BrokenPeer(f"a frame of kind {kind}") from None


def pack_message(message: PeerMessage) -> bytes:
    """The body of a MESSAGE frame."""
    topic, key = message.topic.encode(), message.key.encode()
    return _MESSAGE.pack(message.number, len(topic), len(key)) + topic + key + message.value


def unpack_message(body: bytes) -> PeerMessage:
    """The message in the body of a MESSAGE frame. Raises BrokenPeer."""
    try:
        number, topic, key = _MESSAGE.unpack_from(body)
        begin = _MESSAGE.size
        value = begin + topic + key
        if value > len(body):
            raise BrokenPeer("a message that ends inside its key")
        return PeerMessage(
            number=number,
            topic=body[begin : begin + topic].decode(),
            key=body[begin + topic : value].decode(),
            value=body[value:],
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise BrokenPeer(f"a message that is none: {error}") from None


def pack_ping(mono_ns: int, received: int) -> bytes:
    """The body of a PING frame: the sender's monotonic clock, and the last message number that it has."""
    return _PING.pack(mono_ns, received)


def unpack_ping(body: bytes) -> tuple[int, int]:
    """(the sender's monotonic clock, number of the last message it has received). Raises BrokenPeer."""
    try:
        mono_ns, received = _PING.unpack(body)
    except struct.error as error:
        raise BrokenPeer(f"a ping that is none: {error}") from None
    return mono_ns, received


def pack_proof(secret: bytes, side: str, nonce: bytes, fields: Mapping[str, Any]) -> bytes:
    """The fields as JSON, behind the proof that who says them knows the secret. nonce: the other side's."""
    text = json.dumps(fields).encode()
    return _proof(secret, side, nonce, text) + text


def unpack_proof(secret: bytes, side: str, nonce: bytes, body: bytes) -> dict[str, Any]:
    """The fields that ``pack_proof`` packed. Raises BrokenPeer where the proof is wrong or the fields are no object.

    side: who packed them; nonce: ours.
    """
    proof, text = body[:PROOF_BYTES], body[PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, side, nonce, text)):
        raise BrokenPeer(OTHER_SECRET)
    return unpack_fields(text)


def unpack_fields(text: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises BrokenPeer for anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise BrokenPeer("fields that are no JSON") from None
    if not isinstance(fields, dict):
        raise BrokenPeer("fields that are no object")
    return fields


def _proof(secret: bytes, side: str, nonce: bytes, text: bytes) -> bytes:
    return hmac.new(secret, side.encode() + b"\0" + nonce + text, hashlib.sha256).digest()
