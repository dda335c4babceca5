"""Where in a block of bytes some hundred words stand: found at memory speed, most bytes are never looked at by Python.

Each word is found by its rarest four bytes: a block is read as 32-bit numbers at four offsets, hashed into a table of
one bit per value, and only what hits is compared: with the first, rarest and last four bytes of a word. In C where
there was a compiler (``_word_gate.c``), four times as fast; else by numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

try:
    from ._word_gate import positions as _positions
except ImportError:  # no compiler where this was installed
    _positions = None  # type: ignore[assignment]

WINDOW = 4
#: Sets the bit that tells lower from upper case, in letters.
FOLD = 0x20
#: The arrays of a piece, and the table, stay in a core's cache.
PIECE_BYTES = 1 << 18
HASH = np.uint32(0x9E3779B1)
HASH_BITS = 18
#: Bytes of ordinary logs, the most frequent first; what is not listed is rare.
FREQUENT = b" etaoinsrlcd0pm1u2f.:,=_/-3g45bh6789|wvykx[]()\"'"


@dataclass(frozen=True, slots=True)
class _Word:
    gram: int
    offset: int
    first: int
    last: int
    length: int


class WordGate:
    """``folds_case``: words are lower case, and found in any. ``common``: what such logs hold all day; a word is not
    looked for by four bytes of this if it has others. Raises ValueError for a word of fewer than four bytes.
    """

    def __init__(self, words: Sequence[str], *, folds_case: bool, common: bytes = b"") -> None:
        self._fold = FOLD if folds_case else 0
        parsed = [_word(word, self._fold, common) for word in words]
        #: Words by their rarest four bytes (folded), each with where in it these begin.
        self.by_window: dict[bytes, list[tuple[str, int]]] = {}
        by_gram: dict[int, list[_Word]] = {}
        for word, parts in zip(words, parsed, strict=True):
            self.by_window.setdefault(parts.gram.to_bytes(WINDOW, "little"), []).append((word, parts.offset))
            by_gram.setdefault(parts.gram, []).append(parts)
        grams = sorted(by_gram)
        self._grams = np.array(grams, np.uint32)
        self._margin = max(parts.length for parts in parsed) + WINDOW
        self._count = np.array([len(by_gram[gram]) for gram in grams])
        #: For the n-th word of each gram: where its first and last four bytes are from the gram, and what they are.
        depth = max(len(each) for each in by_gram.values())
        self._shift = np.zeros((depth, len(grams)), np.int64)
        self._last = np.zeros((depth, len(grams)), np.uint32)
        self._back = np.zeros((depth, len(grams)), np.int64)
        self._first = np.zeros((depth, len(grams)), np.uint32)
        for column, gram in enumerate(grams):
            found = by_gram[gram]
            for row, parts in enumerate(found):
                self._shift[row, column] = parts.length - WINDOW - parts.offset
                self._last[row, column] = parts.last
                self._back[row, column] = -parts.offset
                self._first[row, column] = parts.first
        self._table = np.zeros(1 << HASH_BITS, np.bool_)
        self._table[_hash(self._grams)] = True
        #: The same as ``_word_gate.c`` takes it: a bit per hash, and the words by their grams.
        self._bits = np.packbits(self._table, bitorder="little").tobytes()
        by_number = sorted(parsed, key=lambda parts: parts.gram)
        rows = (
            (each.gram, each.first, each.last, -each.offset, each.length - WINDOW - each.offset) for each in by_number
        )
        self._packed = b"".join(struct.pack("=IIIii", *row) for row in rows)

    def positions(self, block: bytes) -> NDArray[np.int64]:
        """Indexes in the block where words stand, (n,), in no order; each is that of the word's rarest four bytes.

        In a long word's middle anything may stand.
        """
        if _positions is None:
            return self.positions_by_numpy(block)
        return np.frombuffer(_positions(block, self._fold, self._bits, int(HASH), self._packed), np.int64)

    def positions_by_numpy(self, block: bytes) -> NDArray[np.int64]:
        """Indexes in the block where words stand, (n,), without the C module: the same as ``positions`` gives."""
        margin = self._margin
        data = np.full(len(block) + 2 * margin, FOLD, np.uint8)
        np.bitwise_or(np.frombuffer(block, np.uint8), self._fold, out=data[margin : margin + len(block)])
        found = [np.zeros(0, np.int64)]
        for begin in range(margin, margin + len(block), PIECE_BYTES):
            end = min(begin + PIECE_BYTES + WINDOW - 1, margin + len(block))
            for start in range(begin, begin + WINDOW):
                count = (end - start) // WINDOW
                if count > 0:
                    values = data[start : start + WINDOW * count].view("<u4")
                    found.append(np.flatnonzero(self._table[_hash(values)]) * WINDOW + start)
        at = np.concatenate(found)
        values = _read(data, at)
        column = np.minimum(np.searchsorted(self._grams, values), len(self._grams) - 1)
        is_gram = self._grams[column] == values
        at, column = at[is_gram], column[is_gram]
        is_word = np.zeros(len(at), np.bool_)
        left = np.arange(len(at))
        for row in range(len(self._last)):
            left = left[(self._count[column[left]] > row) & ~is_word[left]]
            place, of = at[left], column[left]
            is_last = _read(data, place + self._shift[row, of]) == self._last[row, of]
            is_word[left] = is_last & (_read(data, place + self._back[row, of]) == self._first[row, of])
        positions: NDArray[np.int64] = at[is_word] - margin
        return positions


def _word(word: str, fold: int, common: bytes) -> _Word:
    folded = bytes(byte | fold for byte in word.encode())
    if len(folded) < WINDOW:
        raise ValueError(f"{word!r} is too short to be looked for: {WINDOW} bytes or more")
    offset = max(
        range(len(folded) - WINDOW + 1),
        key=lambda at: (
            folded[at : at + WINDOW] not in common,
            sum(_rarity(byte) for byte in folded[at : at + WINDOW]),
        ),
    )
    return _Word(
        gram=int.from_bytes(folded[offset : offset + WINDOW], "little"),
        offset=offset,
        first=int.from_bytes(folded[:WINDOW], "little"),
        last=int.from_bytes(folded[-WINDOW:], "little"),
        length=len(folded),
    )


def _rarity(byte: int) -> int:
    place = FREQUENT.find(byte)
    return place if place >= 0 else len(FREQUENT)


def _hash(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    hashed: NDArray[np.uint32] = (values * HASH) >> np.uint32(32 - HASH_BITS)
    return hashed


def _read(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The four bytes at each place, as little-endian numbers."""
    value: NDArray[np.uint32] = data[at].astype(np.uint32)
    for step in (1, 2, 3):
        value |= data[at + step].astype(np.uint32) << np.uint32(8 * step)
    return value
