"""The block at the foot of the terminal never touches what the command writes: checked on a small terminal emulator."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichrank.commands.live_view.terminal_block import TerminalBlock

ROWS, COLUMNS = 16, 40
END = b"\x00"
_TOKEN = re.compile(r"\x1b[78D]|\x1b\[(\??)([0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]")


class Terminal:
    """Enough of a VT100 to know what stands where: cursor, scrolling region, erasing, what scrolled off."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.screen = [""] * rows
        self.scrolled: list[str] = []
        self.row = self.column = 0
        self.top, self.bottom = 0, rows - 1
        self.saved = (0, 0)

    def feed(self, text: str) -> None:
        for token in _TOKEN.finditer(text):
            word = token.group(0)
            if word == "\x1b7":
                self.saved = (self.row, self.column)
            elif word == "\x1b8":
                self.row, self.column = self.saved
            elif word.startswith("\x1b["):
                if not token.group(1):
                    self._control(token.group(3), [int(n) if n else 0 for n in token.group(2).split(";")])
            elif word == "\r":
                self.column = 0
            elif word in ("\n", "\x1bD"):
                self._line_feed()
            else:
                line = self.screen[self.row].ljust(self.column)
                self.screen[self.row] = line[: self.column] + word + line[self.column + 1 :]
                self.column += 1

    def _control(self, letter: str, numbers: list[int]) -> None:
        first = numbers[0]
        if letter == "r":
            whole = numbers == [0]
            self.top, self.bottom = (0, self.rows - 1) if whole else (first - 1, numbers[1] - 1)
            self.row = self.column = 0
        elif letter == "H":
            self.row, self.column = max(first, 1) - 1, max(numbers[1] if len(numbers) > 1 else 1, 1) - 1
        elif letter == "A":
            self.row = max(0, self.row - max(first, 1))
        elif letter == "K":
            self.screen[self.row] = "" if first == 2 else self.screen[self.row][: self.column]
        elif letter == "J":
            self.screen[self.row] = self.screen[self.row][: self.column]
            self.screen[self.row + 1 :] = [""] * (self.rows - self.row - 1)
        else:
            assert letter in "mhl", f"sequence {letter!r} is not expected here"

    def _line_feed(self) -> None:
        if self.row == self.bottom:
            if self.top == 0:
                self.scrolled.append(self.screen[0])
            del self.screen[self.top]
            self.screen.insert(self.bottom, "")
        elif self.row < self.rows - 1:
            self.row += 1


class Line:
    """A pseudo terminal whose output is read all the time."""

    def __init__(self, rows: int = ROWS) -> None:
        self.master, self.slave = os.openpty()
        self.resize(rows)
        self._read = bytearray()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def resize(self, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))

    def write(self, text: str) -> None:
        os.write(self.slave, text.encode())

    def close(self) -> str:
        """All that was written. The end is a mark: a reader may hear of a closed end before what was written to it."""
        os.write(self.slave, END)
        self._reader.join(30)
        assert self._read.endswith(END), "the terminal has not passed on all that was written to it within 30 s"
        os.close(self.slave)
        os.close(self.master)
        return self._read[: -len(END)].decode()

    def _collect(self) -> None:
        while not self._read.endswith(END):
            self._read += os.read(self.master, 4096)


@pytest.fixture
def line() -> Line:
    return Line()


def test_the_block_stands_at_the_foot_and_the_output_above(line: Line) -> None:
    block = TerminalBlock(line.slave)
    line.write("one\ntwo\n")
    block.draw(["== status", "rank 0"])
    line.write("three\n")
    terminal = Terminal(ROWS, COLUMNS)
    terminal.feed(line.close())
    assert terminal.screen[:3] == ["one", "two", "three"]
    assert terminal.screen[-2:] == ["== status", "rank 0"]


def test_clear_gives_the_whole_terminal_back(line: Line) -> None:
    block = TerminalBlock(line.slave)
    block.draw(["== status"])
    block.clear()
    line.write("".join(f"line {n}\n" for n in range(ROWS)))
    terminal = Terminal(ROWS, COLUMNS)
    terminal.feed(line.close())
    assert (terminal.top, terminal.bottom) == (0, ROWS - 1)
    assert not any("status" in text for text in terminal.screen + terminal.scrolled)


def test_a_small_terminal_gets_no_block(line: Line) -> None:
    line.resize(8)
    block = TerminalBlock(line.slave)
    block.draw(["== status"])
    assert line.close() == ""


WRITES = st.one_of(
    st.integers(1, 6).map(lambda n: ("draw", n)),
    st.integers(1, 9).map(lambda n: ("print", n)),
    st.just(("part", 0)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(WRITES, max_size=25))
def test_every_line_of_the_command_survives_whatever_is_drawn_between(writes: list[tuple[str, int]]) -> None:
    line = Line()
    block = TerminalBlock(line.slave)
    written: list[str] = []
    partial = ""
    for kind, number in writes:
        if kind == "draw":
            block.draw([f"~status {index}" for index in range(number)])
        elif kind == "part":
            line.write(".")
            partial += "."
        else:
            for _ in range(number):
                text = f"output {len(written)}"
                line.write(f"{text}\n")
                written.append(partial + text)
                partial = ""
    block.clear()
    terminal = Terminal(ROWS, COLUMNS)
    terminal.feed(line.close())
    shown = [text for text in terminal.scrolled + terminal.screen if text]
    assert shown == written + ([partial] if partial else [])
