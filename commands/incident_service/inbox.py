"""Incidents that a service has read, and how far it has read, in one SQLite file that outlives it.

A service adds the tables of what it does with them. Calls may come from several threads, one is let in at a time.
``sqlite3.Error`` and OSError come through: without its state a service must not go on.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident
from ...telemetry.incident_writing import write_incident
from ..incident_feeds.feed_position import BEGINNING, FeedPosition, read_position, write_position

HOUR_S = 3600.0
#: What is over is forgotten after so long.
KEPT_S = 30 * 24 * HOUR_S
_FACTS = "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);"


class IncidentInbox:
    """One file in a folder that one service has at a time."""

    def __init__(self, folder: Path, name: str, tables: str, *, version: int, exclusive: bool = True) -> None:
        """name: of the file and its lock. tables: statements that make what is not there. version: of the schema.

        exclusive: as the one service of this folder. Raises OSError, also (BlockingIOError) when another one runs.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{name}.sqlite"
        self._mutex = threading.RLock()
        self._lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if exclusive:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error):
            os.close(self._lock)
            raise
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found > version:
            self.close()
            raise OSError(f"{path} is of a newer release")
        self._db.executescript(_FACTS + tables)
        self._db.execute(f"PRAGMA user_version = {version}")

    def close(self) -> None:
        """Closes the file and gives the folder free; the inbox cannot be used afterwards."""
        with self._mutex:
            self._db.close()
            os.close(self._lock)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A context of which all is kept or nothing, with nobody else in between.

        Inside of another one it is a part of that.
        """
        with self._mutex:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def position(self) -> FeedPosition:
        """The position at which reading goes on; BEGINNING where nothing was read."""
        found = self._fact("position")
        return BEGINNING if found is None else read_position(found)

    def _take_all(
        self,
        revisions: Sequence[tuple[IncidentDocument, float]],
        position: FeedPosition,
        keep: Callable[[IncidentDocument, float], None],
    ) -> None:
        """Each revision with its time (Unix seconds) to ``keep``, and the position behind them, in one transaction."""
        with self.transaction():
            for incident, news_s in revisions:
                keep(incident, news_s)
            self._put_fact("position", write_position(position))

    def _fact(self, name: str) -> str | None:
        row = self._one("SELECT value FROM facts WHERE name = ?", name)
        return None if row is None else str(row["value"])

    def _put_fact(self, name: str, value: str) -> None:
        self._do("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, value)

    def _do(self, query: str, *values: Any) -> int:
        """How many rows it has changed."""
        with self._mutex:
            return self._db.execute(query, values).rowcount

    def _all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._mutex:
            return self._db.execute(query, values).fetchall()

    def _one(self, query: str, *values: Any) -> sqlite3.Row | None:
        with self._mutex:
            row: sqlite3.Row | None = self._db.execute(query, values).fetchone()
            return row

    def _count(self, query: str, *values: Any) -> int:
        row = self._one(query, *values)
        return int(row[0]) if row else 0


def pack_incident(incident: IncidentDocument) -> str:
    """The incident as JSON text, as a column holds it."""
    return json.dumps(write_incident(incident), separators=(",", ":"))


def unpack_incident(packed: str) -> IncidentDocument:
    """The incident that ``pack_incident`` packed. Raises ValueError for what is no JSON."""
    return read_incident(json.loads(packed))
