"""C++ exceptions that nothing caught: ``terminate called`` is how a process ended, and its ``what()`` is why."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .model import LogLine, Witness
from .taxonomy import failure_classes
from .witnesses import of_exception, of_line

BEGIN = re.compile(
    r"terminate called after throwing an instance of '(?P<kind>[^']{1,200})'|"
    r"libc\+\+abi: terminating (?:due to|with) uncaught exception of type (?P<type>[\w:<>]+)(?:: (?P<message>.+))?"
)
WHAT = re.compile(r"what\(\): {0,4}(?P<message>.*)")
#: Lines, of anybody, in which what() may still come.
PATIENCE = 24


@dataclass(slots=True)
class _Ended:
    line: LogLine
    kind: str


class Terminations:
    """``feed`` lines; take witnesses from ``done``."""

    def __init__(self) -> None:
        self.done: list[Witness] = []
        self._open: dict[tuple[int, int | None, int | None, str | None], _Ended] = {}

    def wants_next(self) -> bool:
        """Whether a termination is open, whose ``what()`` may follow."""
        return bool(self._open)

    def feed(self, line: LogLine) -> bool:
        """Whether the line is of a C++ exception that nothing caught. Those that are over are added to ``done``."""
        if self._open:
            for stream, ended in list(self._open.items()):
                if not 0 <= line.number - ended.line.number <= PATIENCE:
                    self._end(stream)
        if "terminat" in line.text and (begun := BEGIN.search(line.text)):
            if begun["message"]:
                self.done.append(_thrown(line, begun["type"], begun["message"]))
                return True
            if line.stream in self._open:
                self._end(line.stream)
            self._open[line.stream] = _Ended(line, begun["kind"] or begun["type"])
            return True
        if what := WHAT.match(line.text):
            begun_by = self._open.pop(line.stream, None)
            self.done.append(_thrown(line, begun_by.kind if begun_by else "std::exception", what["message"]))
            return True
        return False

    def finish(self) -> None:
        """Ends every open termination: its witness is added to ``done``."""
        for stream in list(self._open):
            self._end(stream)

    def _end(self, stream: tuple[int, int | None, int | None, str | None]) -> None:
        self.done += of_line(self._open.pop(stream).line)


def _thrown(line: LogLine, kind: str, message: str) -> Witness:
    witness = of_exception(line, kind, message)
    if not witness.rule and witness.failure.name == "exception":
        return replace(witness, failure=failure_classes()["native_crash"])
    return witness
