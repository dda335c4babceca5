"""What was done, is out and is waited for, in one SQLite file that outlives the service.

An act is written as begun before its hook is called, durably; what was begun and not ended is never done again. Dry
runs and real ones keep apart (``mode``), so that the step from one to the other repeats and forgets nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.response_outcomes import Outcome
from ...telemetry.vocabulary import IncidentState
from ..incident_feeds.feed_position import FeedPosition
from ..incident_feeds.incident_times import held_until, told_at
from ..incident_service.inbox import KEPT_S, IncidentInbox, pack_incident, unpack_incident
from .breaker import OUT_S
from .planning.acts import Act, HookOperation

STATE_FILE = "respond.sqlite"
SCHEMA_VERSION = 1
DRY, LIVE = "dry", "live"
_BEGUN = Outcome.BEGUN.value

_TABLES = """
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
class DueIncident:
    """An incident whose time has come. news: when what it says now was new, Unix seconds."""

    incident: IncidentDocument
    news: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRow:
    """An act as it is kept. began, ended: Unix seconds; ended None: nobody knows whether it was done."""

    key: str
    mode: str
    incident: str
    hook: str
    operation: str
    target: str
    action: str
    outcome: str
    detail: str
    began: float
    ended: float | None


#: What matters of an incident for a response: while it stays, a later revision is no news.
Asked = tuple[str | float | bool | tuple[str, ...] | None, ...]


