"""What was done, is out and is waited for, in one SQLite file that outlives the service.

An act is written as begun before its hook is called, durably; what was begun and not ended is never done again. Dry
runs and real ones keep apart (``mode``), so that the step from one to the other repeats and forgets nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...telemetry.incident import Document
from ...telemetry.vocabulary import IncidentState, Outcome
from ..incident_feeds.incident_times import held_until, told_at
from .breaker import HOUR_S, OUT_S
from .planning.acts import Act, Operation

STATE_FILE = "respond.sqlite"
SCHEMA_VERSION = 1
#: What is over is forgotten after so long.
KEPT_S = 30 * 24 * HOUR_S
DRY, LIVE = "dry", "live"
_BEGUN = Outcome.BEGUN.value

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY, revision INTEGER NOT NULL, document TEXT NOT NULL, open INTEGER NOT NULL,
    news REAL NOT NULL, due REAL, seen REAL NOT NULL);
CREATE TABLE IF NOT EXISTS acts (
    key TEXT NOT NULL, mode TEXT NOT NULL, incident TEXT NOT NULL, hook TEXT NOT NULL, operation TEXT NOT NULL,
    target TEXT NOT NULL, action TEXT NOT NULL, outcome TEXT NOT NULL, detail TEXT NOT NULL, began REAL NOT NULL,
    ended REAL, PRIMARY KEY (key, mode));
CREATE INDEX IF NOT EXISTS acts_by_time ON acts (mode, hook, began);
CREATE INDEX IF NOT EXISTS acts_by_incident ON acts (incident);
CREATE TABLE IF NOT EXISTS nodes_out (
    node TEXT NOT NULL, incident TEXT NOT NULL, mode TEXT NOT NULL, since REAL NOT NULL, back REAL,
    PRIMARY KEY (node, incident, mode));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """why None: it is closed. since: when it opened, or was last reset (0: never); Unix seconds."""

    why: str | None
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An incident whose time has come. news: when what it says now was new, Unix seconds."""

    document: Document
    news: float


