"""What any runner keeps of its operators while it runs: rows, timers, and where the input stands. In memory alone.

How it becomes durable is each runner's own: ``runner_state`` (SQLite), ``flink.keyed_rows`` (Flink's keyed state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .runner_aside import SetAside, surplus
from .runner_tables import Changes, KeyRows, RowTable, TableName, all_made, made, made_or_why_not
from .runner_timers import TimerTable


@dataclass(slots=True, kw_only=True)
class Position:
    """Where the input stands and what time it is there. All of it follows from the bus alone, so a replay agrees."""

    bus: str = ""  # identity of the bus the positions belong to
    after: int = 0
    now_ns: int = 0  # stamp of the last input, tick or mark
    input_ns: int = 0  # stamp of the last input
    beats: int = 0  # ticks since the last input
    silent: bool = False  # input_silent was logged and no input has come since
    outbox_id: int = 0
    cluster: str = ""  # of the last input, for marks of the runner's own


class RunnerRows:
    """Rows and timers of operators, and the position of the input. For one thread."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.timers = TimerTable()
        #: Called with operator, key and error where a row that was put to be made later cannot be made: it must take
        #: the key out of use. None: what was raised comes out.
        self.contain: Callable[[str, str, Exception], None] | None = None
        self._rows: dict[TableName, KeyRows] = {}
        self._tables_of: dict[tuple[str, str], dict[str, None]] = {}  # by operator and key
        self._changes = Changes()
        self._aside: list[SetAside] = []  # not written yet

    @property
    def keeps_aside(self) -> bool:
        """Whether rows that are taken out of use are kept for a person who looks into it."""
        return False

    def open_table(self, prefix: tuple[str, str, str]) -> RowTable:
        """A table of (operator, key, name), empty where there is none."""
        return RowTable(prefix, self._rows_for(prefix), self._changes)

    def _rows_for(self, table: TableName) -> KeyRows:
        rows = self._rows.get(table)
        if rows is None:
            rows = self._rows[table] = {}
            self._tables_of.setdefault(table[:2], {})[table[2]] = None
        return rows

    def row_count(self) -> int:
        """How many rows all operators and keys have."""
        return sum(map(len, self._rows.values()))

    def rows_of(self, operator: str, table: str) -> Iterator[tuple[str, bytes]]:
        """(name, value) of the rows of one operator's table, over all keys."""
        for (owner, _, name), rows in self._rows.items():
            if (owner, name) == (operator, table):
                yield from all_made(rows)

    # --- trouble ---
    def begin_trial(self) -> None:
        """What is changed from here on can be taken back, until ``end_trial``. Trials are not nested."""
        self._changes.before = {}
        self.timers.begin_trial()

    def end_trial(self, *, keep: bool) -> None:
        """Keeps what was changed since ``begin_trial``, or takes it back.

        Rows that were put to be made later are made at once, as they could not be taken back to later: raises what
        making one raises, and the trial goes on.
        """
        before = self._changes.before or {}
        for name in before if keep else ():
            made(self._rows.get(name[:3], {}), name[3])
        self._changes.before = None
        self.timers.end_trial(keep=keep)
        for name, value in () if keep else before.items():
            rows = self._rows_for(name[:3])
            if value is None:
                rows.pop(name[3], None)
            else:
                rows[name[3]] = value

    def put_aside(self, operator: str, key: str, at_ns: int, why: str, owner: str = "") -> None:
        """Takes rows and timers of a key out of use; the rows are kept apart, under the time and the reason, where
        ``keeps_aside``.

        at_ns: Unix, by the bus. owner: of the job that the key is of.
        """
        rows: dict[tuple[str, str], bytes] = {}
        for table in self._tables_of.get((operator, key), ()):
            kept = self._rows[(operator, key, table)]
            for row in list(kept):
                rows[(table, row)] = made_or_why_not(kept, row)
                self._changes.note((operator, key, table, row), None)
            kept.clear()
        self.timers.clear_key(operator, key)
        if self.keeps_aside:
            self._aside.append(SetAside(operator=operator, key=key, at_ns=at_ns, why=why, owner=owner, rows=rows))
            for place in surplus(each.owner for each in self._aside):
                del self._aside[place]  # one at most

    def keys_of(self, operator: str) -> list[str]:
        """Keys of which the operator has rows, in the order in which they came or were read."""
        return list(dict.fromkeys(key for (owner, key, _), rows in self._rows.items() if owner == operator and rows))

    def delete_key(self, operator: str, key: str) -> None:
        """Deletes all rows and timers of a key."""
        for table in self._tables_of.get((operator, key), ()):
            kept = self._rows[(operator, key, table)]
            for row in kept:
                self._changes.note((operator, key, table, row), None)
            kept.clear()
        self.timers.clear_key(operator, key)

    def drop_tables(self, operator: str, key: str, tables: Iterable[str]) -> None:
        """Frees tables of a key whose rows are all deleted; whoever holds one of them must let it go."""
        for table in tables:
            if not self._rows.get((operator, key, table), True):
                del self._rows[(operator, key, table)]
                del self._tables_of[(operator, key)][table]
        if not self._tables_of.get((operator, key), True):
            del self._tables_of[(operator, key)]

    def _make_rows(self) -> None:
        """Makes rows that were put to be made later; ``contain`` takes what cannot be."""
        for name in list(self._changes.dirty):
            try:
                made(self._rows.get(name[:3], {}), name[3])
            except Exception as error:  # an operator's, not the disk's
                if self.contain is None:
                    raise
                self.contain(*name[:2], error)
