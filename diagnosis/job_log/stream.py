"""A log that is still written: lines in as they come, statements out as soon as they are complete.

The same rules as for whole files, without what needs the end of a job (episodes, the verdict): a statement's role is
that of its own words. Memory is bounded by what one traceback may hold of each writer.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from ..word_gate import WordGate
from .log_prefix import read_lines
from .log_scan import scan
from .model import Witness
from .statements import Statements
from .taxonomy import gate_words
from .ways import Origin


class LogStream:
    """One file. rank, node: whose it is, where its lines do not say so. Not for several threads at once."""

    def __init__(self, gate: WordGate, *, rank: int | None = None, node: str | None = None) -> None:
        self._gate = gate
        self._origin = Origin(rank=rank, node=node)
        self._statements = Statements()
        #: Lines so far; the next is one more.
        self.lines = 0

    @property
    def is_open(self) -> bool:
        """Whether something waits for more lines: ``flush`` ends it when they do not come."""
        return self._statements.wants_next()

    @property
    def is_cut(self) -> bool:
        """Whether an open traceback has no exception yet: flushed now, it would say little."""
        return self._statements.is_cut

    def feed(self, chunk: bytes) -> list[Witness]:
        """Reads whole lines, each with its end, and gives the statements that are complete by now.

        Line numbers go on from the last chunk.
        """
        self.lines += scan(io.BytesIO(chunk), self._gate, self, before=self.lines)
        return self._statements.take()

    def flush(self) -> list[Witness]:
        """Ends what is open, as the writer is silent, and gives the statements in it."""
        self._statements.finish()
        return self._statements.take()

    # --- the sink of the scan -----------------------------------------------------------------------------------------
    def wants_next(self) -> bool:
        """Whether a statement is open, so that the next line has to be read, whatever its words."""
        return self._statements.wants_next()

    def block(self, chunk: bytes, ends: NDArray[np.int64]) -> None:
        """Does nothing: what is still written was not copied from a screen, so nothing is wrapped.

        ends: (lines,), the index of each line's end.
        """

    def line(self, number: int, raw: bytes) -> None:
        """Reads one raw line; ``number`` counts from 1."""
        for line in read_lines(self._origin, number, raw):
            self._statements.feed(line)

    def gap(self, chunk: bytes, start: int, end: int, first_number: int, last_number: int) -> None:
        """Ends open statements: lines were left out here, as they have no telling word."""
        self._statements.finish()


def make_gate() -> WordGate:
    """A gate with the words of all rules; takes some milliseconds to make, so use one for all streams."""
    return WordGate(gate_words(), folds_case=True)
