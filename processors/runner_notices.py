"""What was contained and is reported at the next message: keys that were set aside, and doubts. Rows of the state.

A row that cannot be made is contained by a commit, after which the process may end: what was set aside by it would
stay open for ever otherwise, as nobody else will say that it is over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .doubts import Doubt
from .runner_rows import RunnerRows


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A key whose state was set aside. reason: what its operator has raised, in one line."""

    operator: str
    key: str
    reason: str


class PendingNotices:
    """Over one table, whose rows are in the order in which they came as long as the process lives."""

    def __init__(self, state: RunnerRows) -> None:
        self._table = state.open_table(("runner", "", "notices"))
        self._number = 0
        #: Whether there is anything to tell.
        self.is_any = next(self._table.rows(), None) is not None

    def add_key(self, given_up: GivenUp) -> None:
        """Keeps a key that was set aside."""
        self._put([given_up.operator, given_up.key, given_up.reason])

    def add_doubt(self, doubt: Doubt) -> None:
        """Keeps what a telemetry incident is to say."""
        self._put([doubt.what, doubt.entity, doubt.words, "doubt"])

    def take(self) -> tuple[list[GivenUp], list[Doubt]]:
        """All that was kept, keys and doubts; the rows are deleted. What cannot be read is passed over."""
        keys, doubts = list[GivenUp](), list[Doubt]()
        self.is_any = False
        for row, value in list(self._table.rows()):
            self._table.delete(row)
            try:
                first, second, third, *is_doubt = map(str, json.loads(value))
            except (ValueError, TypeError):
                continue  # of another release
            if is_doubt:
                doubts.append(Doubt(what=first, entity=second, words=third))
            else:
                keys.append(GivenUp(operator=first, key=second, reason=third))
        return keys, doubts

    def _put(self, said: list[str]) -> None:
        while self._table.get(name := f"{self._number:08d}") is not None:
            self._number += 1
        self._table.put(name, json.dumps(said).encode())
        self.is_any = True
