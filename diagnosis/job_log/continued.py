"""Messages that go on in the next lines: gRPC's errors with their details, and what mpirun says between its rules.

What is waited for stands in the first line, whom it is about in the second: read apart they tell half of it each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .model import LogLine, Witness
from .witnesses import of_line

RPC = re.compile(r"of RPC that terminated with:\s*$")
DETAIL = re.compile(r"(?:status|details|debug_error_string) = ")
LAUNCHER = re.compile(
    r"(?:mpirun|mpiexec|prterun|orterun) (?:has exited due to|noticed that|detected that)|MPI_ABORT was invoked|"
    r"A (?:process or )?daemon|(?:ORTE|PRTE|PMIx) (?:has lost|was unable)|"
    r"=\s+BAD TERMINATION OF ONE OF YOUR APPLICATION"
)
MOST_LINES = 6


@dataclass(slots=True)
class _Open:
    line: LogLine
    is_rpc: bool
    more: list[str]


class Continued:
    """``hold`` a line that may go on; ``feed`` lines; take witnesses from ``done``."""

    def __init__(self) -> None:
        self.done: list[Witness] = []
        self._open: _Open | None = None

    def wants_next(self) -> bool:
        """Whether a message is open that the next line may go on with."""
        return self._open is not None

    def hold(self, line: LogLine) -> bool:
        """Whether the line is the first of a message that goes on in the next ones; then that is open from now on."""
        is_rpc = "RPC that" in line.text and RPC.search(line.text) is not None
        if not is_rpc and not LAUNCHER.match(line.text):
            return False
        self.finish()
        self._open = _Open(line, is_rpc, [])
        return True

    def feed(self, line: LogLine) -> bool:
        """Whether the line goes on with the open message.

        If not, that is complete, and its witnesses are in ``done``.
        """
        held = self._open
        if held is None:
            return False
        text = line.text
        is_more = line.stream == held.line.stream and bool(text)
        if held.is_rpc:
            is_more = is_more and (text == ">" or DETAIL.match(text) is not None)
        else:
            is_more = is_more and not line.level and bool(text.strip("-=")) and not text.startswith("[")
        if not is_more or len(held.more) >= MOST_LINES:
            self.finish()
            return False
        held.more.append(text)
        if text == ">":
            self.finish()
        return True

    def finish(self) -> None:
        """Ends the open message, if there is one: its witnesses are added to ``done``."""
        held, self._open = self._open, None
        if held is not None:
            self.done += of_line(replace(held.line, text=" ".join([held.line.text, *held.more])))
