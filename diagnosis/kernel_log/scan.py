"""Which lines of a block hold one of some hundred literals: found at memory speed, most lines are never touched.

Of each literal the six bytes that ordinary text has least are hashed (of a short one, four); every place of the block
is hashed likewise, and where a table has its hash a literal may stand. Such lines are candidates: few, and looked at
again by who reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

WINDOW = 6
SHORTEST = 4
_HASH_BITS = 20
_SHIFT = np.uint32(32 - _HASH_BITS)
_FIRST = np.uint32(2_654_435_761)
_SECOND = np.uint32(2_246_822_519)
_NEWLINE = 10
_COMMON = frozenset(b"etaoinsrhldcu ")


class LiteralScan:
    """Raises ValueError for a literal that is too short."""

    def __init__(self, literals: Sequence[str]) -> None:
        self._long = np.zeros(1 << _HASH_BITS, dtype=np.bool_)
        self._short = np.zeros(1 << _HASH_BITS, dtype=np.bool_)
        for literal in literals:
            window = np.frombuffer(_rarest_window(literal.encode()), dtype=np.uint8)
            short, long = _hashes(window)
            if len(window) < WINDOW:
                self._short[short[0]] = True
            else:
                self._long[long[0]] = True

    def lines(self, block: bytes) -> Iterator[tuple[int, int]]:
        """(begin, end) of each line that may hold a literal, in order, without line breaks. Takes 20 x the block."""
        data = np.frombuffer(block, dtype=np.uint8)
        breaks = np.flatnonzero(data == _NEWLINE)
        short, long = _hashes(data)
        places = np.flatnonzero(self._short[short] | self._long[long])
        begins = np.concatenate(([0], breaks + 1))
        ends = np.concatenate((breaks, [len(data)]))
        for number in np.unique(np.searchsorted(breaks, places)):
            yield int(begins[number]), int(ends[number])


def _hashes(data: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Of the four and of the six bytes from each place on; beyond the end there are zeros."""
    wide = np.zeros(len(data) + WINDOW, dtype=np.uint32)
    wide[: len(data)] = data
    pairs = wide[:-1] | wide[1:] << np.uint32(8)
    size = len(data)
    mixed = (pairs[:size] | pairs[2 : size + 2] << np.uint32(16)) * _FIRST
    return mixed >> _SHIFT, (mixed + pairs[4 : size + 4] * _SECOND) >> _SHIFT


def _rarest_window(literal: bytes) -> bytes:
    if len(literal) < SHORTEST:
        raise ValueError(f"{literal.decode()!r} is too short to be looked for: {SHORTEST} bytes or more")
    size = WINDOW if len(literal) >= WINDOW else SHORTEST
    windows = [literal[at : at + size] for at in range(len(literal) - size + 1)]
    return min(windows, key=lambda window: sum(byte in _COMMON for byte in window))
