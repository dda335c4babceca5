"""What a program prints when it is asked for help: options and what they do, over many lines. Nothing happened."""

from __future__ import annotations

import re

from .model import LogLine

BEGIN = re.compile(r"usage: \S+(?: \S+)?\s+[\[<-](?!.*\berror: )", re.IGNORECASE)
OPTION = re.compile(
    r"(?:-\w(?:[ =,]+[A-Z_]+)?, ?)?--[\w-]+(?:[ =](?:[A-Z_]+|\{[^}]*\}|<\w+>|\[[^\]]*\]))?(?:\s{2,}\S|\s*$)"
)
HEADING = re.compile(r"[A-Za-z][\w ]{0,40}:$")
MOST_LINES = 400


class HelpTexts:
    """``feed`` lines; says which are of a help text. Never makes a witness."""

    def __init__(self) -> None:
        self._indent = -1
        self._left = 0
        self._stream: tuple[int, int | None, int | None, str | None] | None = None

    def wants_next(self) -> bool:
        """Whether the next line may be of a help text, whose lines are no statements."""
        return self._left > 0

    def feed(self, line: LogLine) -> bool:
        """Whether the line is of a help text: below its first line all is further right, a heading, or empty."""
        if self._left and line.stream == self._stream:
            self._left -= 1
            if not line.text or line.indent > self._indent or (self._indent == 0 and HEADING.match(line.text)):
                return True
            self._left = 0
        if BEGIN.match(line.text):
            self._begin(line, 0)
            return True
        if line.text.startswith("-") and OPTION.match(line.text):
            self._begin(line, line.indent)
            return True
        return False

    def finish(self) -> None:
        """Ends the help text."""
        self._left = 0

    def _begin(self, line: LogLine, indent: int) -> None:
        self._indent, self._left, self._stream = indent, MOST_LINES, line.stream
