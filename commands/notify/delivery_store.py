"""What was told to whom, and what still has to be, in one SQLite file that outlives the service.

A row of ``deliveries`` is one incident at one receiver. Its try is written as begun before anything is sent, durably,
and ended after: a row that is begun and has no end may have been sent, and its receiver is asked or told so again under
the same key. Called by the main thread and by a thread per receiver, one at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.vocabulary import IncidentState
from ..incident_feeds.feed_position import FeedPosition
from ..incident_service.inbox import HOUR_S, KEPT_S, IncidentInbox, pack_incident, unpack_incident
from .messages.notices import AlertState, Notice
from .messages.routes import Urgency
from .receivers import ReceiverReference
from .receivers.reference_codec import read_reference, write_reference

SCHEMA_VERSION = 1

_TABLES = """
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
class WaitingNews:
    """An incident to be looked at. news: when this revision was told; held_since: None, it is not on hold."""

    incident: IncidentDocument
    news: float
    held_since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeDelivery:
    """incident "": a word of ours on what was withheld. told None: never. is_unsure: a try has begun and not ended."""

    key: str
    receiver: str
    incident: str
    urgency: Urgency
    status: str
    told: AlertState | None
    told_digest: str
    reference: ReceiverReference
    is_unsure: bool
    tries: int
    news: float

    @property
    def is_open(self) -> bool:
        """Whether the receiver knows of it, or may know of it."""
        return self.is_unsure or self.told in (AlertState.OPEN, AlertState.ACKNOWLEDGED)


