"""What whichrank itself says to people, a line at a time."""

from __future__ import annotations

import logging
import sys

from ...telemetry.printable import printable
from ...telemetry.redaction import redact

#: Lines of our own troubles; a flood of them helps nobody.
MAX_LINES = 100


def say(line: str) -> None:
    """Writes one line for people to stderr, without secrets and with nothing that a terminal acts on. Never raises.

    That may be somebody's log; stdout belongs to the command.
    """
    try:
        sys.stderr.write(f"whichrank: {printable(redact(line))}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody listens any more


class SayHandler(logging.Handler):
    """What parts of whichrank log for people, each line once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Says each line once, and so many at most: what goes on is no news."""
        line = record.getMessage()
        if line not in self._said and len(self._said) < MAX_LINES:
            self._said.add(line)
            say(line)
