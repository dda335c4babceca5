"""What was told to whom, and what still has to be, in one SQLite file that outlives the service.

A row of ``deliveries`` is one incident at one receiver. Its try is written as begun before anything is sent, durably,
and ended after: a row that is begun and has no end may have been sent, and its receiver is asked or told so again under
the same key. Called by the main thread and by a thread per receiver, one at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...telemetry.incident import Document
from ...telemetry.vocabulary import IncidentState
from .messages.notices import AlertState, Notice
from .messages.routes import Urgency

STATE_FILE = "notify.sqlite"
SCHEMA_VERSION = 1
HOUR_S = 3600.0
#: What is over is forgotten after so long.
KEPT_S = 30 * 24 * HOUR_S

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY, revision INTEGER NOT NULL, document TEXT NOT NULL, open INTEGER NOT NULL,
    news REAL NOT NULL, seen REAL NOT NULL, held_since REAL, due REAL);
CREATE INDEX IF NOT EXISTS incidents_by_due ON incidents (due) WHERE due IS NOT NULL;
CREATE TABLE IF NOT EXISTS deliveries (
    key TEXT NOT NULL, receiver TEXT NOT NULL, incident TEXT NOT NULL, urgency TEXT NOT NULL, status TEXT NOT NULL,
    told TEXT, told_digest TEXT, reference TEXT NOT NULL, begun REAL, tries INTEGER NOT NULL, at REAL NOT NULL,
    again REAL, news REAL NOT NULL, PRIMARY KEY (key, receiver));
CREATE INDEX IF NOT EXISTS deliveries_by_time ON deliveries (receiver, status, at);
CREATE INDEX IF NOT EXISTS deliveries_by_incident ON deliveries (incident);
CREATE TABLE IF NOT EXISTS openings (receiver TEXT NOT NULL, urgency TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS openings_by_time ON openings (receiver, urgency, at);
CREATE TABLE IF NOT EXISTS withheld (
    key TEXT NOT NULL, receiver TEXT NOT NULL, incident TEXT NOT NULL, title TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (key, receiver, incident));
"""
#: Of ``status``. DUE: from ``at`` on. TOLD: said again at ``again``. REFUSED: the receiver does not want it as it is.
DUE, TOLD, WITHHELD, REFUSED = "due", "told", "withheld", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An incident to be looked at. news: when this revision was told; held_since: None, it is not on hold."""

    document: Document
    news: float
    held_since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """incident "": a word of ours on what was withheld. told None: never. is_unsure: a try has begun and not ended."""

    key: str
    receiver: str
    incident: str
    urgency: Urgency
    status: str
    told: AlertState | None
    told_digest: str
    reference: Mapping[str, Any]
    is_unsure: bool
    tries: int
    news: float

    @property
    def is_open(self) -> bool:
        """The receiver knows it, or may know it."""
        return self.is_unsure or self.told in (AlertState.OPEN, AlertState.ACKNOWLEDGED)


class Ledger:
    """``sqlite3.Error`` and OSError come through: without its ledger the service must not go on."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, also (BlockingIOError) when another one runs."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._mutex = threading.RLock()
        self._lock = os.open(folder / "notify.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = folder / STATE_FILE
            self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error):
            os.close(self._lock)
            raise
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            self.close()
            raise OSError(f"{folder / STATE_FILE} is of a newer release")
        self._db.executescript(_TABLES)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        with self._mutex:
            self._db.close()
            os.close(self._lock)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and nobody else in between. Inside of another one it is a part of that."""
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

    # --- incidents ---------------------------------------------------------------------------------------------------
    def position(self) -> dict[str, Any]:
        """Where reading goes on, as the feed has said it; empty: nothing was ever read."""
        row = self._one("SELECT value FROM facts WHERE name = 'position'")
        return dict(json.loads(row["value"])) if row else {}

    def is_fresh(self) -> bool:
        """Nothing was ever told by this state, or could have been."""
        return self._one("SELECT 1 FROM facts WHERE name = 'begun'") is None

    def begin_telling(self, now: float) -> None:
        self._do("INSERT OR REPLACE INTO facts VALUES ('begun', ?)", str(now))

    def take(self, revisions: Sequence[tuple[Document, float]], position: Mapping[str, Any], now: float) -> None:
        """Revisions with the time of each, and the position behind them, in one transaction."""
        with self.transaction():
            for document, news in revisions:
                self._take(document, news, now)
            self._db.execute("INSERT OR REPLACE INTO facts VALUES ('position', ?)", (json.dumps(position),))

    def _take(self, document: Document, news: float, now: float) -> None:
        row = self._one("SELECT revision, held_since FROM incidents WHERE id = ?", document["id"])
        if row is not None and row["revision"] >= document["revision"]:
            return  # told again by a processor that begins anew
        held = None
        if document.get("hold") is not None:
            held = now if row is None or row["held_since"] is None else row["held_since"]
        text = json.dumps(document, separators=(",", ":"))
        is_open = document["state"] == IncidentState.OPEN.value
        self._db.execute(
            "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (document["id"], document["revision"], text, is_open, news, now, held, now),
        )

    def waiting(self, now: float) -> list[Waiting]:
        """What has to be looked at, the oldest first."""
        query = "SELECT document, news, held_since FROM incidents WHERE due <= ? ORDER BY news, id"
        return [
            Waiting(document=json.loads(row["document"]), news=row["news"], held_since=row["held_since"])
            for row in self._all(query, now)
        ]

    def look_again(self, incident: str, at: float | None) -> None:
        """None: when something new is heard of it."""
        self._do("UPDATE incidents SET due = ? WHERE id = ?", at, incident)

    def document(self, incident: str) -> Document | None:
        row = self._one("SELECT document FROM incidents WHERE id = ?", incident)
        return None if row is None else dict(json.loads(row["document"]))

    # --- deliveries --------------------------------------------------------------------------------------------------
    def deliveries(self, incident: str) -> dict[str, Delivery]:
        """By receiver."""
        rows = self._all("SELECT * FROM deliveries WHERE incident = ?", incident)
        return {row["receiver"]: _delivery(row) for row in rows}

    def add(self, incident: str, receiver: str, urgency: Urgency, news: float, now: float, *, key: str = "") -> str:
        """To be told for the first time; the key under which it will be known there."""
        key = key or incident
        number = 1
        while self._one("SELECT 1 FROM deliveries WHERE key = ? AND receiver = ?", key, receiver) is not None:
            number += 1
            key = f"{incident}-{number}"  # another incident has taken over what was told under its own
        self._do(
            "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, NULL, NULL, '{}', NULL, 0, ?, NULL, ?)",
            *(key, receiver, incident, urgency.value, DUE, now, news),
        )
        return key

    def say(self, delivery: Delivery, urgency: Urgency, news: float, at: float) -> None:
        """There is something to be told there, not before ``at``. A pause after a failed try stays."""
        paused = "CASE WHEN status = ? AND tries > 0 THEN max(at, ?) ELSE ? END"
        self._do(
            f"UPDATE deliveries SET at = {paused}, status = ?, urgency = ?, news = ? WHERE key = ? AND receiver = ?",
            *(DUE, at, at, DUE, urgency.value, news, delivery.key, delivery.receiver),
        )

    def need_not_say(self, delivery: Delivery) -> None:
        """What is to be said has become what was said."""
        self._do(
            "UPDATE deliveries SET status = ?, tries = 0 WHERE key = ? AND receiver = ? AND status = ?",
            *(TOLD, delivery.key, delivery.receiver, DUE),
        )

    def drop(self, delivery: Delivery) -> None:
        """It was never told, and is over."""
        self._do("DELETE FROM deliveries WHERE key = ? AND receiver = ?", delivery.key, delivery.receiver)

    def hand_over(self, delivery: Delivery, incident: str) -> None:
        """What is known there under this key goes on as another incident."""
        values = (incident, delivery.key, delivery.receiver)
        self._do("UPDATE deliveries SET incident = ? WHERE key = ? AND receiver = ?", *values)

    def next(self, receiver: str, now: float) -> Delivery | None:
        """What is to be told now; nothing of an incident that has not been looked at since its last revision."""
        row = self._one(
            "SELECT * FROM deliveries AS d WHERE receiver = ?"
            " AND ((status = ? AND at <= ?) OR (status = ? AND again <= ?))"
            " AND NOT EXISTS (SELECT 1 FROM incidents WHERE id = d.incident AND due <= ?)"
            " ORDER BY urgency, status, news LIMIT 1",
            *(receiver, DUE, now, TOLD, now, now),
        )
        return None if row is None else _delivery(row)

    def begin(self, delivery: Delivery, now: float, *, is_new: bool) -> None:
        """Durable before it returns."""
        with self.transaction():
            self._do(
                "UPDATE deliveries SET begun = ? WHERE key = ? AND receiver = ?", now, delivery.key, delivery.receiver
            )
            if is_new and not delivery.is_unsure and delivery.incident:
                self._do("INSERT INTO openings VALUES (?, ?, ?)", delivery.receiver, delivery.urgency.value, now)

    def end(
        self,
        delivery: Delivery,
        notice: Notice,
        digest: str,
        reference: Mapping[str, Any],
        now: float,
        again: float | None,
    ) -> None:
        """It was told. again: when it is said once more although nothing has changed."""
        with self.transaction():
            self._db.execute(
                "UPDATE deliveries SET status = ?, told = ?, told_digest = ?, reference = ?, begun = NULL, tries = 0,"
                " again = ? WHERE key = ? AND receiver = ?",
                (
                    *(TOLD, notice.standing.value, digest, json.dumps(dict(reference)), again),
                    *(delivery.key, delivery.receiver),
                ),
            )
            # What has come, or was handed over, while it was on its way.
            self._db.execute(
                "UPDATE incidents SET due = ? WHERE NOT (id = ? AND revision = ?)"
                " AND id = (SELECT incident FROM deliveries WHERE key = ? AND receiver = ?)",
                (now, notice.incident, notice.revision, delivery.key, delivery.receiver),
            )

    def fail(self, delivery: Delivery, reference: Mapping[str, Any], at: float, *, is_unsure: bool) -> None:
        """It is tried again at that time. is_unsure: it may have arrived."""
        self._do(
            "UPDATE deliveries SET reference = ?, tries = tries + 1, at = ?, begun = CASE WHEN ? THEN begun END,"
            " status = ? WHERE key = ? AND receiver = ?",
            *(json.dumps(dict(reference)), at, is_unsure, DUE, delivery.key, delivery.receiver),
        )

    def refuse(self, delivery: Delivery, digest: str) -> None:
        """The receiver does not take it, however often, until there is something else to say."""
        self._do(
            "UPDATE deliveries SET status = ?, told_digest = ?, begun = NULL, tries = 0 WHERE key = ? AND receiver = ?",
            *(REFUSED, digest, delivery.key, delivery.receiver),
        )

    def waiting_at(self, receiver: str) -> int:
        return int(self._count("SELECT count(*) FROM deliveries WHERE receiver = ? AND status = ?", receiver, DUE))

    # --- limits ------------------------------------------------------------------------------------------------------
    def openings(self, receiver: str, urgency: Urgency, since: float) -> int:
        query = "SELECT count(*) FROM openings WHERE receiver = ? AND urgency = ? AND at > ?"
        return int(self._count(query, receiver, urgency.value, since))

    def withhold(self, delivery: Delivery, title: str, now: float) -> str:
        """It is not told by itself; the key of the word that is told of all of this hour."""
        key = f"withheld-{delivery.urgency.value}-{int(now // HOUR_S)}"
        with self.transaction():
            self._do(
                "UPDATE deliveries SET status = ?, at = ? WHERE key = ? AND receiver = ?",
                *(WITHHELD, now, delivery.key, delivery.receiver),
            )
            values = (key, delivery.receiver, delivery.incident, title, now)
            self._db.execute("INSERT OR IGNORE INTO withheld VALUES (?, ?, ?, ?, ?)", values)
        return key

    def delivery(self, key: str, receiver: str) -> Delivery | None:
        row = self._one("SELECT * FROM deliveries WHERE key = ? AND receiver = ?", key, receiver)
        return None if row is None else _delivery(row)

    def withheld(self, key: str, receiver: str, most: int) -> tuple[int, dict[str, str], float]:
        """How many, the titles of the first ones by incident, and when it began."""
        query = "SELECT count(*), min(at) FROM withheld WHERE key = ? AND receiver = ?"
        row = self._one(query, key, receiver)
        query = "SELECT incident, title FROM withheld WHERE key = ? AND receiver = ? ORDER BY at LIMIT ?"
        titles = {found["incident"]: found["title"] for found in self._all(query, key, receiver, most)}
        return (int(row[0]), titles, float(row[1] or 0.0)) if row else (0, titles, 0.0)

    def summaries(self) -> list[Delivery]:
        """Words on what was withheld that are not closed."""
        query = "SELECT * FROM deliveries WHERE incident = '' AND (told IS NULL OR told != ?)"
        return [_delivery(row) for row in self._all(query, AlertState.CLOSED.value)]

    def forget(self, now: float) -> None:
        """What has been over for long."""
        before = now - KEPT_S
        with self.transaction():
            self._db.execute("DELETE FROM incidents WHERE seen < ? AND NOT open AND due IS NULL", (before,))
            gone = "incident NOT IN (SELECT id FROM incidents) AND (told = ? OR told IS NULL) AND news < ?"
            self._db.execute(f"DELETE FROM deliveries WHERE {gone}", (AlertState.CLOSED.value, before))
            self._db.execute("DELETE FROM openings WHERE at < ?", (now - HOUR_S,))
            self._db.execute("DELETE FROM withheld WHERE at < ?", (before,))

    # --- helpers -----------------------------------------------------------------------------------------------------
    def _do(self, query: str, *values: Any) -> None:
        with self._mutex:
            self._db.execute(query, values)

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


def _delivery(row: sqlite3.Row) -> Delivery:
    return Delivery(
        key=row["key"],
        receiver=row["receiver"],
        incident=row["incident"],
        urgency=Urgency(row["urgency"]),
        status=row["status"],
        told=AlertState(row["told"]) if row["told"] else None,
        told_digest=row["told_digest"] or "",
        reference=json.loads(row["reference"]),
        is_unsure=row["begun"] is not None,
        tries=row["tries"],
        news=row["news"],
    )