class ActionStore(IncidentInbox):
    """What has been done and is to be done, over the incidents that were read. mode: ``DRY`` or ``LIVE``."""

    def __init__(self, folder: Path, mode: str, *, exclusive: bool = True) -> None:
        """exclusive: as the one service of this folder. Raises OSError, also when another one runs."""
        self.mode = mode
        super().__init__(folder, "respond", _TABLES, version=SCHEMA_VERSION, exclusive=exclusive)

    # --- incidents ---------------------------------------------------------------------------------------------------
    def take(
        self,
        revisions: Sequence[tuple[IncidentDocument, float]],
        position: FeedPosition,
        now: float,
        settle_s: float,
    ) -> None:
        """Keeps revisions with the time of each, and the position behind them, in one transaction. Times: Unix seconds.

        settle_s: for so long advice must stand before it is due.
        """
        self._take_all(revisions, position, lambda incident, news: self._keep(incident, news, now, settle_s))

    def _keep(self, incident: IncidentDocument, news: float, now: float, settle_s: float) -> None:
        row = self._one("SELECT revision, document, news, due FROM incidents WHERE id = ?", incident.id)
        if row is not None and row["revision"] >= incident.revision:
            return
        due: float | None = now + settle_s
        is_open = incident.state is IncidentState.OPEN
        if row is None:  # what we never heard of may be old, whenever it was published again
            news = min(news, told_at(incident))
        if row is not None and asked_of(unpack_incident(row["document"])) == asked_of(incident):
            news, due = row["news"], row["due"]  # nothing that matters here is new
        elif is_open:
            due = max(now + settle_s, held_until(incident))
        self._do(
            "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(incident.id, incident.revision, pack_incident(incident), is_open, news, due, now),
        )

    def due(self, now: float) -> list[DueIncident]:
        """The incidents whose advice has stood long enough by now (Unix seconds), the oldest first."""
        rows = self._all("SELECT document, news FROM incidents WHERE due <= ? ORDER BY due, news, id", now)
        return [DueIncident(incident=unpack_incident(row["document"]), news=row["news"]) for row in rows]

    def is_answered(self, incident: str) -> None:
        """Notes that nothing more is to be done until something new is heard of this incident."""
        self._do("UPDATE incidents SET due = NULL WHERE id = ?", incident)

    def waiting(self) -> int:
        """How many incidents are not answered yet."""
        return self._count("SELECT count(*) FROM incidents WHERE due IS NOT NULL")

    def forget(self, now: float) -> None:
        """Deletes what has been over for ``KEPT_S``. now: Unix seconds."""
        before = now - KEPT_S
        self._do("DELETE FROM incidents WHERE seen < ? AND due IS NULL AND NOT open", before)
        self._do("DELETE FROM acts WHERE began < ?", before)
        self._do("DELETE FROM nodes_out WHERE since < ?", before)

    # --- acts --------------------------------------------------------------------------------------------------------
    def begin(self, act: Act, now: float) -> bool:
        """Notes that an act begins; durable before it returns. False: it was begun before, and is not to be done."""
        values = (act.key, self.mode, act.incident, act.hook, act.operation.value, act.target, act.action, _BEGUN, "")
        return self._do("INSERT OR IGNORE INTO acts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", *values, now) == 1

    def outcome(self, act: Act) -> Outcome | None:
        """What became of an act; None: it was not begun."""
        row = self._one("SELECT outcome FROM acts WHERE key = ? AND mode = ?", act.key, self.mode)
        return None if row is None else Outcome(row["outcome"])

    def end(self, act: Act, outcome: Outcome, detail: str, now: float) -> None:
        """Notes what has become of an act that was begun. detail: one line; now: Unix seconds."""
        self._do(
            "UPDATE acts SET outcome = ?, detail = ?, ended = ? WHERE key = ? AND mode = ?",
            *(outcome.value, detail, now, act.key, self.mode),
        )

    def give_up_unfinished(self, now: float) -> list[ActRow]:
        """The acts that an earlier life began and did not end; from now on they count as unfinished."""
        rows = self._acts("SELECT * FROM acts WHERE outcome = ?", _BEGUN)
        self._do("UPDATE acts SET outcome = ?, ended = ? WHERE outcome = ?", Outcome.UNFINISHED.value, now, _BEGUN)
        return rows

    def acts_within(self, hook: str, seconds: float, now: float) -> int:
        """How many acts this hook has begun in the last so many seconds."""
        query = "SELECT count(*) FROM acts WHERE mode = ? AND hook = ? AND began > ?"
        return self._count(query, self.mode, hook, now - seconds)

    def drains_of(self, node: str) -> list[ActRow]:
        """Acts of this mode that took the node out, or would have."""
        return self._acts(
            "SELECT * FROM acts WHERE target = ? AND mode = ? AND operation = ? AND outcome IN (?, ?)",
            *(node, self.mode, HookOperation.DRAIN_NODE.value, Outcome.DONE.value, Outcome.WOULD.value),
        )

    def drained_before(self, time_s: float) -> list[ActRow]:
        """Acts of this mode that took a node out before then (Unix seconds), and that nothing has taken back."""
        return self._acts(
            "SELECT * FROM acts WHERE mode = ? AND operation = ? AND outcome IN (?, ?) AND began < ? AND NOT EXISTS"
            " (SELECT 1 FROM acts AS back WHERE back.mode = acts.mode AND back.operation = ?"
            " AND back.hook = acts.hook AND back.target = acts.target AND back.incident = acts.incident)"
            " ORDER BY began",
            *(self.mode, HookOperation.DRAIN_NODE.value, Outcome.DONE.value, Outcome.WOULD.value, time_s),
            HookOperation.UNDRAIN_NODE.value,
        )

    def incident(self, id: str) -> IncidentDocument | None:
        """The newest revision of an incident that was heard of; None: it is unknown, or forgotten."""
        row = self._one("SELECT document FROM incidents WHERE id = ?", id)
        return None if row is None else unpack_incident(row["document"])

    def last_acts(self, count: int) -> list[ActRow]:
        """So many acts at most, of both modes, the newest first."""
        return self._acts("SELECT * FROM acts ORDER BY began DESC LIMIT ?", count)

    # --- nodes and the breaker ---------------------------------------------------------------------------------------
    def nodes_out(self, now: float, mode: str | None = None) -> dict[str, float]:
        """Nodes that are out since the last reset, each with when (Unix seconds) it was taken out first.

        mode None: ours.
        """
        mode = mode or self.mode
        since = max(self.breaker_reset_at(mode), now - OUT_S)
        query = "SELECT node, min(since) FROM nodes_out WHERE mode = ? AND back IS NULL AND since > ? GROUP BY node"
        return {str(node): float(first) for node, first in self._all(query, mode, since)}

    def take_out(self, nodes: tuple[str, ...], incident: str, now: float) -> None:
        """Notes that these nodes are out because of this incident from now on."""
        for node in nodes:
            self._do("INSERT OR IGNORE INTO nodes_out VALUES (?, ?, ?, ?, NULL)", node, incident, self.mode, now)

    def nodes_for(self, incident: str) -> list[str]:
        """Nodes that are out because of this incident, at least among others; sorted."""
        query = "SELECT node FROM nodes_out WHERE incident = ? AND mode = ? AND back IS NULL ORDER BY node"
        return [str(row["node"]) for row in self._all(query, incident, self.mode)]

    def was_out(self, node: str, incident: str) -> None:
        """Forgets that we took the node out for this incident. Others had done so before: it is not ours to count."""
        self._do("DELETE FROM nodes_out WHERE node = ? AND incident = ? AND mode = ?", node, incident, self.mode)

    def give_back(self, node: str, now: float) -> None:
        """Notes that we have taken the node back in."""
        self._do("UPDATE nodes_out SET back = ? WHERE node = ? AND mode = ? AND back IS NULL", now, node, self.mode)

    def is_needed_out(self, node: str, but: str) -> bool:
        """Whether another incident than ``but``, that is still open, wants the node out."""
        row = self._one(
            "SELECT 1 FROM nodes_out JOIN incidents ON incidents.id = nodes_out.incident"
            " WHERE node = ? AND mode = ? AND incident != ? AND back IS NULL AND open",
            *(node, self.mode, but),
        )
        return row is not None

    def breaker(self, mode: str | None = None) -> Breaker:
        """Whether the breaker of this mode is open, and since when. mode None: ours."""
        found = json.loads(self._fact(f"breaker/{mode or self.mode}") or "{}")
        return Breaker(why=found.get("why"), since=float(found.get("since", 0.0)))

    def breaker_reset_at(self, mode: str) -> float:
        """When (Unix seconds) the breaker of this mode was last reset; 0: never."""
        return float(self._fact(f"reset/{mode}") or 0.0)

    def open_breaker(self, why: str, now: float) -> None:
        """Opens the breaker of our mode, until a person resets it. why: for people."""
        self._put_fact(f"breaker/{self.mode}", json.dumps({"why": why, "since": now}))

    def reset_breaker(self, now: float) -> None:
        """Closes the breaker of our mode; nodes that were taken out until now count no more."""
        self._put_fact(f"breaker/{self.mode}", json.dumps({"since": now}))
        self._put_fact(f"reset/{self.mode}", str(now))

    def _acts(self, query: str, *values: str | float) -> list[ActRow]:
        return [ActRow(**dict(row)) for row in self._all(query, *values)]


def asked_of(incident: IncidentDocument) -> Asked:
    """What of an incident matters for a response: while it stays equal, a later revision is no news.

    A hold that ends is.
    """
    advice, cause, confidence = incident.advice, incident.cause, incident.confidence
    return (
        word_of(incident.state),
        word_of(incident.scope),
        None if advice is None else word_of(advice.action),
        None if advice is None else advice.by,
        tuple(sorted({str(suspect.node) for suspect in incident.suspects})),
        None if cause is None else cause.entity,
        incident.job.now == "restarting",
        held_until(incident),
        None if confidence is None else round(confidence, 2),
    )