class DeliveryStore(IncidentInbox):
    """What has been told and is to be told, over the incidents that were read."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, also (BlockingIOError) when another one runs."""
        super().__init__(folder, "notify", _TABLES, version=SCHEMA_VERSION)

    # --- incidents ---------------------------------------------------------------------------------------------------
    def is_fresh(self) -> bool:
        """Whether nothing was ever told by this state, or could have been."""
        return self._fact("begun") is None

    def begin_telling(self, now: float) -> None:
        """Notes that from now on (Unix seconds) this state counts as one that has told people."""
        self._put_fact("begun", str(now))

    def take(self, revisions: Sequence[tuple[IncidentDocument, float]], position: FeedPosition, now: float) -> None:
        """Keeps revisions with the time of each, and the position behind them, in one transaction.

        Times: Unix seconds.
        """
        self._take_all(revisions, position, lambda incident, news: self._keep(incident, news, now))

    def _keep(self, incident: IncidentDocument, news: float, now: float) -> None:
        row = self._one("SELECT revision, held_since FROM incidents WHERE id = ?", incident.id)
        if row is not None and row["revision"] >= incident.revision:
            return  # told again by a processor that begins anew
        held = None
        if incident.hold is not None:
            held = now if row is None or row["held_since"] is None else row["held_since"]
        is_open = incident.state is IncidentState.OPEN
        self._do(
            "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(incident.id, incident.revision, pack_incident(incident), is_open, news, now, held, now),
        )

    def waiting(self, now: float) -> list[WaitingNews]:
        """The incidents that have to be looked at by now (Unix seconds), the oldest first."""
        query = "SELECT document, news, held_since FROM incidents WHERE due <= ? ORDER BY news, id"
        return [
            WaitingNews(incident=unpack_incident(row["document"]), news=row["news"], held_since=row["held_since"])
            for row in self._all(query, now)
        ]

    def look_again(self, incident: str, at: float | None) -> None:
        """Sets when (Unix seconds) the incident is looked at again; None: when something new is heard of it."""
        self._do("UPDATE incidents SET due = ? WHERE id = ?", at, incident)

    def incident(self, id_: str) -> IncidentDocument | None:
        """The incident's newest revision; None: it was never read, or is forgotten."""
        row = self._one("SELECT document FROM incidents WHERE id = ?", id_)
        return None if row is None else unpack_incident(row["document"])

    # --- deliveries --------------------------------------------------------------------------------------------------
    def deliveries(self, incident: str) -> dict[str, NoticeDelivery]:
        """The deliveries of an incident, by receiver."""
        rows = self._all("SELECT * FROM deliveries WHERE incident = ?", incident)
        return {row["receiver"]: _delivery(row) for row in rows}

    def add(self, incident: str, receiver: str, urgency: Urgency, news: float, now: float, *, key: str = "") -> str:
        """Adds a delivery that is to be told for the first time; returns the key under which it will be known there.

        Another one than ``key`` (by default the incident's id) where that is taken. Times: Unix seconds.
        """
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

    def say(self, delivery: NoticeDelivery, urgency: Urgency, news: float, at: float) -> None:
        """Notes that there is something to be told, not before ``at`` (Unix seconds).

        A pause after a failed try stays.
        """
        paused = "CASE WHEN status = ? AND tries > 0 THEN max(at, ?) ELSE ? END"
        self._do(
            f"UPDATE deliveries SET at = {paused}, status = ?, urgency = ?, news = ? WHERE key = ? AND receiver = ?",
            *(DUE, at, at, DUE, urgency.value, news, delivery.key, delivery.receiver),
        )

    def need_not_say(self, delivery: NoticeDelivery) -> None:
        """Notes that nothing is to be told: what is to be said has become what was said."""
        self._do(
            "UPDATE deliveries SET status = ?, tries = 0 WHERE key = ? AND receiver = ? AND status = ?",
            *(TOLD, delivery.key, delivery.receiver, DUE),
        )

    def drop(self, delivery: NoticeDelivery) -> None:
        """Deletes a delivery that was never told, and is over."""
        self._do("DELETE FROM deliveries WHERE key = ? AND receiver = ?", delivery.key, delivery.receiver)

    def hand_over(self, delivery: NoticeDelivery, incident: str) -> None:
        """Lets what the receiver knows under this key go on as another incident."""
        values = (incident, delivery.key, delivery.receiver)
        self._do("UPDATE deliveries SET incident = ? WHERE key = ? AND receiver = ?", *values)

    def next(self, receiver: str, now: float) -> NoticeDelivery | None:
        """The delivery that is to be told to this receiver now (Unix seconds); None: nothing is.

        Nothing of an incident that has not been looked at since its last revision.
        """
        row = self._one(
            "SELECT * FROM deliveries AS d WHERE receiver = ?"
            " AND ((status = ? AND at <= ?) OR (status = ? AND again <= ?))"
            " AND NOT EXISTS (SELECT 1 FROM incidents WHERE id = d.incident AND due <= ?)"
            " ORDER BY urgency, status, news LIMIT 1",
            *(receiver, DUE, now, TOLD, now, now),
        )
        return None if row is None else _delivery(row)

    def begin(self, delivery: NoticeDelivery, now: float, *, is_new: bool) -> None:
        """Notes that a try begins; durable before it returns. is_new: it counts as an opening."""
        with self.transaction():
            self._do(
                "UPDATE deliveries SET begun = ? WHERE key = ? AND receiver = ?", now, delivery.key, delivery.receiver
            )
            if is_new and not delivery.is_unsure and delivery.incident:
                self._do("INSERT INTO openings VALUES (?, ?, ?)", delivery.receiver, delivery.urgency.value, now)

    def end(
        self,
        delivery: NoticeDelivery,
        notice: Notice,
        digest: str,
        reference: ReceiverReference,
        now: float,
        again: float | None,
    ) -> None:
        """Notes that the notice was told. now: Unix seconds.

        reference: the receiver's; again: when it is said once more although nothing has changed, None never.
        """
        with self.transaction():
            self._db.execute(
                "UPDATE deliveries SET status = ?, told = ?, told_digest = ?, reference = ?, begun = NULL, tries = 0,"
                " again = ? WHERE key = ? AND receiver = ?",
                (
                    *(TOLD, notice.standing.value, digest, write_reference(reference), again),
                    *(delivery.key, delivery.receiver),
                ),
            )
            # What has come, or was handed over, while it was on its way.
            self._db.execute(
                "UPDATE incidents SET due = ? WHERE NOT (id = ? AND revision = ?)"
                " AND id = (SELECT incident FROM deliveries WHERE key = ? AND receiver = ?)",
                (now, notice.incident, notice.revision, delivery.key, delivery.receiver),
            )

    def fail(self, delivery: NoticeDelivery, reference: ReceiverReference, at: float, *, is_unsure: bool) -> None:
        """Notes a failed try; the next is at ``at`` (Unix seconds). is_unsure: it may have arrived."""
        self._do(
            "UPDATE deliveries SET reference = ?, tries = tries + 1, at = ?, begun = CASE WHEN ? THEN begun END,"
            " status = ? WHERE key = ? AND receiver = ?",
            *(write_reference(reference), at, is_unsure, DUE, delivery.key, delivery.receiver),
        )

    def refuse(self, delivery: NoticeDelivery, digest: str) -> None:
        """Notes that the receiver does not take it, however often, until there is something else to say.

        digest: of what was said.
        """
        self._do(
            "UPDATE deliveries SET status = ?, told_digest = ?, begun = NULL, tries = 0 WHERE key = ? AND receiver = ?",
            *(REFUSED, digest, delivery.key, delivery.receiver),
        )

    def waiting_at(self, receiver: str) -> int:
        """How many deliveries wait for this receiver, those that are paused included."""
        return int(self._count("SELECT count(*) FROM deliveries WHERE receiver = ? AND status = ?", receiver, DUE))

    # --- limits ------------------------------------------------------------------------------------------------------
    def openings(self, receiver: str, urgency: Urgency, since: float) -> int:
        """How many notices of this urgency were opened there since then (Unix seconds)."""
        query = "SELECT count(*) FROM openings WHERE receiver = ? AND urgency = ? AND at > ?"
        return int(self._count(query, receiver, urgency.value, since))

    def withhold(self, delivery: NoticeDelivery, title: str, now: float) -> str:
        """Notes that it is not told by itself; returns the key of the word that is told of all of this hour.

        title: its line in that word. now: Unix seconds.
        """
        key = f"withheld-{delivery.urgency.value}-{int(now // HOUR_S)}"
        with self.transaction():
            self._do(
                "UPDATE deliveries SET status = ?, at = ? WHERE key = ? AND receiver = ?",
                *(WITHHELD, now, delivery.key, delivery.receiver),
            )
            values = (key, delivery.receiver, delivery.incident, title, now)
            self._db.execute("INSERT OR IGNORE INTO withheld VALUES (?, ?, ?, ?, ?)", values)
        return key

    def delivery(self, key: str, receiver: str) -> NoticeDelivery | None:
        """The delivery with this key; None: that receiver knows nothing under it."""
        row = self._one("SELECT * FROM deliveries WHERE key = ? AND receiver = ?", key, receiver)
        return None if row is None else _delivery(row)

    def withheld(self, key: str, receiver: str, most: int) -> tuple[int, dict[str, str], float]:
        """(how many were withheld under this key, titles of the first ones by incident, Unix seconds of the first)."""
        query = "SELECT count(*), min(at) FROM withheld WHERE key = ? AND receiver = ?"
        row = self._one(query, key, receiver)
        query = "SELECT incident, title FROM withheld WHERE key = ? AND receiver = ? ORDER BY at LIMIT ?"
        titles = {found["incident"]: found["title"] for found in self._all(query, key, receiver, most)}
        return (int(row[0]), titles, float(row[1] or 0.0)) if row else (0, titles, 0.0)

    def summaries(self) -> list[NoticeDelivery]:
        """Deliveries of words on what was withheld, those that are not closed."""
        query = "SELECT * FROM deliveries WHERE incident = '' AND (told IS NULL OR told != ?)"
        return [_delivery(row) for row in self._all(query, AlertState.CLOSED.value)]

    def forget(self, now: float) -> None:
        """Deletes what has been over for ``KEPT_S``. now: Unix seconds."""
        before = now - KEPT_S
        with self.transaction():
            self._db.execute("DELETE FROM incidents WHERE seen < ? AND NOT open AND due IS NULL", (before,))
            gone = "incident NOT IN (SELECT id FROM incidents) AND (told = ? OR told IS NULL) AND news < ?"
            self._db.execute(f"DELETE FROM deliveries WHERE {gone}", (AlertState.CLOSED.value, before))
            self._db.execute("DELETE FROM openings WHERE at < ?", (now - HOUR_S,))
            self._db.execute("DELETE FROM withheld WHERE at < ?", (before,))


def _delivery(row: sqlite3.Row) -> NoticeDelivery:
    return NoticeDelivery(
        key=row["key"],
        receiver=row["receiver"],
        incident=row["incident"],
        urgency=Urgency(row["urgency"]),
        status=row["status"],
        told=AlertState(row["told"]) if row["told"] else None,
        told_digest=row["told_digest"] or "",
        reference=read_reference(row["reference"]),
        is_unsure=row["begun"] is not None,
        tries=row["tries"],
        news=row["news"],
    )
