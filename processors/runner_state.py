"""What the embedded runner keeps: rows of the operators, timers, input position, outbox; in memory and in SQLite.

Memory is the working copy; ``commit`` writes what changed in one transaction. A file that is damaged, foreign or of
another release is set aside under another name, never overwritten; a disk that refuses leaves everything in memory and
is tried again. Runs in the runner's thread; one process per file (SQLite's exclusive lock).
"""

from __future__ import annotations

import heapq
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .state_file import APPLICATION_ID, set_aside, what_is_wrong
from .state_versions import SCHEMA_VERSION, bring_up, give_rowids

RETRY_S = 10.0
_LAST_NS = (1 << 63) - 1

_SCHEMA = (
    # With rowid: without it SQLite unpacks whole values to compare keys, and a row of a large job has 50 MB.
    "CREATE TABLE IF NOT EXISTS rows (operator TEXT, key TEXT, tbl TEXT, row TEXT, value BLOB NOT NULL,"
    " PRIMARY KEY (operator, key, tbl, row))",
    "CREATE TABLE IF NOT EXISTS timers (operator TEXT, key TEXT, name TEXT, due_ns INTEGER NOT NULL,"
    " set_ns INTEGER NOT NULL, PRIMARY KEY (operator, key, name)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS position (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL,"
    " stamp_ns INTEGER NOT NULL, value BLOB NOT NULL, headers TEXT NOT NULL, after INTEGER NOT NULL)",
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    id: int
    topic: str
    key: str
    stamp_ns: int
    value: bytes
    headers: str  # JSON object of texts, or empty: for what goes to the dead-letter queue
    after: int  # input position at which it was emitted: on the bus it can only lie beyond


#: What is written, or what makes it when it is needed (``Table.put_later``).
RowValue = bytes | Callable[[], bytes]


class RowTable:
    """``Table`` of one operator and key."""

    __slots__ = ("_dirty", "_operator", "_prefix", "_rows")

    def __init__(self, prefix: tuple[str, str, str], rows: dict[str, RowValue], dirty: set[tuple[str, str, str, str]]):
        self._prefix = prefix
        self._rows = rows
        self._dirty = dirty

    def get(self, row: str) -> bytes | None:
        """The row's value, None without it; makes the value if it was put to be made later."""
        return _made(self._rows, row)

    def put(self, row: str, value: bytes) -> None:
        """Sets the row's value, to be written with the next commit."""
        self._rows[row] = bytes(value)
        self._dirty.add((*self._prefix, row))

    def put_later(self, row: str, make: Callable[[], bytes]) -> None:
        """``make`` is called when somebody reads the row, or at the next commit; an earlier one is never called."""
        self._rows[row] = make
        self._dirty.add((*self._prefix, row))

    def delete(self, row: str) -> None:
        """Deletes the row, from the file with the next commit; nothing where there is none."""
        if self._rows.pop(row, None) is not None:
            self._dirty.add((*self._prefix, row))

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """(name, value) of all rows, in ascending order of their names."""
        return _all_made(self._rows)


def _made(rows: dict[str, RowValue], row: str) -> bytes | None:
    value = rows.get(row)
    if value is None or isinstance(value, bytes):
        return value
    rows[row] = made = bytes(value())
    return made


def _all_made(rows: dict[str, RowValue]) -> Iterator[tuple[str, bytes]]:
    """In ascending order of their names."""
    made = [(name, value) for name in sorted(rows) if (value := _made(rows, name)) is not None]
    return iter(made)


class KeyTables:
    """``Tables`` of one operator and key."""

    __slots__ = ("_key", "_operator", "_state", "_tables")

    def __init__(self, state: RunnerState, operator: str, key: str) -> None:
        self._state = state
        self._operator = operator
        self._key = key
        self._tables: dict[str, RowTable] = {}

    def table(self, name: str) -> RowTable:
        """The table of this name, empty if it is new; the same object each time."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = self._state.open_table((self._operator, self._key, name))
        return found


class RunnerState:
    """Working copy plus, if a path was given, its SQLite file."""

    def __init__(self, path: Path | None, *, bus: str, start_after: int, report: Callable[[str], None]) -> None:
        """Raises BlockingIOError if another process uses the file; anything else wrong is said and worked around."""
        self.path = path
        self.position = Position(bus=bus, after=start_after)
        self.outbox: list[OutboxEntry] = []
        #: Commits that the disk refused (the changes are kept and written by the next one that succeeds).
        self.failed_commits = 0
        self._report = report
        self._rows: dict[tuple[str, str, str], dict[str, RowValue]] = {}
        self._timers: dict[tuple[str, str, str], tuple[int, int]] = {}  # (operator, key, name) -> (due, set at)
        self._heap: list[tuple[int, str, str, str]] = []  # (due, key, name, operator); stale ones are skipped
        self._dirty_rows: set[tuple[str, str, str, str]] = set()
        self._dirty_timers: set[tuple[str, str, str]] = set()
        self._new_outbox: list[OutboxEntry] = []
        self._done_outbox: list[int] = []
        self._retry_at = 0.0
        self._database: sqlite3.Connection | None = None
        if path is not None:
            self._open(path)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was kept of an earlier life."""
        return not any(self._rows.values()) and not self._timers and not self.outbox

    @property
    def timer_count(self) -> int:
        """How many timers are set."""
        return len(self._timers)

    # --- rows ---
    def open_table(self, prefix: tuple[str, str, str]) -> RowTable:
        """A table of (operator, key, name), empty where there is none."""
        return RowTable(prefix, self._rows.setdefault(prefix, {}), self._dirty_rows)

    def row_count(self) -> int:
        """How many rows all operators and keys have."""
        return sum(map(len, self._rows.values()))

    def rows_of(self, operator: str, table: str) -> Iterator[tuple[str, bytes]]:
        """(name, value) of the rows of one operator's table, over all keys."""
        for (owner, _, name), rows in self._rows.items():
            if (owner, name) == (operator, table):
                yield from _all_made(rows)

    # --- timers ---
    def set_timer(self, operator: str, key: str, name: str, due_ns: int, set_ns: int) -> None:
        """Moves one of the same name. due_ns: the bus's time, as is set_ns, when it was set."""
        due_ns = min(due_ns, _LAST_NS)  # "never" is a time that the file can hold
        current = self._timers.get((operator, key, name))
        if current is not None and current[0] == due_ns:
            return
        self._timers[(operator, key, name)] = (due_ns, set_ns)
        if len(self._heap) > 2 * len(self._timers) + 64:  # mostly stale: operators that move a timer at every message
            self._heap = [(due, k, n, o) for (o, k, n), (due, _) in self._timers.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (due_ns, key, name, operator))
        self._dirty_timers.add((operator, key, name))

    def clear_timer(self, operator: str, key: str, name: str) -> None:
        """Clears a timer; does nothing where it is not set."""
        if self._timers.pop((operator, key, name), None) is not None:
            self._dirty_timers.add((operator, key, name))

    def next_due_ns(self) -> int | None:
        """When the first timer is due (Unix ns by the bus); None if none is set."""
        while self._heap:
            due_ns, key, name, operator = self._heap[0]
            current = self._timers.get((operator, key, name))
            if current is not None and current[0] == due_ns:
                return due_ns
            heapq.heappop(self._heap)
        return None

    def pop_timer(self) -> tuple[int, str, str, str]:
        """Removes and returns the first timer: (due, key, name, operator). Call after next_due_ns() returned a time."""
        due_ns, key, name, operator = heapq.heappop(self._heap)
        self.clear_timer(operator, key, name)
        return due_ns, key, name, operator

    def restart_timers(self, at_ns: int) -> None:
        """Lets every timer run its full time again from ``at_ns``: nobody could be heard while time stood still."""
        for (operator, key, name), (due_ns, set_ns) in list(self._timers.items()):
            self.set_timer(operator, key, name, at_ns + max(0, due_ns - set_ns), at_ns)

    # --- outbox ---
    def add_output(self, topic: str, key: str, stamp_ns: int, value: bytes, headers: str = "") -> OutboxEntry:
        """Into the outbox, to be delivered after the next commit. headers: a JSON object of texts, "" none."""
        self.position.outbox_id += 1
        entry = OutboxEntry(
            id=self.position.outbox_id,
            topic=topic,
            key=key,
            stamp_ns=stamp_ns,
            value=value,
            headers=headers,
            after=self.position.after,
        )
        self.outbox.append(entry)
        self._new_outbox.append(entry)
        return entry

    def forget_output(self, entry: OutboxEntry) -> None:
        """It was delivered; its row goes with the next commit."""
        self.outbox.remove(entry)
        if entry in self._new_outbox:
            self._new_outbox.remove(entry)
        else:
            self._done_outbox.append(entry.id)

    # --- SQLite ---
    def commit(self) -> bool:
        """Write all changes in one transaction. False if the disk refused; the changes stay pending then."""
        database = self._database
        if database is None:
            self._forget_changes()
            return self.path is None
        if self._retry_at and time.monotonic() < self._retry_at:
            self.failed_commits += 1
            return False
        for name in self._dirty_rows:
            _made(self._rows[name[:3]], name[3])  # what an operator raises here is not the disk's
        try:
            database.execute("BEGIN IMMEDIATE")
            self._write(database)
            database.execute("COMMIT")
        except (sqlite3.Error, OverflowError, UnicodeError) as error:  # the latter: a value no column can hold
            self._refused(database, error)
            return False
        if self._retry_at:
            self._retry_at = 0.0
            self._report(f"{self.path}: state is written again after {self.failed_commits} refused commits")
        self._forget_changes()
        return True

    def close(self) -> None:
        """Closes the file without a commit: what is pending is lost."""
        if self._database is not None:
            try:
                self._database.close()
            except sqlite3.Error as error:
                self._report(f"{self.path}: closing failed: {error}")
            self._database = None

    def _forget_changes(self) -> None:
        self._dirty_rows.clear()
        self._dirty_timers.clear()
        self._new_outbox.clear()
        self._done_outbox.clear()

    def _write(self, database: sqlite3.Connection) -> None:
        puts: list[tuple[str, str, str, str, bytes]] = []
        deletes: list[tuple[str, str, str, str]] = []
        for name in self._dirty_rows:
            value = _made(self._rows[name[:3]], name[3])
            if value is None:
                deletes.append(name)
            else:
                puts.append((*name, value))
        if puts:
            database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", puts)
        if deletes:
            database.executemany("DELETE FROM rows WHERE operator = ? AND key = ? AND tbl = ? AND row = ?", deletes)
        cleared = [timer for timer in self._dirty_timers if timer not in self._timers]
        database.executemany("DELETE FROM timers WHERE operator = ? AND key = ? AND name = ?", cleared)
        moved = [(*timer, *self._timers[timer]) for timer in self._dirty_timers if timer in self._timers]
        database.executemany("INSERT OR REPLACE INTO timers VALUES (?, ?, ?, ?, ?)", moved)
        for entry in self._new_outbox:
            database.execute(
                "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?)",
                (entry.id, entry.topic, entry.key, entry.stamp_ns, entry.value, entry.headers, entry.after),
            )
        if self._done_outbox:
            database.executemany("DELETE FROM outbox WHERE id = ?", [(done,) for done in self._done_outbox])
        database.executemany(
            "INSERT OR REPLACE INTO position VALUES (?, ?)",
            [(field, getattr(self.position, field)) for field in Position.__dataclass_fields__],
        )

    def _refused(self, database: sqlite3.Connection, error: Exception) -> None:
        try:
            if database.in_transaction:
                database.execute("ROLLBACK")
        except sqlite3.Error:  # the transaction is gone already
            pass
        self.failed_commits += 1
        if not self._retry_at:
            self._report(f"{self.path}: state cannot be written ({error}); going on in memory, will try again")
        self._retry_at = time.monotonic() + RETRY_S

    def _open(self, path: Path) -> None:
        try:
            wrong = what_is_wrong(path)
            if wrong is None:
                wrong = self._load(path)
            if wrong is not None:
                aside = set_aside(path)
                self._report(f"{path}: {wrong}; it was set aside as {aside.name}, state is rebuilt from the bus")
                self._reset()
                wrong = self._load(path)
                if wrong is not None:
                    self._report(f"{path}: {wrong}; going on in memory")
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, BlockingIOError):
                raise
            self._report(f"{path}: state cannot be kept there ({error}); going on in memory")
            self.close()

    def _reset(self) -> None:
        self.close()
        self.position = Position(bus=self.position.bus, after=self.position.after)
        self.outbox.clear()
        self._rows.clear()
        self._timers.clear()
        self._heap.clear()

    def _load(self, path: Path) -> str | None:
        """Open and read the file; one line if it is not usable. Raises BlockingIOError, sqlite3.Error, OSError."""
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.5)
        self._database = database
        given = self.position
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("BEGIN EXCLUSIVE")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version:
                bring_up(database, version)
                give_rowids(database, _SCHEMA[0])
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in _SCHEMA:
                database.execute(statement)
            database.execute("COMMIT")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            stored = dict(database.execute("SELECT name, value FROM position"))
            if stored:
                if stored.get("bus") != given.bus:
                    return "it belongs to another capture"
                self.position = _position_of(stored)
            for operator, key, tbl, row, value in database.execute("SELECT operator, key, tbl, row, value FROM rows"):
                self._rows.setdefault((operator, key, tbl), {})[row] = value
            for operator, key, name, due_ns, set_ns in database.execute("SELECT * FROM timers"):
                self._timers[(operator, key, name)] = (due_ns, set_ns)
                self._heap.append((due_ns, key, name, operator))
            heapq.heapify(self._heap)
            columns = ", ".join(OutboxEntry.__dataclass_fields__)
            for entry in database.execute(f"SELECT {columns} FROM outbox ORDER BY id"):
                self.outbox.append(OutboxEntry(**dict(zip(OutboxEntry.__dataclass_fields__, entry, strict=True))))
        except sqlite3.OperationalError as error:
            self.close()
            if "locked" in str(error):
                raise BlockingIOError(f"{path}: another process is using this state") from error
            raise
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            return f"it is damaged ({error})"
        return None


def _position_of(stored: dict[str, int | str | bytes]) -> Position:
    position = Position()
    for field in Position.__dataclass_fields__:
        if field in stored:
            setattr(position, field, type(getattr(position, field))(stored[field]))
    return position
