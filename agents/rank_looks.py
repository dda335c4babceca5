"""Looks at single ranks: ring, process, motion; and what the node tells of them at once: stops, silence, slow calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..telemetry.vocabulary import EventName, ProcessState
from .base.settings import AgentSettings
from .evidence.exit_reporter import ExitReporter
from .processes import processes
from .processes.socket_bytes import SocketBytes
from .ranks import motion
from .ranks.local_verdicts import (
    judge_stale,
    judge_stop,
    oldest_open_age_ns,
    process_look_due,
    stood_still_alone,
    to_ns,
)
from .ranks.pending_events import PendingEvents
from .ranks.rank_events import where_attributes
from .ranks.watched_rank import WatchedRank
from .rings.crash_area import read_stack

#: A pause of the agent itself (stopped, starved) makes every heartbeat look old; wait this long before judging.
_GRACE_NS = 1_000_000_000
#: So long after a stop its peers have shown whether they stopped as well.
_WITNESS_NS = 200_000_000


def next_look_ns(now_ns: int, period_ns: int, jobs_here: int) -> int:
    """When a job is looked at again. Of several jobs on a node all together: one wake-up with warm caches for all."""
    if jobs_here == 1:
        return now_ns + period_ns
    return ((now_ns + period_ns // 2) // period_ns + 1) * period_ns


class RankLooks:
    """Owned by the polling thread. Times are monotonic."""

    def __init__(self, settings: AgentSettings, pending: PendingEvents, endings: ExitReporter, now_ns: int) -> None:
        self._settings = settings
        self._pending, self._endings = pending, endings
        self._socket_bytes = SocketBytes()
        self._stale_ns = to_ns(settings.stale_heartbeat_s)
        self._judge_from_ns = now_ns
        self._witness_ns = 0  # when progress is to be told for the sake of a stop, 0 never

    def had_a_pause(self, now_ns: int) -> None:
        """Tells that the agent did not run for a while: for ``_GRACE_NS`` from now no heartbeat counts as old."""
        self._judge_from_ns = now_ns + _GRACE_NS

    def take_witness(self, now_ns: int) -> bool:
        """Whether progress is due now because a rank has stopped; True once per stop."""
        is_due = 0 < self._witness_ns <= now_ns
        if is_due:
            self._witness_ns = 0
        return is_due

    def look(self, rank: WatchedRank, now_ns: int) -> None:
        """Looks at a rank's ring and process, and tells what follows: stops, silence, exceptions, its exit if it ended.

        now_ns: monotonic.
        """
        moved = rank.look(now_ns)
        if rank.alive and process_look_due(rank, now_ns, self._settings):
            rank.read_process(now_ns)
        self._look_at_motion(rank, now_ns, moved=moved)
        self._endings.look(rank, now_ns, moved=moved)
        if not rank.alive:
            self._endings.tell_exit(rank, now_ns)
            return
        self._judge(rank, now_ns)
        if rank.groups.are_unmoved(rank.page):
            rank.groups.parse(rank.page)
            self.announce_slow(rank, now_ns)

    def announce_slow(self, rank: WatchedRank, now_ns: int) -> None:
        """Makes the next flush urgent when an operation of the rank gets slow; once per operation."""
        age_ns = oldest_open_age_ns(rank, now_ns)
        if age_ns > to_ns(self._settings.slow_operation_s) and rank.told.slow_open_ns != now_ns - age_ns:
            rank.told.slow_open_ns = now_ns - age_ns
            self._pending.urgent = True

    def tell_resumed(self, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        """The agent itself was stopped: ranks that live and are not stopped are told as continued, with the next flush.

        What they stood still for meanwhile was no wait.
        """
        for rank in ranks:
            if rank.alive and not rank.stopped and not rank.stop_first_seen_ns:
                self._pending.before_blocks(EventName.RANK_CONTINUED, rank.identity, now_ns, where_attributes(rank))

    def tell_left_stopped(self, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        """Tells RANK_STOPPED, ahead of the next blocks, for ranks found stopped whose peers went on. Sets ``stopped``.

        The heartbeat says since when, and has been silent for so long that a second look at the process adds nothing.
        """
        for rank in ranks:
            if not rank.alive or rank.process is None or rank.process.state is not ProcessState.STOPPED:
                continue
            rank.stopped = not rank.process.traced
            since_ns = min(rank.last_sign_of_life_ns() or now_ns, now_ns)
            if rank.stopped and stood_still_alone(rank, ranks):
                attributes = {**where_attributes(rank), "left_behind": True}
                self._pending.before_blocks(EventName.RANK_STOPPED, rank.identity, since_ns, attributes)

    def _look_at_motion(self, rank: WatchedRank, now_ns: int, *, moved: bool) -> None:
        """A rank whose ring stands still may be at work all the same."""
        if moved:
            rank.motion.forget()
        elif rank.alive and rank.pid and now_ns - rank.moved_ns >= motion.LOOK_NS and rank.motion.is_due(now_ns):
            rank.motion.look(
                rank.pid,
                rank.ring.uid,
                rank.moved_ns,
                rank.heartbeat_age_ns(now_ns),
                read_stack(rank.ring),
                partial(self._socket_bytes.at, now_ns),
                now_ns,
            )

    def _judge(self, rank: WatchedRank, now_ns: int) -> None:
        """Local verdicts: stopped, continued, silent."""
        if rank.process_read_ns == now_ns:
            news = judge_stop(rank, now_ns, self._settings)
            if rank.stop_first_seen_ns == now_ns and rank.process is not None and not rank.process.traced:
                # No word yet, but a progress row: should this be our last look, the rings left behind are the second.
                self._pending.urgent = True
            if news is not None:
                name = EventName.RANK_STOPPED if news else EventName.RANK_CONTINUED
                self._pending.tell(rank, name, now_ns, where_attributes(rank))
                if news:
                    self._witness_ns = now_ns + _WITNESS_NS
                    self._endings.save_ring(rank, "stopped")
        age_ns = rank.heartbeat_age_ns(now_ns)
        if not rank.stale and (age_ns <= self._stale_ns or now_ns < self._judge_from_ns):
            return
        holds = rank.stale or processes.lock_holder(rank.ring.fd) is not None
        if judge_stale(rank, now_ns, self._settings, holds):
            state = rank.process_state().name.lower()
            attributes = {"heartbeat_age_ns": age_ns, "process_state": state, **where_attributes(rank)}
            self._pending.tell(rank, EventName.RANK_STALE, now_ns, attributes)
