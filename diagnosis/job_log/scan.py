"""Finds the lines of a log that deserve a look, fast: 1 GB in seconds on one core, in bounded memory.

Each word of ``gate.toml`` is found by its rarest four bytes: a chunk is read as 32-bit numbers at four offsets, hashed
into a table of one bit per value, and only what hits is compared: with the first, rarest and last four bytes of a word.
Case is folded by setting bit 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 20
#: Of a longer line the beginning and the end are kept.
LONGEST_LINE_BYTES = 1 << 16
KEPT_TAIL_BYTES = 1 << 13
FOLD = 0x20
HASH = np.uint32(0x9E3779B1)
HASH_BITS = 20
#: Bytes of ordinary logs, the most frequent first; what is not listed is rare.
FREQUENT = b" etaoinsrlcd0pm1u2f.:,=_/-3g45bh6789|wvykx[]()\"'"


class Sink(Protocol):
    """Takes what the scan finds, in order."""

    def wants_next(self) -> bool:
        """Whether the very next line is needed, whatever stands in it (inside a traceback)."""

    def line(self, number: int, raw: bytes) -> None: ...

    def gap(self, chunk: bytes, start: int, end: int, first_number: int) -> None:
        """Lines without any word: ``chunk[start:end]``, whole lines, the first of which is ``first_number``."""


@dataclass(frozen=True, slots=True)
class _Word:
    gram: int
    offset: int
    first: int
    last: int
    length: int


class Gate:
    def __init__(self, words: Sequence[str]) -> None:
        """Raises ValueError if a word is shorter than four bytes."""
        parsed = [_word(word) for word in words]
        grams = sorted({word.gram for word in parsed})
        self._grams = np.array(grams, np.uint32)
        by_gram: dict[int, list[_Word]] = {gram: [] for gram in grams}
        for word in parsed:
            by_gram[word.gram].append(word)
        #: For the n-th word of each gram: where its first and last four bytes are from the gram, and what they are.
        depth = max(len(each) for each in by_gram.values())
        self._shift = np.zeros((depth, len(grams)), np.int64)
        self._last = np.zeros((depth, len(grams)), np.uint32)
        self._back = np.zeros((depth, len(grams)), np.int64)
        self._first = np.zeros((depth, len(grams)), np.uint32)
        for column, gram in enumerate(grams):
            found = by_gram[gram]
            for row in range(depth):
                word = found[min(row, len(found) - 1)]
                self._shift[row, column] = word.length - 4 - word.offset
                self._last[row, column] = word.last
                self._back[row, column] = -word.offset
                self._first[row, column] = word.first
        self._table = np.zeros(1 << HASH_BITS, np.bool_)
        self._table[_hash(self._grams)] = True

    def positions(self, chunk: bytes) -> NDArray[np.int64]:
        """Where words are, in no order; at their rarest four bytes."""
        margin = 64
        folded = np.full(len(chunk) + 2 * margin, FOLD, np.uint8)
        np.bitwise_or(np.frombuffer(chunk, np.uint8), FOLD, out=folded[margin : margin + len(chunk)])
        found = []
        for offset in range(4):
            count = (len(chunk) - offset) // 4
            if count <= 0:
                continue
            start = margin + offset
            values = folded[start : start + 4 * count].view("<u4")
            found.append(np.flatnonzero(self._table[_hash(values)]) * 4 + start)
        if not found:
            return np.zeros(0, np.int64)
        at = np.concatenate(found)
        values = _read(folded, at)
        column = np.minimum(np.searchsorted(self._grams, values), len(self._grams) - 1)
        is_gram = self._grams[column] == values
        at, column = at[is_gram], column[is_gram]
        is_word = np.zeros(len(at), np.bool_)
        for row in range(len(self._last)):
            is_last = _read(folded, at + self._shift[row, column]) == self._last[row, column]
            is_word |= is_last & (_read(folded, at + self._back[row, column]) == self._first[row, column])
        positions: NDArray[np.int64] = at[is_word].astype(np.int64) - margin
        return positions


def scan(file: BinaryIO, gate: Gate, sink: Sink, before: int = 0) -> int:
    """Hands every line with a word to ``sink``, and every line that it wants next. Returns the number of lines.

    before: lines of it that were scanned already.
    """
    lines = 0
    for chunk in chunks(file):
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10)
        wanted = np.unique(np.searchsorted(ends, gate.positions(chunk)))
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
                sink.gap(chunk, start, int(ends[this - 1]) + 1, before + done + 1)
            if index is None:
                return
        start = int(ends[this - 1]) + 1 if this else 0
        sink.line(before + this + 1, chunk[start : int(ends[this])])
        done = this + 1


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines, each ending with a newline."""
    carry = b""
    while data := file.read(CHUNK_BYTES):
        cut = data.rfind(b"\n")
        if cut < 0:
            carry += data
            if len(carry) > LONGEST_LINE_BYTES:
                carry = carry[: LONGEST_LINE_BYTES - KEPT_TAIL_BYTES] + carry[-KEPT_TAIL_BYTES:]
            continue
        yield carry + data[: cut + 1]
        carry = data[cut + 1 :]
    if carry:
        yield carry + b"\n"


def _word(word: str) -> _Word:
    folded = bytes(byte | FOLD for byte in word.encode())
    if len(folded) < 4:
        raise ValueError(f"gate.toml: {word!r} is shorter than four bytes")
    offset = max(range(len(folded) - 3), key=lambda at: sum(_rarity(byte) for byte in folded[at : at + 4]))
    return _Word(
        gram=int.from_bytes(folded[offset : offset + 4], "little"),
        offset=offset,
        first=int.from_bytes(folded[:4], "little"),
        last=int.from_bytes(folded[-4:], "little"),
        length=len(folded),
    )


def _rarity(byte: int) -> int:
    place = FREQUENT.find(byte)
    return place if place >= 0 else len(FREQUENT)


def _hash(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    hashed: NDArray[np.uint32] = (values * HASH) >> np.uint32(32 - HASH_BITS)
    return hashed


def _read(folded: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The four bytes at each place, as little-endian numbers."""
    value: NDArray[np.uint32] = folded[at].astype(np.uint32)
    for step in (1, 2, 3):
        value |= folded[at + step].astype(np.uint32) << np.uint32(8 * step)
    return value
