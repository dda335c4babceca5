"""Finds the lines of a log that deserve a look, fast: 1 GB in seconds on one core, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from ..word_gate import WordGate

CHUNK_BYTES = 1 << 20
#: Of a longer line the beginning and the end are kept.
LONGEST_LINE_BYTES = 1 << 16
KEPT_TAIL_BYTES = 1 << 13


class Sink(Protocol):
    """Takes what the scan finds, in order."""

    def block(self, chunk: bytes, ends: NDArray[np.int64]) -> None:
        """A block of lines begins. ends: index of each line's end in ``chunk``."""

    def wants_next(self) -> bool:
        """Whether the very next line is needed, whatever stands in it (inside a traceback)."""

    def line(self, number: int, raw: bytes) -> None:
        """A line that deserves a look; ``number`` counts from 1."""

    def gap(self, chunk: bytes, start: int, end: int, first_number: int, last_number: int) -> None:
        """Lines without any word: ``chunk[start:end]``, whole lines with these numbers."""


def scan(file: BinaryIO, gate: WordGate, sink: Sink, before: int = 0) -> int:
    """Hands every line with a word to ``sink``, and every line that it wants next. Returns the number of lines.

    before: lines of it that were scanned already.
    """
    lines = 0
    for chunk in chunks(file):
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10)
        wanted = np.unique(np.searchsorted(ends, gate.positions(chunk)))
        sink.block(chunk, ends)
        _hand_over(chunk, ends, wanted, before + lines, sink)
        lines += len(ends)
    return lines


def _hand_over(chunk: bytes, ends: NDArray[np.int64], wanted: NDArray[np.int64], before: int, sink: Sink) -> None:
    done = 0
    upcoming = iter(wanted.tolist())
    index = next(upcoming, None)
    while True:
        if sink.wants_next():
            if done >= len(ends):
                return
            this = done
        else:
            while index is not None and index < done:
                index = next(upcoming, None)
            this = len(ends) if index is None else index
            if this > done:
                start = int(ends[done - 1]) + 1 if done else 0
                sink.gap(chunk, start, int(ends[this - 1]) + 1, before + done + 1, before + this)
            if index is None:
                return
        start = int(ends[this - 1]) + 1 if this else 0
        sink.line(before + this + 1, chunk[start : int(ends[this])])
        done = this + 1


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of whole lines, each block ending with a newline.

    Of a line beyond ``LONGEST_LINE_BYTES`` the middle is left out.
    """
    carry = b""
    while data := file.read(CHUNK_BYTES):
        cut = data.rfind(b"\n")
        if cut < 0:
            carry += data
            if len(carry) > LONGEST_LINE_BYTES:
                carry = carry[: LONGEST_LINE_BYTES - KEPT_TAIL_BYTES] + carry[-KEPT_TAIL_BYTES:]
            continue
        yield b"".join((carry, memoryview(data)[: cut + 1]))  # copied once
        carry = data[cut + 1 :]
    if carry:
        yield carry + b"\n"
