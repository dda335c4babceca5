"""Batches of messages, unpacked within a bound: kafka-python unpacks whatever a producer has packed, however large.

A batch that is larger than any that agents send, that cannot be unpacked here (a codec that is not installed) or whose
inside is broken is passed over, counted and said: reading goes on behind it. Without this it would be read, and would
fail, for ever. Importing this module puts that into force for all consumers of kafka-python in this process.
"""

from __future__ import annotations

import gzip
import io
import logging
from typing import Any

from kafka import codec as codecs
from kafka.errors import CorruptRecordError, KafkaError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch

_log = logging.getLogger(__name__)

#: A batch of agents holds 256 kB, and a message 1 MB at most; telemetry packs to a twentieth at best.
MOST_BYTES = 32 << 20
ALWAYS_BYTES = 1 << 20
MOST_TIMES = 64
_MAGIC_2 = 2


class _Counters:
    """Messages in batches that were passed over, in this process."""

    passed_over = 0


def messages_passed_over() -> int:
    """How many messages were in batches that were passed over, as far as these say, in this process."""
    return _Counters.passed_over


class BatchTooLarge(ValueError):
    """It would unpack to more than it may."""


def unpack(codec: int, packed: bytes) -> bytes:
    """The inside of a batch. Raises BatchTooLarge, and what the codec raises for what is none of its own."""
    most = min(MOST_BYTES, max(ALWAYS_BYTES, MOST_TIMES * len(packed)))
    source = io.BytesIO(packed)
    if codec == DefaultRecordBatch.CODEC_GZIP:
        with gzip.GzipFile(fileobj=source, mode="r") as gzipped:
            found = gzipped.read(most + 1)
    elif codec == DefaultRecordBatch.CODEC_ZSTD and codecs.has_zstd():
        decompressor = codecs.zstd.ZstdDecompressor(max_window_size=MOST_BYTES)
        with decompressor.stream_reader(source, read_across_frames=True) as reader:
            found = reader.read(most + 1)
    else:
        raise NotImplementedError(f"codec {codec} of Kafka is not supported: let producers use zstd or gzip")
    if len(found) > most:
        raise BatchTooLarge(f"{len(packed)} bytes unpack to more than {most}")
    return found


class BoundedBatch(DefaultRecordBatch):  # type: ignore[misc]  # kafka-python has no types
    """As kafka-python's, within the bound."""

    _decompressed: bool
    _buffer: bytearray
    _pos: int
    _num_records: int
    _next_record_index: int

    def _maybe_uncompress(self) -> None:
        if not self._decompressed and self.compression_type != self.CODEC_NONE:
            try:
                self._buffer = bytearray(unpack(self.compression_type, bytes(memoryview(self._buffer)[self._pos :])))
                self._pos = 0
            except Exception as error:  # whatever a stranger's bytes make a codec do, they are one batch
                self._pass_over(error)
        self._decompressed = True

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except (CorruptRecordError, KafkaError, ValueError, IndexError, MemoryError) as error:
            self._pass_over(error)
            raise StopIteration from None

    next = __next__

    def _pass_over(self, error: Exception) -> None:
        left = max(0, self._num_records - self._next_record_index)
        if not _Counters.passed_over:
            _log.warning(
                "Kafka: a batch of %d messages (first offset %d) is passed over, as are all such: %s: %s",
                left,
                self.base_offset,
                type(error).__name__,
                error,
            )
        _Counters.passed_over += max(1, left)
        self._next_record_index = self._num_records
        self._buffer, self._pos = bytearray(), 0


memory_records.DefaultRecordBatch = BoundedBatch
