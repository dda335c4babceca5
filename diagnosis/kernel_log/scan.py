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
#: What kernels write all day: no window is taken from here if the literal has another.
_FREQUENT = (
    b"mlx5_core mlx5_ib firmware version loading NVIDIA UNIX driver memory available device connection error failed "
    b"filesystem mounted register enabled disabled Link is Up NVLink nvidia-nvswitch service supported initialized "
    b"Buffer interrupt timeout controller multicast promiscuous unregistering recovery "
)


class LiteralScan:
    """Raises ValueError for a literal that is too short."""

    def __init__(self, literals: Sequence[str]) -> None:
        self._long = np.zeros(1 << _HASH_BITS, dtype=np.bool_)
        self._short = np.zeros(1 << _HASH_BITS, dtype=np.bool_)
        #: window -> (literal, its bytes, where in it the window begins).
        self._windows: dict[bytes, list[tuple[str, bytes, int]]] = {}
        for literal in literals:
            at, window = _rarest_window(literal.encode())
            self._windows.setdefault(window, []).append((literal, literal.encode(), at))
            short, long = _hashes(np.frombuffer(window, dtype=np.uint8))
            if len(window) < WINDOW:
                self._short[short[0]] = True
            else:
                self._long[long[0]] = True

    def lines(self, block: bytes) -> Iterator[tuple[int, int, list[str]]]:
        """(begin, end, literals in it) of each line that holds one, in order. Takes 20 x the block."""
        data = np.frombuffer(block, dtype=np.uint8)
        breaks = np.flatnonzero(data == _NEWLINE)
        short, long = _hashes(data)
        places = np.flatnonzero(self._short[short] | self._long[long])
        numbers = np.searchsorted(breaks, places)
        current, held = -1, list[str]()
        for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
            if number != current:
                if held:
                    yield *_span(breaks, current, len(block)), held
                current, held = number, []
            for size in (SHORTEST, WINDOW):
                for literal, whole, at in self._windows.get(block[place : place + size], ()):
                    if block.startswith(whole, max(place - at, 0)):
                        held.append(literal)
        if held:
            yield *_span(breaks, current, len(block)), held


def _span(breaks: NDArray[np.intp], number: int, size: int) -> tuple[int, int]:
    begin = int(breaks[number - 1]) + 1 if number else 0
    return begin, int(breaks[number]) if number < len(breaks) else size


def _hashes(data: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Of the four and of the six bytes from each place on; beyond the end there are zeros."""
    wide = np.zeros(len(data) + WINDOW, dtype=np.uint32)
    wide[: len(data)] = data
    pairs = wide[:-1] | wide[1:] << np.uint32(8)
    size = len(data)
    mixed = (pairs[:size] | pairs[2 : size + 2] << np.uint32(16)) * _FIRST
    return mixed >> _SHIFT, (mixed + pairs[4 : size + 4] * _SECOND) >> _SHIFT


def _rarest_window(literal: bytes) -> tuple[int, bytes]:
    """(where it begins, its bytes)."""
    if len(literal) < SHORTEST:
        raise ValueError(f"{literal.decode()!r} is too short to be looked for: {SHORTEST} bytes or more")
    size = WINDOW if len(literal) >= WINDOW else SHORTEST
    windows = [(at, literal[at : at + size]) for at in range(len(literal) - size + 1)]
    return min(windows, key=lambda found: (found[1] in _FREQUENT, sum(byte in _COMMON for byte in found[1])))
