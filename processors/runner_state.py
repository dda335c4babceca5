"""What the embedded runner keeps: rows of the operators, timers, input position, outbox; in memory and in SQLite.

Memory is the working copy; ``commit`` writes what changed in one transaction. A file that is damaged, foreign or of
another release is set aside under another name, never overwritten; a disk that refuses leaves everything in memory and
is tried again. Runs in the runner's thread; one process per file (SQLite's exclusive lock).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .runner_aside import ASIDE_SCHEMA, write_aside
from .runner_rows import Position, RunnerRows
from .runner_tables import made
from .runner_timers import TimerTable
from .state_file import APPLICATION_ID, set_aside, what_is_wrong
from .state_versions import SCHEMA_VERSION, bring_up, give_rowids

RETRY_S = 10.0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    id: int
    topic: str
    key: str
    stamp_ns: int
    value: bytes
    headers: str  # JSON object of texts, or empty: for what goes to the dead-letter queue
    after: int  # input position at which it was emitted: on the bus it can only lie beyond


_OUTBOX_TYPES = (int, str, str, int, bytes, str, int)


class RunnerState(RunnerRows):
    """Working copy plus, if a path was given, its SQLite file."""

    def __init__(self, path: Path | None, *, bus: str, start_after: int, report: Callable[[str], None]) -> None:
        """Raises BlockingIOError if another process uses the file; anything else wrong is said and worked around."""
        super().__init__(Position(bus=bus, after=start_after))
        self.path = path
        self.outbox: list[OutboxEntry] = []
        #: Commits that the disk refused (the changes are kept and written by the next one that succeeds).
        self.failed_commits = 0
        self._report = report
        self._new_outbox: list[OutboxEntry] = []
        self._done_outbox: list[int] = []
        self._retry_at = 0.0
        self._database: sqlite3.Connection | None = None
        if path is not None:
            self._open(path)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was kept of an earlier life."""
        return not any(self._rows.values()) and not len(self.timers) and not self.outbox

    @property
    def keeps_aside(self) -> bool:
        """In the file, where there is one."""
        return self._database is not None

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

    def forget_outputs(self, entries: Iterable[OutboxEntry]) -> None:
        """They were delivered; their rows go with the next commit."""
        gone = {entry.id for entry in entries}
        self._done_outbox += gone.difference(entry.id for entry in self._new_outbox)
        self._new_outbox = [entry for entry in self._new_outbox if entry.id not in gone]
        self.outbox = [entry for entry in self.outbox if entry.id not in gone]

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
        self._make_rows()
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
        self._changes.dirty.clear()
        self._aside.clear()
        self.timers.dirty.clear()
        self._new_outbox.clear()
        self._done_outbox.clear()

    def _write(self, database: sqlite3.Connection) -> None:
        puts: list[tuple[str, str, str, str, bytes]] = []
        deletes: list[tuple[str, str, str, str]] = []
        write_aside(database, self._aside)
        for name in self._changes.dirty:
            value = made(self._rows.get(name[:3], {}), name[3])
            if value is None:
                deletes.append(name)
            else:
                puts.append((*name, value))
        if puts:
            database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", puts)
        if deletes:
            database.executemany("DELETE FROM rows WHERE operator = ? AND key = ? AND tbl = ? AND row = ?", deletes)
        cleared = [timer for timer in self.timers.dirty if self.timers.get(timer) is None]
        database.executemany("DELETE FROM timers WHERE operator = ? AND key = ? AND name = ?", cleared)
        moved = [(*timer, *times) for timer in self.timers.dirty if (times := self.timers.get(timer)) is not None]
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
        self._tables_of.clear()
        self.timers = TimerTable()

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
            for statement in (*_SCHEMA, *ASIDE_SCHEMA):
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
                self._rows_for((operator, key, tbl))[row] = _of_type(bytes, value)
            self.timers.load(database.execute("SELECT operator, key, name, due_ns, set_ns FROM timers"))
            columns = ", ".join(OutboxEntry.__dataclass_fields__)
            for entry in database.execute(f"SELECT {columns} FROM outbox ORDER BY id"):
                kept = [_of_type(sort, value) for sort, value in zip(_OUTBOX_TYPES, entry, strict=True)]
                self.outbox.append(OutboxEntry(**dict(zip(OutboxEntry.__dataclass_fields__, kept, strict=True))))
        except sqlite3.OperationalError as error:
            self.close()
            if "locked" in str(error):
                raise BlockingIOError(f"{path}: another process is using this state") from error
            if "decode" in str(error):  # a text that is none
                return f"it is damaged ({error})"
            raise
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            return f"it is damaged ({error})"
        return None


def _of_type(sort: type, value: Any) -> Any:
    """SQLite keeps what it is given. Raises TypeError."""
    if not isinstance(value, sort):
        raise TypeError(f"{type(value).__name__} in place of {sort.__name__}")
    return value


def _position_of(stored: dict[str, int | str | bytes]) -> Position:
    position = Position()
    for field in Position.__dataclass_fields__:
        if field in stored:
            setattr(position, field, type(getattr(position, field))(stored[field]))
    return position
