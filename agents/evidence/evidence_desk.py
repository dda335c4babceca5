"""Answers requests for files about a rank: its ring, the last minutes of it, the tail of its log, its flight recorder's
dump; and for its node's kernel log.

The polling thread takes requests and hands over bytes that are in memory; a thread of its own compresses and reads
files. Bounded, idempotent by id, so many a minute; a rank that has ended a few minutes ago is still answered for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...telemetry.evidence_pieces import EvidencePiece
from ...telemetry.records import Event, Identity
from ...telemetry.redaction import redact
from ...telemetry.ring_layout import RING_SUFFIX
from ..base.health import AgentHealth
from ..base.owner_workers import FILES
from ..base.settings import AgentSettings
from ..privacy.privacy_options import is_refused
from ..privacy.redaction_filter import pack
from ..ranks.watched_rank import WatchedRank
from ..rings.ring_history import RingHistory
from .awaited_dumps import LOOK_S, AwaitedDump, AwaitedDumps
from .dump_watch import DumpTold, DumpWatch, WatchedDump
from .flight_dumps import DumpPlaces, find_dump_places
from .kernel_log_slice import read_kernel_log
from .log_tail import LogFile, close_logs, find_logs, read_tail

ACTIONS = ("ring", "history", "log_tail", "flight_recorder", "kernel_log")
_MINUTE_NS = 60_000_000_000
#: Of what is sent within so long, there is a bound.
_BUDGET_NS = 600_000_000_000
_REMEMBERED_IDS = 1024
_MAX_WAITING = 64
#: Ranks that have ended are answered for so long, the latest so many.
_ENDED_NS, _MOST_ENDED = 300_000_000_000, 64
#: Where its owner's helper did not answer, a rank's files are looked for again: after 2 s, 4 s and so on.
_MOST_TRIES = 8


@dataclass(slots=True, kw_only=True, eq=False)
class _Known:
    """What is kept of a rank for later questions. ``logs``, ``dumps`` and what is below are filled in by the worker.

    since_ns: Unix, when its ring says that it began.
    """

    rank: int
    pid: int
    uid: int
    since_ns: int
    identity: Identity
    history: RingHistory
    logs: tuple[LogFile, ...] = ()
    dumps: DumpPlaces | None = None
    watched: WatchedRank | None = None  # None: it has ended
    ended_ns: int = 0
    tries: int = 0
    next_try_ns: int = 0  # monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """To which request files are told."""

    identity: Identity
    request_id: str
    action: str
    incident: str


class EvidenceDesk:
    """Polling thread, but for what ``_ask`` is given to do.

    owner_uid: whose job's files these are: his are read one after the other.
    """

    def __init__(
        self, settings: AgentSettings, health: AgentHealth, wall_ns: Callable[[], int], owner_uid: int
    ) -> None:
        self._owner_uid = owner_uid
        self._settings = settings
        self._health = health
        self._wall_ns = wall_ns
        self._known: list[_Known] = []
        self._ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._times_ns: deque[int] = deque()
        self._given = 0
        self._done = 0  # counted by the workers, one of which is at this owner's work at a time
        self._finished: queue.Queue[EvidencePiece] = queue.Queue()
        self._is_used = self._is_looking = False
        # Of the worker:
        self._dumps = AwaitedDumps(health.report)
        self._told_dumps: queue.Queue[DumpTold] = queue.Queue()
        self._watch = DumpWatch(self._told_dumps.put, health.report)
        self._unplaced: list[_Known] = []
        self._next_look_ns = 0
        self._told: deque[tuple[int, int]] = deque()  # (monotonic ns, bytes)

    @property
    def is_on(self) -> bool:
        """False where the settings allow no request at all."""
        return self._settings.requests_per_minute > 0

    def know(self, rank: WatchedRank) -> None:
        """Remembers a rank that is watched from now on, and lets the thread find its logs and dumps.

        Nothing while not ``is_on``.
        """
        if not self.is_on:
            return
        known = _Known(
            rank=rank.rank, pid=rank.pid, uid=rank.ring.uid, since_ns=rank.ring.header.created_wall_ns,
            identity=rank.identity, history=rank.reading.history, watched=rank,
        )  # fmt: skip
        self._known.append(known)
        if rank.pid and rank.alive:
            self._ask(partial(self._find_files, known))

    def forget(self, rank: WatchedRank, now_ns: int) -> None:
        """Marks a rank as ended (its ring is about to be closed); its history stays for later requests.

        Of ended ranks those that are too old, or beyond the bounds in number and bytes, are dropped. now_ns: monotonic.
        """
        for known in self._known:
            if known.watched is rank:
                known.watched, known.ended_ns, known.identity = None, now_ns, rank.identity
                self._ask(lambda: self._end_dumps(rank.pid, now_ns))
        ended = sorted((k for k in self._known if k.watched is None), key=lambda k: k.ended_ns, reverse=True)
        kept_bytes, kept = 0, 0
        for known in ended:
            kept_bytes, kept = kept_bytes + known.history.size, kept + 1
            is_old = known.ended_ns < now_ns - _ENDED_NS
            if is_old or kept > _MOST_ENDED or (kept > 1 and kept_bytes > self._settings.history_bytes):
                self._known.remove(known)
                self._ask(partial(self._release, known))

    def request(self, event: Event, now_ns: int) -> None:
        """Queues a request for files; an id that was seen before is passed over. now_ns: monotonic.

        What is unreadable, withheld, beyond the rate or for no rank here is only counted.
        """
        request_id = event.attributes.get("id")
        if not isinstance(request_id, str):
            self._health.drop("requests_unreadable")
            return
        if request_id in self._ids:
            return
        times = self._times_ns
        while times and times[0] < now_ns - _MINUTE_NS:
            times.popleft()
        if len(times) >= self._settings.requests_per_minute or self._given - self._done >= _MAX_WAITING:
            self._health.drop("requests_refused")
            return
        if is_refused(str(event.attributes.get("action")), self._settings.withheld):
            self._health.drop("requests_refused")
            return
        known = self._find(event)
        if known is None:
            self._health.drop("requests_for_nobody")
            return
        self._ids.append(request_id)
        times.append(now_ns)
        self._serve(known, event, request_id, now_ns)

    def finished(self) -> list[EvidencePiece]:
        """Takes away the files that are ready, each in one piece."""
        if (
            (len(self._dumps) or len(self._watch) or self._unplaced)
            and not self._is_looking
            and time.monotonic_ns() >= self._next_look_ns
        ):
            self._is_looking = True
            self._ask(self._look)
        found: list[EvidencePiece] = []
        while not self._finished.empty():
            found.append(self._finished.get_nowait())
        return found

    def told_dumps(self) -> list[DumpTold]:
        """Takes away what is to be told of dumps that were found unasked."""
        found: list[DumpTold] = []
        while not self._told_dumps.empty():
            found.append(self._told_dumps.get_nowait())
        return found

    def close(self, patience_s: float = 3.0) -> None:
        """Looks for dumps a last time, waiting ``patience_s`` at most; what is under way may be lost."""
        if not self._is_used:
            return
        done = threading.Event()

        def look_last() -> None:
            self._look(last=True)
            for known in self._known:
                self._release(known)

        self._ask(look_last)
        FILES.submit(self._owner_uid, done.set)
        done.wait(patience_s)
        self._is_used = False

    def _find(self, event: Event) -> _Known | None:
        """The rank of that launch; of any launch if the request names one of another node, the last to come first.

        A node's kernel log is everybody's: any rank that is known speaks for the node.
        """
        wanted = event.attributes.get("rank", event.identity.rank)
        found: Sequence[_Known] = [known for known in self._known if known.rank == wanted]
        if not found and event.attributes.get("action") == "kernel_log" and event.attributes.get("node"):
            found = self._known
        of_launch = [known for known in found if known.identity.attempt == event.identity.attempt]
        return next(reversed(of_launch or found), None)

    def _serve(self, known: _Known, event: Event, request_id: str, now_ns: int) -> None:
        action, identity = str(event.attributes.get("action")), known.identity
        incident = str(event.attributes.get("incident") or "")
        answer = _Answer(identity=identity, request_id=request_id, action=action, incident=incident)
        base = _base_name(known)
        if action == "kernel_log":
            self._ask(lambda: self._read_kernel_log(answer))
        elif action == "log_tail":

            def read_logs() -> None:
                for number, log in enumerate(known.logs):
                    self._report(answer, f"{base}-{number}.log", "text", read_tail(log))

            self._ask(read_logs)
        elif action == "flight_recorder":
            # A rank that stands still may be unable to write a dump, and what the others wait for is in theirs.
            peers = [k for k in self._known if k is not known and k.identity.attempt == identity.attempt]
            asked = [known, *sorted(peers, key=lambda peer: peer.rank)]
            self._ask(lambda: self._await_dumps(asked, answer, now_ns))
        else:
            if action == "history":
                raw, name, form = known.history.take_copy(), f"{base}-history{RING_SUFFIX}-events.gz", "ring-events.gz"
            else:
                raw = known.watched.ring.read_copy() if known.watched is not None else b""
                name, form = f"{base}{RING_SUFFIX}.gz", "ring.gz"
            if not raw:
                self._health.drop("requests_without_answer")
                return
            self._ask(lambda: self._report(answer, name, form, raw))

    def _ask(self, work: Callable[[], None]) -> None:
        """In a thread for files: one at a time works for an owner, so what is asked first comes first."""
        self._given += 1

        def act() -> None:
            self._guarded(work)
            self._done += 1

        FILES.submit(self._owner_uid, act)
        self._is_used = True

    # --- the worker ---------------------------------------------------------------------------------------------------
    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # edge: a file system, a file of somebody else
            self._health.report(f"evidence: {type(error).__name__}: {error}")

    def _find_files(self, known: _Known) -> None:
        """Of a rank that lives: its logs, and where it would write dumps. Again later, where that is not to be had."""
        known.logs = known.logs or find_logs(known.pid, known.uid)
        known.dumps = find_dump_places(known.pid, known.rank, known.uid, known.since_ns)
        if known.dumps is not None:
            if not is_refused("flight_recorder", self._settings.withheld):
                self._watch.add(_watched_dump(known, known.dumps))
        elif known.tries < _MOST_TRIES:
            known.tries += 1
            known.next_try_ns = time.monotonic_ns() + (1_000_000_000 << known.tries)
            self._unplaced.append(known)

    def _find_files_again(self, now_ns: int) -> None:
        due = [known for known in self._unplaced if known.next_try_ns <= now_ns or known.watched is None]
        for known in due:
            self._unplaced.remove(known)
            if known.watched is not None:
                self._find_files(known)

    def _release(self, known: _Known) -> None:
        """Lets go of what is held of a rank that nobody can ask for any more."""
        logs, known.logs = known.logs, ()
        close_logs(logs)
        places, known.dumps = known.dumps, None
        if places is not None:
            self._watch.give_up(places)
            self._dumps.give_up(places)
            places.close()

    def _look(self, *, last: bool = False) -> None:
        """For dumps that are awaited."""
        now_ns = time.monotonic_ns()
        self._next_look_ns = now_ns + int(LOOK_S * 1e9)
        self._is_looking = False
        self._find_files_again(now_ns)
        self._dumps.look(now_ns, time.time_ns(), last=last)
        self._watch.look(now_ns, time.time_ns(), last=last)

    def _end_dumps(self, pid: int, now_ns: int) -> None:
        self._dumps.end(pid, now_ns)
        self._watch.end(pid, now_ns)

    def _await_dumps(self, ranks: Sequence[_Known], answer: _Answer, now_ns: int) -> None:
        """The dumps of these ranks, the first one's first; each is told when it is there."""
        for known in ranks:
            if known.dumps is None:
                continue
            of_rank, base = replace(answer, identity=known.identity), _base_name(known)

            def tell(name: str, content: bytes, *, answer: _Answer = of_rank, base: str = base) -> None:
                self._report(answer, f"{base}-{name}.dump.gz", "dump.gz", content)

            dump = AwaitedDump(pid=known.pid, places=known.dumps, tell=tell)
            self._dumps.add(dump, now_ns)
            if known.watched is None:
                self._dumps.end(known.pid, now_ns)
        self._look()

    def _read_kernel_log(self, answer: _Answer) -> None:
        identity = replace(answer.identity, rank=-1)
        found = read_kernel_log(self._settings.kernel_log_s, self._settings.kernel_log)
        text = found.text if found.source else f"# the kernel log cannot be read: {found.problem}\n".encode()
        name = f"{identity.attempt}-node-{identity.node}-kernel.log"
        self._report(replace(answer, identity=identity), name, "text", text)

    def _report(self, answer: _Answer, name: str, form: str, raw: bytes) -> None:
        """Hand out a file as it may leave the node, unless that has sent as much as it may by now."""
        name, content = redact(name), pack(raw, form)
        now_ns = time.monotonic_ns()
        while self._told and self._told[0][0] < now_ns - _BUDGET_NS:
            self._told.popleft()
        if sum(size for _, size in self._told) + len(content) > self._settings.evidence_bytes:
            self._health.drop("evidence_over_limit")
            self._health.report(f"evidence: {name}: more than {self._settings.evidence_bytes} bytes in ten minutes")
            return
        if not content:
            return
        self._told.append((now_ns, len(content)))
        piece = EvidencePiece(
            identity=answer.identity,
            request_id=answer.request_id,
            action=answer.action,
            name=name,
            format=form,
            time_ns=self._wall_ns(),
            content=content,
            incident=answer.incident,
        )
        self._finished.put(piece)


def _watched_dump(known: _Known, places: DumpPlaces) -> WatchedDump:
    def moved_ns() -> int:
        return known.watched.moved_ns if known.watched is not None else 0

    return WatchedDump(
        rank=known.rank, pid=known.pid, places=places, identity=lambda: known.identity, moved_ns=moved_ns
    )


def _base_name(known: _Known) -> str:
    return f"{known.identity.attempt}-rank-{known.rank:05d}-{known.pid}"
