"""A block of lines that stays at the foot of a terminal while another program writes to the same terminal.

The command's output goes straight to the terminal, so a display that redraws by moving the cursor up would write over
it. Instead the scrolling region is shortened: the terminal itself scrolls the command's output above the block, and
each redraw is one write that saves and restores the cursor. Writes only to the terminal it was given.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

SAVE, RESTORE = "\x1b7", "\x1b8"
#: One line down without the carriage return that the terminal driver adds to a newline: a line may be half written.
INDEX = "\x1bD"
#: The block never takes more than this part of the terminal.
MAX_SHARE = 0.5
MIN_TERMINAL_ROWS = 12


class TerminalBlock:
    """Draws at the foot of a terminal. Every method raises OSError when the terminal is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._height = 0
        self._rows = 0

    @property
    def width(self) -> int:
        """Columns of the terminal by now; it may have been made narrower."""
        return os.get_terminal_size(self._descriptor).columns

    @property
    def max_height(self) -> int:
        """How many lines may be drawn now; 0 when the terminal is too small for a block."""
        rows = os.get_terminal_size(self._descriptor).lines
        return int(rows * MAX_SHARE) if rows >= MIN_TERMINAL_ROWS else 0

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines, already cut to the width; those beyond ``max_height`` are dropped.

        The block grows when it must, and shrinks only with the terminal. No lines, or no room for any: it is taken
        away.
        """
        rows = os.get_terminal_size(self._descriptor).lines
        lines = lines[: self.max_height]
        if not lines:
            self.clear()
            return
        out = ""
        if rows != self._rows or len(lines) > self._height:
            height = max(len(lines), min(self._height, self.max_height))
            out += self._release(resized=rows != self._rows) + self._reserve(rows, height)
        top = rows - self._height + 1
        out += SAVE  # whether the cursor is shown is the command's business, and stays as it is
        for index in range(self._height):
            line = lines[index] if index < len(lines) else ""
            out += f"\x1b[{top + index};1H\x1b[2K{line}\x1b[0m"
        out += RESTORE
        self._write(out)

    def clear(self) -> None:
        """Take the block away and give the whole terminal back."""
        if self._height:
            self._write(self._release())

    def _reserve(self, rows: int, height: int) -> str:
        """Scroll up what stands where the block will be, then keep scrolling out of it."""
        self._rows, self._height = rows, height
        return INDEX * height + SAVE + f"\x1b[1;{rows - height}r" + RESTORE + f"\x1b[{height}A"

    def _release(self, resized: bool = False) -> str:
        if not self._height:
            return ""
        top = self._rows - self._height
        erase = "".join(f"\x1b[{top + line};1H\x1b[2K" for line in range(1, self._height + 1))
        self._height = 0
        if resized:  # where our lines went depends on the terminal, but they are below the cursor
            return SAVE + "\x1b[r" + RESTORE + "\x1b[J"
        # Setting the region moves the cursor home, hence the save around it.
        return SAVE + "\x1b[r" + erase + RESTORE

    def _write(self, text: str) -> None:
        # One write: the terminal driver does not let the command's output in between.
        os.write(self._descriptor, text.encode())
