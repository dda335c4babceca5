"""Which lines of a block hold one of some hundred literals; most lines are never touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..word_gate import WINDOW, WordGate

#: What kernels write all day.
_COMMON = (
    b"mlx5_core mlx5_ib firmware version loading NVIDIA UNIX driver memory available device connection error failed "
    b"filesystem mounted register enabled disabled Link is Up link NVLink nvidia-nvswitch service supported "
    b"initialized Buffer interrupt timeout controller multicast promiscuous unregistering recovery with kernel lock "
    b"signal detected Error GPU PCIe request Failed down has been required "
)


class LiteralScan:
    """Raises ValueError for a literal that is too short."""

    def __init__(self, literals: Sequence[str]) -> None:
        self._gate = WordGate(literals, folds_case=False, common=_COMMON)
        #: The gate's words by window: (literal, its bytes, where in it the window begins).
        self._literals = {
            window: [(literal, literal.encode(), at) for literal, at in found]
            for window, found in self._gate.by_window.items()
        }

    def lines(self, block: bytes) -> Iterator[tuple[int, int, list[str]]]:
        """(begin, end, literals in it) of each line that holds one, in order."""
        begin, end = 0, -1
        held: list[str] = []
        for place in np.sort(self._gate.positions(block)).tolist():
            for literal, whole, at in self._literals[block[place : place + WINDOW]]:
                if place < at or not block.startswith(whole, place - at):
                    continue
                if place > end:
                    if held:
                        yield begin, end, held
                    held = []
                    begin = block.rfind(b"\n", 0, place) + 1
                    end = block.find(b"\n", place)
                    if end < 0:
                        end = len(block)
                held.append(literal)
        if held:
            yield begin, end, held