class Ledger:
    """One thread. ``sqlite3.Error`` and OSError come through: without its ledger the service must not go on."""

    def __init__(self, folder: Path, mode: str, *, exclusive: bool = True) -> None:
        """exclusive: as the one service of this folder. Raises OSError, also when another one runs."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.mode = mode
        self._lock = os.open(folder / "respond.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if exclusive:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = sqlite3.connect(folder / STATE_FILE, timeout=10.0, isolation_level=None)
        except (OSError, sqlite3.Error):
            os.close(self._lock)
            raise
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            self.close()
            raise OSError(f"{folder / STATE_FILE} is of a newer release")
        self._db.executescript(_TABLES)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    # --- incidents ---------------------------------------------------------------------------------------------------
    def position(self) -> dict[str, Any]:
        """Where reading goes on, as the feed has said it."""
        return dict(json.loads(self._fact("position") or "{}"))

    def take(
        self, revisions: list[tuple[Document, float]], position: Mapping[str, Any], now: float, settle_s: float
    ) -> None:
        """Revisions with the time of each, and the position behind them, in one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for document, news in revisions:
                self._take(document, news, now, settle_s)
            self._put_fact("position", json.dumps(position))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def _take(self, document: Document, news: float, now: float, settle_s: float) -> None:
        row = self._db.execute(
            "SELECT revision, document, news, due FROM incidents WHERE id = ?", (document["id"],)
        ).fetchone()
        if row is not None and row[0] >= document["revision"]:
            return
        due: float | None = now + settle_s
        if row is None:  # what we never heard of may be old, whenever it was published again
            news = min(news, told_at(document))
        if row is not None and asked_of(json.loads(row[1])) == asked_of(document):
            news, due = row[2], row[3]  # nothing that matters here is new
        elif document["state"] == IncidentState.OPEN.value:
            due = max(now + settle_s, held_until(document))
        self._db.execute(
            "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                document["id"],
                document["revision"],
                json.dumps(document, separators=(",", ":")),
                document["state"] == IncidentState.OPEN.value,
                news,
                due,
                now,
            ),
        )

    def due(self, now: float) -> list[Waiting]:
        """Those whose advice has stood long enough, the oldest first."""
        rows = self._db.execute(
            "SELECT document, news FROM incidents WHERE due <= ? ORDER BY due, news, id", (now,)
        ).fetchall()
        return [Waiting(document=json.loads(document), news=news) for document, news in rows]

    def is_answered(self, incident: str) -> None:
        """Nothing more is to be done until something new is heard of it."""
        self._db.execute("UPDATE incidents SET due = NULL WHERE id = ?", (incident,))

    def waiting(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM incidents WHERE due IS NOT NULL").fetchone()[0])

    def forget(self, now: float) -> None:
        """What has been over for long."""
        before = now - KEPT_S
        self._db.execute("DELETE FROM incidents WHERE seen < ? AND due IS NULL AND NOT open", (before,))
        self._db.execute("DELETE FROM acts WHERE began < ?", (before,))
        self._db.execute("DELETE FROM nodes_out WHERE since < ?", (before,))

    # --- acts --------------------------------------------------------------------------------------------------------
    def begin(self, act: Act, now: float) -> bool:
        """Durable before it returns. False: it was begun before, and is not to be done."""
        values = (act.key, self.mode, act.incident, act.hook, act.operation.value, act.target, act.action, _BEGUN, "")
        done = self._db.execute(
            "INSERT OR IGNORE INTO acts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", (*values, now)
        )
        return done.rowcount == 1

    def outcome(self, act: Act) -> Outcome | None:
        """What became of it; None: it was not begun."""
        row = self._db.execute("SELECT outcome FROM acts WHERE key = ? AND mode = ?", (act.key, self.mode)).fetchone()
        return None if row is None else Outcome(row[0])

    def end(self, act: Act, outcome: Outcome, detail: str, now: float) -> None:
        self._db.execute(
            "UPDATE acts SET outcome = ?, detail = ?, ended = ? WHERE key = ? AND mode = ?",
            (outcome.value, detail, now, act.key, self.mode),
        )

    def give_up_unfinished(self, now: float) -> list[dict[str, Any]]:
        """What an earlier life began and did not end; from now on it counts as unfinished."""
        rows = self._rows("SELECT * FROM acts WHERE outcome = ?", _BEGUN)
        self._db.execute(
            "UPDATE acts SET outcome = ?, ended = ? WHERE outcome = ?", (Outcome.UNFINISHED.value, now, _BEGUN)
        )
        return rows

    def acts_within(self, hook: str, seconds: float, now: float) -> int:
        row = self._db.execute(
            "SELECT count(*) FROM acts WHERE mode = ? AND hook = ? AND began > ?", (self.mode, hook, now - seconds)
        ).fetchone()
        return int(row[0])

    def drains_of(self, node: str) -> list[dict[str, Any]]:
        """Acts that took the node out."""
        return self._rows(
            "SELECT * FROM acts WHERE target = ? AND mode = ? AND operation = ? AND outcome IN (?, ?)",
            *(node, self.mode, Operation.DRAIN_NODE.value, Outcome.DONE.value, Outcome.WOULD.value),
        )

    def last_acts(self, count: int) -> list[dict[str, Any]]:
        return self._rows("SELECT * FROM acts ORDER BY began DESC LIMIT ?", count)

    # --- nodes and the breaker ---------------------------------------------------------------------------------------
    def nodes_out(self, now: float, mode: str | None = None) -> dict[str, float]:
        """By node that is out since the last reset, when it was taken out first."""
        mode = mode or self.mode
        since = max(self.breaker_reset_at(mode), now - OUT_S)
        rows = self._db.execute(
            "SELECT node, min(since) FROM nodes_out WHERE mode = ? AND back IS NULL AND since > ? GROUP BY node",
            (mode, since),
        )
        return {str(node): float(first) for node, first in rows}

    def take_out(self, nodes: tuple[str, ...], incident: str, now: float) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO nodes_out VALUES (?, ?, ?, ?, NULL)",
            [(node, incident, self.mode, now) for node in nodes],
        )

    def nodes_for(self, incident: str) -> list[str]:
        """That are out because of it, at least among others."""
        rows = self._db.execute(
            "SELECT node FROM nodes_out WHERE incident = ? AND mode = ? AND back IS NULL ORDER BY node",
            (incident, self.mode),
        )
        return [str(node) for (node,) in rows.fetchall()]

    def was_out(self, node: str, incident: str) -> None:
        """Others had taken it out before: it is not ours to count."""
        self._db.execute(
            "DELETE FROM nodes_out WHERE node = ? AND incident = ? AND mode = ?", (node, incident, self.mode)
        )

    def give_back(self, node: str, now: float) -> None:
        self._db.execute(
            "UPDATE nodes_out SET back = ? WHERE node = ? AND mode = ? AND back IS NULL", (now, node, self.mode)
        )

    def is_needed_out(self, node: str, but: str) -> bool:
        """Another incident that is still open wants it out."""
        row = self._db.execute(
            "SELECT 1 FROM nodes_out JOIN incidents ON incidents.id = nodes_out.incident"
            " WHERE node = ? AND mode = ? AND incident != ? AND back IS NULL AND open",
            (node, self.mode, but),
        ).fetchone()
        return row is not None

    def breaker(self, mode: str | None = None) -> Breaker:
        found = json.loads(self._fact(f"breaker/{mode or self.mode}") or "{}")
        return Breaker(why=found.get("why"), since=float(found.get("since", 0.0)))

    def breaker_reset_at(self, mode: str) -> float:
        return float(self._fact(f"reset/{mode}") or 0.0)

    def open_breaker(self, why: str, now: float) -> None:
        self._put_fact(f"breaker/{self.mode}", json.dumps({"why": why, "since": now}))

    def reset_breaker(self, now: float) -> None:
        """Closed in this mode; nodes that were taken out until now count no more."""
        self._put_fact(f"breaker/{self.mode}", json.dumps({"since": now}))
        self._put_fact(f"reset/{self.mode}", str(now))

    # --- helpers -----------------------------------------------------------------------------------------------------
    def _fact(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _put_fact(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._db.execute(query, values)
        columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor]


def asked_of(document: Mapping[str, Any]) -> list[Any]:
    """What matters for a response: while it stays, a later revision is no news. A hold that ends is."""
    advice = document.get("advice") or {}
    suspects = document.get("suspects") or ()
    confidence = document.get("confidence")
    return [
        document.get("state"),
        document.get("scope"),
        advice.get("action"),
        advice.get("by"),
        sorted({str(suspect.get("node")) for suspect in suspects}),
        (document.get("cause") or {}).get("entity"),
        (document.get("job") or {}).get("now") == "restarting",
        held_until(document),
        None if confidence is None else round(float(confidence), 2),
    ]
