"""Tables of rows as operators see them, over the runner's working copy; what was changed in them can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

#: Operator, key, table.
TableName = tuple[str, str, str]
#: The same, and the row.
RowName = tuple[str, str, str, str]
#: What is written, or what makes it when it is needed (``Table.put_later``).
RowValue = bytes | Callable[[], bytes]
#: All rows of one table.
KeyRows = dict[str, RowValue]


class Changes:
    """Which rows were changed since the last commit, and of those changed on trial what they were before."""

    __slots__ = ("before", "dirty")

    def __init__(self) -> None:
        self.dirty: set[RowName] = set()
        #: None: nothing is on trial.
        self.before: dict[RowName, RowValue | None] | None = None

    def note(self, name: RowName, value: RowValue | None) -> None:
        """Notes that a row is about to change. value: what it is until then; None where there is none."""
        self.dirty.add(name)
        if self.before is not None and name not in self.before:
            self.before[name] = value


class RowTable:
    """``Table`` of one operator and key."""

    __slots__ = ("_changes", "_prefix", "_rows")

    def __init__(self, prefix: TableName, rows: KeyRows, changes: Changes) -> None:
        self._prefix = prefix
        self._rows = rows
        self._changes = changes

    def get(self, row: str) -> bytes | None:
        """The row's value, None without it; makes the value if it was put to be made later."""
        return made(self._rows, row)

    def put(self, row: str, value: bytes) -> None:
        """Sets the row's value, to be written with the next commit."""
        self._changes.note((*self._prefix, row), self._rows.get(row))
        self._rows[row] = bytes(value)

    def put_later(self, row: str, make: Callable[[], bytes]) -> None:
        """``make`` is called when somebody reads the row, or at the next commit; an earlier one is never called."""
        self._changes.note((*self._prefix, row), self._rows.get(row))
        self._rows[row] = make

    def delete(self, row: str) -> None:
        """Deletes the row, from the file with the next commit; nothing where there is none."""
        if (value := self._rows.get(row)) is not None:
            self._changes.note((*self._prefix, row), value)
            del self._rows[row]

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """(name, value) of all rows, in ascending order of their names."""
        return all_made(self._rows)


class KeyTables:
    """``Tables`` of one operator and key. open_table: gives the table of an operator, a key and a name."""

    __slots__ = ("_key", "_open_table", "_operator", "_tables")

    def __init__(self, open_table: Callable[[TableName], RowTable], operator: str, key: str) -> None:
        self._open_table = open_table
        self._operator = operator
        self._key = key
        self._tables: dict[str, RowTable] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables that were asked for."""
        return tuple(self._tables)

    def table(self, name: str) -> RowTable:
        """The table of this name, empty if it is new; the same object each time."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = self._open_table((self._operator, self._key, name))
        return found


def made(rows: KeyRows, row: str) -> bytes | None:
    """The value of a row, made now where it was to be made later; None without it. Raises what its ``make`` raises."""
    value = rows.get(row)
    if value is None or isinstance(value, bytes):
        return value
    rows[row] = new = bytes(value())
    return new


def made_or_why_not(rows: KeyRows, row: str) -> bytes:
    """The value of a row, or in words why it could not be made: for what is kept of broken state. Never raises."""
    try:
        return made(rows, row) or b""
    except Exception as error:  # whatever the operator holds, it is what is broken
        return f"could not be made: {type(error).__name__}".encode()


def all_made(rows: KeyRows) -> Iterator[tuple[str, bytes]]:
    """(name, value) of all rows, in ascending order of their names."""
    found = [(name, value) for name in sorted(rows) if (value := made(rows, name)) is not None]
    return iter(found)
