"""Stacks that Python's faulthandler prints below "Fatal Python error": frames of the thread that crashed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .model import LogLine, TracebackFrame, Witness
from .tracebacks import FRAME
from .witnesses import refined

BEGIN = "Fatal Python error"
THREAD = re.compile(r"(?P<current>Current thread|Thread) 0x[0-9a-fA-F]+")
#: Lines of others between two of one stream, after which the stack counts as ended.
SILENT_LINES = 200
MOST_FRAMES = 100


@dataclass(slots=True)
class _Stack:
    witness: Witness
    last_number: int
    is_current: bool = False
    frames: list[TracebackFrame] = field(default_factory=list)


class FatalStacks:
    """``hold`` a witness that a stack may follow; ``feed`` lines; take witnesses from ``done``."""

    def __init__(self) -> None:
        self.done: list[Witness] = []
        self._open: dict[tuple[int, int | None, int | None, str | None], _Stack] = {}

    def wants_next(self) -> bool:
        """Whether a stack is open that the next line may belong to."""
        return bool(self._open)

    def hold(self, stream: tuple[int, int | None, int | None, str | None], witnesses: Iterable[Witness]) -> None:
        """Holds witnesses of fatal errors until the frames below them have been read. stream: of their line."""
        for witness in witnesses:
            if stream in self._open:
                self._end(stream)
            self._open[stream] = _Stack(witness, witness.line.number)

    def feed(self, line: LogLine) -> bool:
        """Whether the line is of an open stack. Stacks that are over are added to ``done`` with their frames."""
        for stream, stack in list(self._open.items()):
            if line.number - stack.last_number > SILENT_LINES:
                self._end(stream)
        found = self._open.get(line.stream)
        if found is None:
            return False
        found.last_number = line.number
        if thread := THREAD.match(line.text):
            found.is_current = thread["current"] == "Current thread"
            return True
        if frame := FRAME.match(line.text):
            if found.is_current and len(found.frames) < MOST_FRAMES:
                found.frames.append(TracebackFrame(frame["file"], int(frame["line"]), frame["function"] or ""))
            return True
        if not line.text or line.text.startswith(("<no Python frame>", "Python runtime state")):
            return True
        self._end(line.stream)
        return line.text.startswith("Extension modules")

    def finish(self) -> None:
        """Ends every open stack: its witness is added to ``done``."""
        for stream in list(self._open):
            self._end(stream)

    def _end(self, stream: tuple[int, int | None, int | None, str | None]) -> None:
        stack = self._open.pop(stream)
        # faulthandler has the innermost first.
        self.done.append(refined(replace(stack.witness, frames=tuple(reversed(stack.frames)))))
