"""Reads whole logs in blocks: bounded memory, whatever the length of log and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Protocol

from .event import KernelEvent
from .kernel_log_reader import LINE_CHARACTERS, KernelLogReader
from .line_scan import LineKind, LineScan
from .repeats import RepeatLane

BLOCK_BYTES = 1 << 18


class Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """The next bytes, at most ``size``; b"" at the end."""


def read_log(reader: KernelLogReader, stream: Readable, repeats: RepeatLane | None = None) -> Iterator[KernelEvent]:
    """All events of a log, to its end, but for those that ``repeats`` counts itself.

    Of a line longer than a block only the beginning is read. Raises what ``stream.read`` raises.
    """
    scan = LineScan(reader.words, reader.may_match_folded)
    kept, last = b"", b""
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
            yield from _read_block(reader, scan, whole[:LINE_CHARACTERS], repeats)
            kept, is_cut = b"", True
            continue
        if end:
            yield from _read_block(reader, scan, whole[: end - 1], repeats)
            last = whole[max(0, end - LINE_CHARACTERS) : end]
        kept = whole[end:]
    if kept:
        yield from _read_block(reader, scan, kept, repeats)
        last = kept if kept.strip() else last
    yield from reader.flush()
    if last.strip():
        yield from reader.end(last.rstrip().rpartition(b"\n")[2].decode("utf-8", "replace"))


def _read_block(
    reader: KernelLogReader, scan: LineScan, block: bytes, repeats: RepeatLane | None
) -> Iterator[KernelEvent]:
    """Whole lines. After a line that began something the next ones are read too, as long as the reader wants them."""
    lines = block.split(b"\n")
    if repeats is None:
        for line, kind in zip(lines, scan.kinds(block), strict=True):
            if kind.candidates or reader.wants_next:
                yield from _read_line(reader, scan, line, kind)
        return
    take, before = repeats.take, repeats.taken
    is_wanted = reader.wants_next
    # In a flood most lines are repeats: what they might hold is asked of the others only.
    known = repeat(None, len(lines)) if repeats.is_flood else scan.kinds(block)
    for line, asked in zip(lines, known, strict=True):
        if not is_wanted:
            if asked is not None and not asked.candidates:
                continue
            if take(line):
                continue
        events = _read_line(reader, scan, line, asked or scan.kind_of(line))
        yield from events
        if len(events) == 1:
            repeats.learn(line, events[0], reader)
        is_wanted = reader.wants_next
    repeats.is_flood = (repeats.taken - before) * 2 > len(lines)


def _read_line(reader: KernelLogReader, scan: LineScan, line: bytes, kind: LineKind) -> Sequence[KernelEvent]:
    is_wanted = reader.wants_next
    words = kind.words if is_wanted else scan.candidates_in(line, kind)
    literals = [word for word, raw in words if raw in line]
    if not literals and not is_wanted:
        scan.said_nothing(line, kind)
        return ()
    text = line[:LINE_CHARACTERS].decode("utf-8", "replace").rstrip("\r")
    events = reader.read(text, literals=literals)
    if not events and not is_wanted:
        scan.said_nothing(line, kind)
    return events
