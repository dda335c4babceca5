"""Puts lines together to statements: tracebacks, launchers' tables and fatal stacks are one each, however long."""

from __future__ import annotations

import re

from ..alike import asked_once
from .caught import Caught
from .continued import LAUNCHER, Continued
from .fatal_stacks import BEGIN as FATAL
from .fatal_stacks import FatalStacks
from .help_texts import BEGIN as USAGE
from .help_texts import HelpTexts
from .hung_tasks import HungTasks
from .launcher_tables import BEGIN as TABLE
from .launcher_tables import LauncherTables
from .listings import Listings
from .model import LogLine, Witness
from .terminations import WHAT, Terminations
from .tracebacks import Tracebacks
from .ways import TRACEBACK
from .witnesses import of_chain, of_line

#: Anywhere in the first line of what one of the readers below takes or notes, or at its begin.
BEGINNINGS = (TABLE, FATAL, TRACEBACK, "terminat", "blocked for more than", "RPC that", "Exception ignored in")
BEGINNING_PATTERNS = (USAGE, WHAT, LAUNCHER, re.compile("-"))


class Statements:
    """``feed`` the lines of one file in order; ``take`` what is complete; ``finish`` ends what waits for more lines."""

    def __init__(self) -> None:
        self._tracebacks = Tracebacks()
        self._tables = LauncherTables()
        self._stacks = FatalStacks()
        self._ends = Terminations()
        self._lists = Listings()
        self._help = HelpTexts()
        self._hung = HungTasks()
        self._continued = Continued()
        self._caught = Caught()
        self._readers = (
            self._caught,
            self._lists,
            self._tables,
            self._stacks,
            self._ends,
            self._hung,
            self._continued,
            self._tracebacks,
            self._help,
        )
        self._done: list[Witness] = []
        #: Whether the last line fed was of a statement of several lines.
        self.took = False
        self._is_open = False

    def wants_next(self) -> bool:
        """Whether a statement is open, so that the very next line belongs to it, or ends it."""
        return self._is_open

    @property
    def is_cut(self) -> bool:
        """Whether an open traceback has no exception yet: ended now, it would say little."""
        return self._tracebacks.is_cut

    def feed(self, line: LogLine) -> bool:
        """Whether the line says something of a failure or belongs to an open statement.

        ``take`` has what is complete.
        """
        if not self._is_open and not _may_begin(line.text):
            return self._alone(line)
        is_said = self._feed(line)
        self._is_open = self._any_open()
        return is_said

    def _alone(self, line: LogLine) -> bool:
        """A line that nothing waits for and that is none of several: most are."""
        self._tracebacks.passes(line)
        self.took = False
        is_said = self._said(line)
        self._is_open = is_said and (self._caught.wants_next() or self._lists.wants_next())
        return is_said

    def _feed(self, line: LogLine) -> bool:
        is_taken = any(reader.feed(line) for reader in self._readers)
        self._gather()
        self.took = is_taken
        if is_taken:
            return True
        if FATAL in line.text:
            self._stacks.hold(line.stream, of_line(line))
            return True
        if self._continued.hold(line):
            return True
        return self._said(line)

    def _said(self, line: LogLine) -> bool:
        """Whether a line by itself says something."""
        said = list(of_line(line))
        self._done += [witness for witness in said if not (self._lists.hold(witness) or self._caught.hold(witness))]
        return bool(said)

    def finish(self) -> None:
        """Ends every open statement, as at the end of a log or where lines were left out."""
        if not self._is_open:
            return
        for reader in self._readers:
            reader.finish()
        self._is_open = False
        self._gather()

    def take(self) -> list[Witness]:
        """Takes away the witnesses that are complete."""
        done, self._done = self._done, []
        return done

    def _any_open(self) -> bool:
        # Asked after each line: a generator costs more than all the answers.
        for reader in self._readers:  # noqa: SIM110
            if reader.wants_next():
                return True
        return False

    def _gather(self) -> None:
        for chain in self._tracebacks.done:
            self._done += of_chain(chain)
        self._tracebacks.done.clear()
        for done in (
            self._caught.done,
            self._tables.done,
            self._stacks.done,
            self._ends.done,
            self._lists.done,
            self._hung.done,
            self._continued.done,
        ):
            self._done += done
            done.clear()


@asked_once
def _may_begin(text: str) -> bool:
    """Whether a statement of several lines could begin with it: most lines are asked no more."""
    return any(word in text for word in BEGINNINGS) or any(pattern.match(text) for pattern in BEGINNING_PATTERNS)
