"""Segment files of the embedded bus: the frame format, and reading that survives any damage.

A segment is a header and frames: sync marker, length, CRC-32, then position, stamp, topic, key, headers, value. The
reader cuts a torn last frame, skips damage to the next frame that checks out, and says each in one line (file, offset,
what is wrong, remedy). It changes nothing on disk.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ..telemetry.regular_files import open_regular
from .bus import Message

SEGMENT_PREFIX = "segment-"
SEGMENT_SUFFIX = ".log"
MAGIC = b"WHCHRKB1"
FORMAT_VERSION = 1
#: magic, format version, spare, bus id
HEADER = struct.Struct("<8sII16s")

SYNC = b"\xf7whr\r\n\x1a\xf8"
#: sync, bytes of the body, CRC-32 of length and body
FRAME_HEAD = struct.Struct("<8sII")
#: position, stamp_ns, bytes of topic and of key, number of headers, bytes of value
FRAME_BODY = struct.Struct("<QqHHHI")
_HEADER_SIZES = struct.Struct("<HI")
_LENGTH = struct.Struct("<I")
#: Larger than any message a broker takes; a length beyond it is damage.
MAX_BODY_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
#: Gives a descriptor to read from, or raises OSError.
OpenFile = Callable[[Path], int]


def encode_frame(message: Message) -> bytes:
    """A message as one frame of a segment. Raises ValueError where a topic, key, header or all of it is too long."""
    topic, key = message.topic.encode(), message.key.encode("utf-8", "replace")
    if len(topic) > 0xFFFF or len(key) > 0xFFFF or len(message.headers) > 0xFFFF:
        raise ValueError("topic, key or headers are too long")
    parts = [b"", topic, key]
    for name, content in message.headers.items():
        encoded = name.encode()
        parts += (_HEADER_SIZES.pack(len(encoded), len(content)), encoded, content)
    parts.append(message.value)
    parts[0] = FRAME_BODY.pack(
        message.position, message.stamp_ns, len(topic), len(key), len(message.headers), len(message.value)
    )
    body = b"".join(parts)
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"message of {len(body)} bytes is too large")
    return FRAME_HEAD.pack(SYNC, len(body), _checksum(body)) + body


def _checksum(body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(_LENGTH.pack(len(body))))


def decode_body(body: bytes) -> Message:
    """The message in a frame whose checksum held. Raises ValueError if its sizes do not add up all the same."""
    if len(body) < FRAME_BODY.size:
        raise ValueError("frame is too short")
    position, stamp_ns, topic_bytes, key_bytes, header_count, value_bytes = FRAME_BODY.unpack_from(body)
    at = FRAME_BODY.size
    topic = body[at : at + topic_bytes].decode()
    at += topic_bytes
    key = body[at : at + key_bytes].decode()
    at += key_bytes
    headers: dict[str, bytes] = {}
    for _ in range(header_count):
        if at + _HEADER_SIZES.size > len(body):
            raise ValueError("frame's headers do not fit")
        name_bytes, content_bytes = _HEADER_SIZES.unpack_from(body, at)
        at += _HEADER_SIZES.size
        name = body[at : at + name_bytes].decode()
        at += name_bytes
        headers[name] = body[at : at + content_bytes]
        at += content_bytes
    if at + value_bytes != len(body):
        raise ValueError("frame's sizes do not add up")
    return Message(topic=topic, key=key, value=body[at:], position=position, stamp_ns=stamp_ns, headers=headers)


def segment_name(ordinal: int) -> str:
    """The name of the segment file with this ordinal; names sort as ordinals do."""
    return f"{SEGMENT_PREFIX}{ordinal:06d}{SEGMENT_SUFFIX}"


def list_segments(directory: Path) -> list[tuple[int, Path]]:
    """(ordinal, path) of the segments in a directory, in order. Raises OSError."""
    found: list[tuple[int, Path]] = []
    for entry in os.listdir(directory):
        if entry.startswith(SEGMENT_PREFIX) and entry.endswith(SEGMENT_SUFFIX):
            digits = entry[len(SEGMENT_PREFIX) : -len(SEGMENT_SUFFIX)]
            if digits.isdigit():
                found.append((int(digits), directory / entry))
    return sorted(found)


def read_bus_id(path: Path, open_file: OpenFile = open_regular) -> bytes | None:
    """The bus's id in a segment's header; None if there is no readable header."""
    try:
        with open(open_file(path), "rb") as file:
            head = file.read(HEADER.size)
    except OSError:
        return None
    if len(head) < HEADER.size:
        return None
    magic, version, _, bus_id = HEADER.unpack(head)
    return bytes(bus_id) if magic == MAGIC and version == FORMAT_VERSION else None


class SegmentReader:
    """Reads one segment from its beginning on; more may be appended while it reads."""

    def __init__(self, path: Path, report: Callable[[str, int, str], None], open_file: OpenFile = open_regular) -> None:
        """``report(path, offset, line)`` is called for every damaged place met. Raises OSError."""
        self.path = path
        self._report = report
        self._fd = open_file(path)
        self._offset = 0  # file offset of the next frame
        self._buffer = b""
        self._buffer_at = 0  # file offset of the buffer's first byte
        self._header_read = False
        #: Damaged places skipped, without the torn end.
        self.damaged = 0

    def close(self) -> None:
        """Lets go of the file; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, limit: int, *, is_last: bool) -> list[Message]:
        """Up to ``limit`` next messages; fewer only at the end of what can be read now. Raises OSError.

        is_last: no later segment exists, so an incomplete frame at the end may still be completed by its writer.
        """
        messages: list[Message] = []
        if not self._header_read and not self._read_header(is_last):
            return messages
        while len(messages) < limit:
            message = self._next(is_last)
            if message is None:
                break
            messages.append(message)
        return messages

    def _read_header(self, is_last: bool) -> bool:
        head = self._bytes(0, HEADER.size)
        if len(head) < HEADER.size:
            if head and not is_last:
                self._say(0, f"ends after {len(head)} bytes: its writer was killed; no action is needed")
            return False
        magic, version, _, _ = HEADER.unpack(head)
        self._header_read = True
        if magic == MAGIC and version == FORMAT_VERSION:
            self._offset = HEADER.size
        elif magic == MAGIC:
            self._say(0, f"has format {version}, this release reads {FORMAT_VERSION}; update whichrank to read it")
            self._offset = os.fstat(self._fd).st_size
        else:
            self._damage(0, "the header is damaged")
        return True

    def _bytes(self, offset: int, size: int) -> bytes:
        """``size`` bytes at a file offset, fewer at the end of the file."""
        start = offset - self._buffer_at
        if start < 0 or start + size > len(self._buffer):
            self._buffer = self._pread(offset, max(size, _CHUNK_BYTES))
            self._buffer_at = offset
            start = 0
        return self._buffer[start : start + size]

    def _pread(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._fd, size, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def _next(self, is_last: bool) -> Message | None:
        while True:
            at = self._offset
            head = self._bytes(at, FRAME_HEAD.size)
            if not head:
                return None
            wrong = "the sync marker is missing"
            torn = len(head) < FRAME_HEAD.size
            if not torn:
                sync, size, checksum = FRAME_HEAD.unpack(head)
                if sync == SYNC and size <= MAX_BODY_BYTES:
                    body = self._bytes(at + FRAME_HEAD.size, size)
                    torn = len(body) < size
                    if not torn:
                        if _checksum(body) == checksum:
                            try:
                                message = decode_body(body)
                            except ValueError as error:
                                wrong = str(error)
                            else:
                                self._offset = at + FRAME_HEAD.size + size
                                return message
                        else:
                            wrong = "the checksum does not match"
                elif sync == SYNC:
                    wrong = f"a length of {size} bytes is impossible"
            if not torn:
                self._damage(at, wrong)
            elif self._find_frame(at + 1) is not None:
                self._damage(at, "the length is damaged")
            elif is_last:
                # Its writer may be at it, or was killed: said once, and looked at again on the next read.
                self._say(at, "ends in the middle of a record: that record is left out; no action is needed")
                self._buffer = b""
                return None
            else:
                self._say(at, "ends in the middle of a record: that record is left out; no action is needed")
                self._offset = at + len(self._pread(at, MAX_BODY_BYTES))
                return None

    def _damage(self, at: int, wrong: str) -> None:
        """Skip to the next frame that checks out, or to the end of the file."""
        found = self._find_frame(at + 1)
        self.damaged += 1
        if found is None:
            self._offset = os.fstat(self._fd).st_size
            self._say(at, f"{wrong}; nothing readable follows in this file. Restore it from a copy, or leave it")
        else:
            self._offset = found
            self._say(at, f"{wrong}; {found - at} bytes are skipped, the rest is used. Restore it from a copy")

    def _find_frame(self, start: int) -> int | None:
        data = self._pread(start, max(0, os.fstat(self._fd).st_size - start))
        at = data.find(SYNC)
        while at >= 0:
            if at + FRAME_HEAD.size <= len(data):
                _, size, checksum = FRAME_HEAD.unpack_from(data, at)
                body = data[at + FRAME_HEAD.size : at + FRAME_HEAD.size + size] if size <= MAX_BODY_BYTES else b""
                if len(body) == size and _checksum(body) == checksum:
                    return start + at
            at = data.find(SYNC, at + 1)
        return None

    def _say(self, offset: int, line: str) -> None:
        self._report(str(self.path), offset, line)


def message_bytes(topic: str, key: str, value: bytes, headers: Mapping[str, bytes]) -> int:
    """About how many bytes a message takes in memory."""
    return 200 + len(topic) + len(key) + len(value) + sum(len(k) + len(v) + 100 for k, v in headers.items())
