"""Reads whole logs in blocks: bounded memory, whatever the length of log and lines."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Protocol

from .event import KernelEvent
from .reader import LINE_CHARACTERS, KernelLogReader
from .scan import LiteralScan

BLOCK_BYTES = 1 << 20


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_log(reader: KernelLogReader, stream: Readable) -> Iterator[KernelEvent]:
    """All events of a log, to its end. Of a line longer than a block only the beginning is read.

    Raises what ``stream.read`` raises.
    """
    scan = LiteralScan(reader.words)
    kept = b""
    is_cut = False
    while block := stream.read(BLOCK_BYTES):
        whole = block if not kept else kept + block
        if is_cut:  # the rest of a line whose beginning was read
            _, found, whole = whole.partition(b"\n")
            if not found:
                continue
            is_cut = False
        end = whole.rfind(b"\n") + 1
        if not end and len(whole) >= BLOCK_BYTES:
            yield from _read_block(reader, scan, whole[:LINE_CHARACTERS])
            kept, is_cut = b"", True
            continue
        yield from _read_block(reader, scan, whole[:end])
        kept = whole[end:]
    yield from _read_block(reader, scan, kept)
    yield from reader.flush()


def _read_block(reader: KernelLogReader, scan: LiteralScan, block: bytes) -> Iterator[KernelEvent]:
    """Whole lines. After a line that began something the next ones are read too, as long as the reader wants them."""
    at = 0
    for begin, end, literals in scan.lines(block):
        if reader.wants_next:
            at = yield from _read_on(reader, block, at, begin)
        yield from reader.read(_text(block, begin, end), literals=literals)
        at = end + 1
    yield from _read_on(reader, block, at, len(block))


def _read_on(reader: KernelLogReader, block: bytes, at: int, until: int) -> Generator[KernelEvent, None, int]:
    """Lines without any literal, which count by where they stand."""
    while at < until and reader.wants_next:
        end = block.find(b"\n", at, until)
        end = until if end < 0 else end
        yield from reader.read(_text(block, at, end), literals=())
        at = end + 1
    return at


def _text(block: bytes, begin: int, end: int) -> str:
    return block[begin : min(end, begin + LINE_CHARACTERS)].decode("utf-8", "replace").rstrip("\r")
