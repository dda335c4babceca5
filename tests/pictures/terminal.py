"""What a command shows on a terminal, as an SVG: a real pseudo-terminal, and what was written to it.

The SVG is rich's, without its web fonts: a picture must not fetch anything.
"""

from __future__ import annotations

import io
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

COLUMNS, ROWS = 104, 40
LIMIT_S = 300.0
#: One drawing of the block at the terminal's foot (``commands/live_view/terminal_block.py``), and a line of it.
_DRAWING = re.compile(r"\x1b7((?:\x1b\[\d+;1H\x1b\[2K[^\x00]*?\x1b\[0m)+)\x1b8")
_LINE = re.compile(r"\x1b\[\d+;1H\x1b\[2K(.*?)\x1b\[0m(?=\x1b\[\d+;1H|$)", re.DOTALL)
#: What moves a cursor or shortens the scrolling region, unlike colours.
_MOVES = re.compile(r"\x1b(?:\[[\d;?]*[A-Za-ln-z]|[78D])")
_FONT = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    status: int
    text: str

    def drawings(self) -> list[list[str]]:
        """Each state of the block at the foot, as lines with colours."""
        found = [_LINE.findall(match[1]) for match in _DRAWING.finditer(self.text)]
        return [[line for line in lines if line] for lines in found]

    def panel(self) -> list[str]:
        """The last box that was printed, as lines with colours."""
        printed = _MOVES.sub("", _DRAWING.sub("", self.text)).replace("\r", "")
        lines = printed.split("\n")
        last = max(number for number, line in enumerate(lines) if "╰" in line)
        first = max(number for number, line in enumerate(lines[:last]) if "╭" in line)
        return lines[first : last + 1]


def run_on_terminal(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Shown:
    """Raises TimeoutError after ``LIMIT_S``."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started = subprocess.Popen(words, cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written, ends_s = b"", time.monotonic() + LIMIT_S
    try:
        while True:
            ready, _, _ = select.select([ours], [], [], 1.0)
            if time.monotonic() > ends_s:
                started.terminate()
                raise TimeoutError(" ".join(words))
            if not ready:
                continue
            try:
                more = os.read(ours, 65536)
            except OSError:  # nobody holds the other end any more
                break
            if not more:
                break
            written += more
    finally:
        os.close(ours)
    return Shown(status=started.wait(), text=written.decode("utf-8", "replace"))


def svg_of(lines: Sequence[str], title: str) -> str:
    """lines: with escape sequences of colours."""
    width = max(Text.from_ansi(line).cell_len for line in lines)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, crop=False, soft_wrap=True)
    form = _FONT.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "DejaVu Sans Mono")
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=form, unique_id="whichrank")
