"""The gate: whatever leaves an agent goes through here, and what looks like a secret stays on the node.

``publish`` and ``publish_ranked`` stand before every way out that takes messages (the capture, the other nodes, Kafka
and the spool before it); ``pack`` makes every file of evidence. docs/privacy.md lists the ways. What secrets look like:
``telemetry.redaction``. A request that cannot be read cannot be looked at either: it is not sent, and counted.
One object for each thread.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

from ...diagnosis.flight_recorder.pickle_values import BadPickle, check_opcodes
from ...telemetry.otlp_redaction import RequestRedactor, UnreadableRequest
from ...telemetry.redaction import mask_bytes, redact_bytes
from ..base.priority import Priority
from ..rings.ring_texts import mask_ring

Publish = Callable[[str, str, bytes], None]
#: topic, key, value, and how long it is worth keeping. Never blocks, never raises.
PublishRanked = Callable[[str, str, bytes, Priority], None]

#: Unpacked, a file of evidence has no more than this.
MAX_FILE_BYTES = 256 << 20


class RedactionFilter:
    def __init__(
        self, drop: Callable[[str], None] = lambda reason: None, *, requests: RequestRedactor | None = None
    ) -> None:
        """drop: hears of each message that was not let through, by reason. requests: None: one of its own."""
        self._requests = requests or RequestRedactor()
        self._drop = drop

    def publish(self, way_out: Publish) -> Publish:
        """A function that calls ``way_out`` with each message as it may leave; what may not leave is not passed on."""

        def through(topic: str, key: str, value: bytes) -> None:
            found = self.message(topic, key, value)
            if found is not None:
                way_out(topic, *found)

        return through

    def publish_ranked(self, way_out: PublishRanked) -> PublishRanked:
        """A function that calls ``way_out`` with each message as it may leave, and its priority.

        What may not leave is not passed on.
        """

        def through(topic: str, key: str, value: bytes, priority: Priority) -> None:
            found = self.message(topic, key, value)
            if found is not None:
                way_out(topic, *found, priority)

        return through

    def message(self, topic: str, key: str, value: bytes) -> tuple[str, bytes] | None:
        """Key and value with secrets cut out; None, and ``drop`` is told, where the value cannot be read."""
        try:
            return self._requests.text(key), self._requests.redact(topic, value)
        except UnreadableRequest:
            self._drop("gate_unreadable")
            return None


def pack(raw: bytes, form: str) -> bytes:
    """A file of evidence as it may be kept and sent: without secrets, and compressed. Empty: nothing of it may.

    form: of ``EvidencePiece``; raises ValueError for one that is none. A ring's last events are numbers alone.
    """
    if form == "text":
        return redact_bytes(raw)
    if form == "ring.gz":
        return _compress(mask_ring(raw))
    if form == "dump.gz":
        return _compress(mask_dump(raw))
    if form == "ring-events.gz":
        return _compress(raw)
    raise ValueError(f"{form}: not a form of evidence")


def pack_again(content: bytes, form: str) -> bytes:
    """A file that an earlier release packed, packed again without secrets. Empty: none such, or damaged.

    form: of ``EvidencePiece``.
    """
    if form == "text":
        return redact_bytes(content)
    raw = unpack(content, MAX_FILE_BYTES)
    return b"" if raw is None else pack(raw, form)


def unpack(content: bytes, limit_bytes: int) -> bytes | None:
    """The content of a whole gzip; None for anything else, or if it has more than ``limit_bytes``."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        raw = unpacker.decompress(content, limit_bytes + 1)
    except zlib.error:
        return None
    return raw if unpacker.eof and len(raw) <= limit_bytes else None


def mask_dump(raw: bytes) -> bytes:
    """A flight recorder's dump with the secrets in its texts masked; texts keep their lengths."""
    texts: list[tuple[int, int]] = []
    try:
        check_opcodes(raw, texts)
    except BadPickle:  # cut, JSON, or something else: no analyser counts on its lengths
        return mask_bytes(raw)
    copy = bytearray(raw)
    known: dict[bytes, bytes] = {}
    for begin, end in texts:
        text = raw[begin:end]
        masked = known.get(text)
        if masked is None:
            masked = known[text] = mask_bytes(text)
        if masked is not text:
            copy[begin:end] = masked
    return bytes(copy)


def _compress(raw: bytes) -> bytes:
    return gzip.compress(raw, compresslevel=1, mtime=0) if raw else b""
