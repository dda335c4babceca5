"""Exceptions of one line that somebody caught: the very next line of their writer says what was done instead."""

from __future__ import annotations

from .carriers import LOUD_LEVELS
from .model import Form, LogLine, Witness
from .tracebacks import HANDLED


class Caught:
    """``hold`` a witness until the next line was fed; take witnesses from ``done``."""

    def __init__(self) -> None:
        self.done: list[Witness] = []
        self._held: Witness | None = None

    def wants_next(self) -> bool:
        """Whether an exception is held until its writer's next line."""
        return self._held is not None

    def hold(self, witness: Witness) -> bool:
        """Whether the witness, an exception without a stack, is held until the next line tells if it was caught."""
        if witness.form is not Form.EXCEPTION or witness.frames:
            return False
        self.finish()
        self._held = witness
        return True

    def feed(self, line: LogLine) -> bool:
        """Decides by this line whether the exception that is held was caught: then it is dropped, else added to
        ``done``.

        Always False: the line is what it is, whatever stood before it.
        """
        held = self._held
        if held is None:
            return False
        is_next = line.number - held.line.number == 1 and line.stream == held.line.stream
        if is_next and line.level not in LOUD_LEVELS and HANDLED.search(line.text) is not None:
            self._held = None
        self.finish()
        return False

    def finish(self) -> None:
        """Nothing follows: an exception that is held was not caught, and is added to ``done``."""
        if self._held is not None:
            self.done.append(self._held)
            self._held = None
