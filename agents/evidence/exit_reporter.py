"""How a rank ends, as far as its ring and the kernel tell: exception, exit, last stack; and what is kept for people.

Polling thread. Events come behind a flush of all rings of the node, so that what led to an end is known before it.
"""

from __future__ import annotations

from ...telemetry import ring_layout as L
from ...telemetry.vocabulary import EventName, ExitState
from ..base.health import AgentHealth
from ..privacy.redaction_filter import pack
from ..processes import processes
from ..ranks.pending_events import PendingEvents
from ..ranks.rank_events import (
    exception_attributes,
    exit_attributes,
    exit_state_of,
    last_stack_attributes,
    without_stack,
)
from ..ranks.watched_rank import WatchedRank
from ..rings.crash_area import read_exception, read_signal, read_stack
from ..rings.ring_file import exception_version
from .call_site_desk import failing_calls
from .evidence_store import EvidenceStore
from .stack_desk import StackReport


class ExitReporter:
    """keeps_rings: whether ring copies are saved as evidence; not of rings that are read after the fact."""

    def __init__(
        self, news: PendingEvents, evidence: EvidenceStore, health: AgentHealth, *, tells_stacks: bool = True
    ) -> None:
        self._tells_stacks = tells_stacks
        self._news = news
        self._evidence = evidence
        self._health = health
        self.keeps_rings = True

    def look(self, rank: WatchedRank, now_ns: int, *, moved: bool) -> None:
        """Tells an exception that the rank has recorded since the last look.

        now_ns: monotonic; moved: the ring has news.
        """
        if not rank.told.exception_final and (moved or not rank.alive):
            self._find_exception(rank, now_ns)

    def tell_exit(self, rank: WatchedRank, now_ns: int) -> None:
        """Tells RANK_EXIT, and the last calls and stack with it; once per rank. now_ns: monotonic."""
        if rank.told.exit_sent:
            return
        rank.told.exit_sent = True
        if exit_state_of(rank) != ExitState.NORMAL:
            self._tell_calls(rank, now_ns)
        self._tell_last_stack(rank)
        status = processes.exit_status(rank.pid, rank.start_ticks, rank.pidfd, rank.ring.uid)
        told = read_signal(rank.ring)
        ended_ns = min(rank.last_sign_of_life_ns() or now_ns, now_ns) if rank.left_behind else now_ns
        if told is not None and (status.signal == told.number or status == processes.UNKNOWN_EXIT):
            # The kernel takes its time to clear a process away, and we to look: victims would seem to come first. And
            # of a ring that was left behind it is the last sign of life: a heart does not beat while C holds the GIL.
            ended_ns = min(now_ns, told.time_ns) if told.time_ns > 0 else ended_ns
        self._news.tell(rank, EventName.RANK_EXIT, ended_ns, exit_attributes(rank, status, told))
        if exit_state_of(rank) != ExitState.NORMAL or status.signal or status.exit_code:
            self.save_ring(rank, "died")

    def save_stack(self, report: StackReport) -> None:
        """Keeps a stack as a file and, unless the rank only waits, a copy of its ring beside it."""
        name = f"{_evidence_name(report.rank, report.why)}.stack.txt"
        self._evidence.save(name, pack(report.text.encode("utf-8", "replace"), "text"))
        if report.why != "waits":
            self.save_ring(report.rank, report.why)

    def save_ring(self, rank: WatchedRank, why: str) -> None:
        """Saves a compressed copy of the rank's ring as evidence (1 to 4 ms); nothing unless ``keeps_rings``.

        why: part of the file's name.
        """
        copy = rank.ring.read_copy() if self.keeps_rings else b""
        if copy:
            name = f"{_evidence_name(rank, why)}{L.RING_SUFFIX}.gz"
            self._evidence.save(name, pack(copy, "ring.gz"))

    def _find_exception(self, rank: WatchedRank, now_ns: int) -> None:
        """Tell the recorded exception: a thread's at once, and the main thread's in its place should it come."""
        if exception_version(rank.ring) in (0, rank.told.exception_version):
            return
        found = read_exception(rank.ring, writer_is_dead=not rank.alive)
        if found is None:
            return
        rank.told.exception_version, rank.told.exception_final, rank.told.had_exception = (
            found.version,
            found.in_main,
            True,
        )
        if not found.complete:
            self._health.rows_torn += 1
        attributes = exception_attributes(rank, found)
        if not self._tells_stacks:
            attributes = without_stack(attributes)
        raised_ns = min(found.time_ns, now_ns) if found.time_ns > 0 else now_ns
        self._tell_calls(rank, now_ns)
        self._news.tell(rank, EventName.RANK_EXCEPTION, raised_ns, attributes)
        if not attributes["communication"]:
            self.save_ring(rank, "raised")

    def _tell_calls(self, rank: WatchedRank, now_ns: int) -> None:
        """Which lines its newest operations came from, once: nobody can ask for it later."""
        if self._tells_stacks and not rank.told.calls:
            rank.told.calls = True
            for attributes in failing_calls(rank):
                self._news.tell(rank, EventName.RANK_CALLS, now_ns, attributes)

    def _tell_last_stack(self, rank: WatchedRank) -> None:
        """Where the main thread was when a fatal signal came, if the rank could still write it down."""
        own, told = read_stack(rank.ring), read_signal(rank.ring)
        if not self._tells_stacks or own is None or told is None or own.time_ns < told.time_ns:
            return
        self._news.tell(rank, EventName.RANK_STACK, own.time_ns, last_stack_attributes(rank, own))


def _evidence_name(rank: WatchedRank, why: str) -> str:
    return f"{rank.identity.attempt}-rank-{rank.rank:05d}-{rank.pid}-{why}"
