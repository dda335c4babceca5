"""Answers requests for files about a rank: its ring, the last minutes of it, the tail of its log.

The polling thread takes requests and hands over bytes that are in memory; a thread of its own compresses and reads
files. Bounded, idempotent by id, so many a minute; a rank that has ended a few minutes ago is still answered for.
"""

from __future__ import annotations

import gzip
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..telemetry.evidence import EvidencePiece
from ..telemetry.records import Event, Identity
from ..telemetry.ring_layout import RING_SUFFIX
from .health import AgentHealth
from .log_tail import LogFile, find_logs, read_tail
from .ring_history import RingHistory
from .settings import AgentSettings
from .watched_rank import WatchedRank

ACTIONS = ("ring", "history", "log_tail")
_MINUTE_NS = 60_000_000_000
_REMEMBERED_IDS = 1024
_MAX_WAITING = 64
#: Ranks that have ended are answered for so long, the latest so many.
_ENDED_NS, _MOST_ENDED = 300_000_000_000, 64


@dataclass(slots=True, kw_only=True, eq=False)
class _Known:
    """What is kept of a rank for later questions. ``logs`` is filled in by the worker."""

    rank: int
    pid: int
    identity: Identity
    history: RingHistory
    logs: tuple[LogFile, ...] = ()
    watched: WatchedRank | None = None  # None: it has ended
    ended_ns: int = 0


class EvidenceDesk:
    """Polling thread, but for ``_work``."""

    def __init__(self, settings: AgentSettings, health: AgentHealth, wall_ns: Callable[[], int]) -> None:
        self._settings = settings
        self._health = health
        self._wall_ns = wall_ns
        self._known: list[_Known] = []
        self._ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._times_ns: deque[int] = deque()
        self._asked: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._finished: queue.Queue[EvidencePiece] = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def is_on(self) -> bool:
        return self._settings.requests_per_minute > 0

    def know(self, rank: WatchedRank) -> None:
        """A rank that is watched from now on."""
        if not self.is_on:
            return
        known = _Known(rank=rank.rank, pid=rank.pid, identity=rank.identity, history=rank.history, watched=rank)
        self._known.append(known)
        if rank.pid and rank.alive:

            def look() -> None:
                known.logs = find_logs(known.pid)

            self._ask(look)

    def forget(self, rank: WatchedRank, now_ns: int) -> None:
        """A rank that has ended: its ring is about to be closed."""
        for known in self._known:
            if known.watched is rank:
                known.watched, known.ended_ns, known.identity = None, now_ns, rank.identity
        ended = sorted((k for k in self._known if k.watched is None), key=lambda k: k.ended_ns, reverse=True)
        kept_bytes, kept = 0, 0
        for known in ended:
            kept_bytes, kept = kept_bytes + known.history.size, kept + 1
            is_old = known.ended_ns < now_ns - _ENDED_NS
            if is_old or kept > _MOST_ENDED or (kept > 1 and kept_bytes > self._settings.history_bytes):
                self._known.remove(known)

    def request(self, event: Event, now_ns: int) -> None:
        """Take a request; what cannot be served is counted, an id that was seen before is passed over."""
        request_id, action = event.attributes.get("id"), str(event.attributes.get("action"))
        if not isinstance(request_id, str):
            self._health.drop("requests_unreadable")
            return
        if request_id in self._ids:
            return
        times = self._times_ns
        while times and times[0] < now_ns - _MINUTE_NS:
            times.popleft()
        if len(times) >= self._settings.requests_per_minute or self._asked.qsize() >= _MAX_WAITING:
            self._health.drop("requests_refused")
            return
        known = self._find(event)
        if known is None:
            self._health.drop("requests_for_nobody")
            return
        self._ids.append(request_id)
        times.append(now_ns)
        self._serve(known, action, request_id)

    def finished(self) -> list[EvidencePiece]:
        """Files that are ready, each in one piece."""
        found: list[EvidencePiece] = []
        while not self._finished.empty():
            found.append(self._finished.get_nowait())
        return found

    def close(self, patience_s: float = 1.0) -> None:
        """End the thread; what it is at may be lost."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(patience_s)
            self._thread = None

    def _find(self, event: Event) -> _Known | None:
        """The rank of that launch; of any launch if the request names one of another node, the last to come first."""
        wanted = event.attributes.get("rank", event.identity.rank)
        found: Sequence[_Known] = [known for known in self._known if known.rank == wanted]
        of_launch = [known for known in found if known.identity.attempt == event.identity.attempt]
        return next(reversed(of_launch or found), None)

    def _serve(self, known: _Known, action: str, request_id: str) -> None:
        identity = known.identity
        base = f"{identity.attempt}-rank-{known.rank:05d}-{known.pid}"

        def tell(name: str, form: str, content: bytes) -> None:
            if content:
                piece = EvidencePiece(
                    identity=identity,
                    request_id=request_id,
                    action=action,
                    name=name,
                    format=form,
                    time_ns=self._wall_ns(),
                    content=content,
                )
                self._finished.put(piece)

        if action == "log_tail":

            def read_logs() -> None:
                for number, log in enumerate(known.logs):
                    tell(f"{base}-{number}.log", "text", read_tail(log))

            self._ask(read_logs)
            return
        if action == "history":
            raw, name, form = known.history.take_copy(), f"{base}-history{RING_SUFFIX}-events.gz", "ring-events.gz"
        else:
            raw = known.watched.ring.read_copy() if known.watched is not None else b""
            name, form = f"{base}{RING_SUFFIX}.gz", "ring.gz"
        if not raw:
            self._health.drop("requests_without_answer")
            return
        self._ask(lambda: tell(name, form, gzip.compress(raw, compresslevel=1, mtime=0)))

    def _ask(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="whichrank-evidence", daemon=True)
            self._thread.start()
        self._asked.put(work)

    def _work(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                work()
            except Exception as error:  # edge: a file system, a file of somebody else
                self._health.report(f"evidence: {type(error).__name__}: {error}")
