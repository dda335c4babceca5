"""What the node decides without anybody's help: a process stopped, went on, or fell silent; whose stack to take.

Pure functions over one rank's (or one node's) state; the agent turns their answers into events. A stop needs two equal
looks, a stale heartbeat a living process that still holds its ring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...telemetry.vocabulary import ProcessState
from ..base.settings import AgentSettings
from .watched_rank import WatchedRank

_SECOND_NS = 1_000_000_000
#: Heartbeats of ranks that were stopped or ended together end within this time of each other.
_ALONE_NS = 500_000_000


def to_ns(seconds: float) -> int:
    """Nanoseconds of a setting in seconds."""
    return int(seconds * _SECOND_NS)


def process_look_due(rank: WatchedRank, now_ns: int, settings: AgentSettings) -> bool:
    """Whether /proc is to be read for the rank now: seldom while its heartbeat is fresh, often once it is late."""
    since_ns = now_ns - rank.process_read_ns
    if rank.stop_first_seen_ns and not rank.stopped:
        return since_ns >= to_ns(settings.confirm_s)
    if rank.stopped and rank.heartbeat_ns > rank.stop_first_seen_ns:
        return True  # it beats again: say so before anybody takes it for the only one that stands
    late = not 0 < rank.heartbeat_age_ns(now_ns) <= to_ns(settings.suspicious_heartbeat_s)
    return since_ns >= to_ns(settings.suspicious_process_period_s if late else settings.process_period_s)


def wants_a_closer_look(rank: WatchedRank, now_ns: int, settings: AgentSettings) -> bool:
    """Whether the rank's heartbeat is late and not yet explained, or a stop waits for its second look."""
    if not rank.alive or rank.stopped or rank.stale or rank.leaving():
        return False
    return bool(rank.stop_first_seen_ns) or rank.heartbeat_age_ns(now_ns) > to_ns(settings.suspicious_heartbeat_s)


def judge_stop(rank: WatchedRank, now_ns: int, settings: AgentSettings) -> bool | None:
    """Whether the rank was stopped (True) or goes on again (False), by its process as read now; None: no news.

    Sets ``stop_first_seen_ns`` and ``stopped`` of the rank. A stop is news once it lasted for the setting's time.
    """
    process = rank.process
    if process is None or rank.process_read_ns != now_ns:
        return None
    if process.state is not ProcessState.STOPPED:
        rank.stop_first_seen_ns = 0
        if rank.stopped:
            rank.stopped = False
            return False
        return None
    if not rank.stop_first_seen_ns:
        rank.stop_first_seen_ns = now_ns
        return None
    # A tracer (py-spy, a debugger) stops a process for moments; only a lasting trace stop is news.
    needed_s = 1.0 if process.traced else settings.confirm_s
    if not rank.stopped and now_ns - rank.stop_first_seen_ns >= to_ns(needed_s):
        rank.stopped = True
        return True
    return None


def stood_still_alone(rank: WatchedRank, ranks: Sequence[WatchedRank]) -> bool:
    """Whether others of a stopped rank's attempt went on after its last sign of life; True if it has no others.

    If all of them fell silent together, somebody suspended or ended the whole job.
    """
    silent_since_ns = rank.last_sign_of_life_ns()
    peers = [peer for peer in ranks if peer is not rank and peer.identity.attempt == rank.identity.attempt]
    return not peers or max(peer.last_sign_of_life_ns() for peer in peers) - silent_since_ns >= _ALONE_NS


def judge_stale(rank: WatchedRank, now_ns: int, settings: AgentSettings, holds_ring: bool) -> bool:
    """True once per silence: the heartbeat is older than the limit while the process lives, runs and holds its ring.

    Sets ``stale`` of the rank. One that still moves has only a late thread, one without CPU is starved: neither counts.
    """
    limit_ns = to_ns(settings.stale_heartbeat_s)
    if rank.heartbeat_age_ns(now_ns) <= limit_ns:
        rank.stale = False
        return False
    if rank.stale or rank.stopped or rank.stop_first_seen_ns or rank.leaving() or not rank.alive or not holds_ring:
        return False
    if now_ns - rank.moved_ns < limit_ns or rank.is_starved():
        return False
    rank.stale = True
    return True


@dataclass(frozen=True, slots=True)
class StackWanted:
    rank: WatchedRank
    why: str  # "not entered" | "waits" | "stopped" | "stale" | "request"


def oldest_open_age_ns(rank: WatchedRank, now_ns: int) -> int:
    """Age of the rank's oldest open operation over its groups; 0 = none open."""
    if not rank.completion_seen():
        return 0
    opened = [since_ns for since_ns in map(rank.groups.open_since_ns, rank.groups.rows) if since_ns]
    return max(now_ns - min(opened), 0) if opened else 0


def no_progress(rank: WatchedRank, now_ns: int, settings: AgentSettings) -> bool:
    """Whether the rank lives and has not moved for the setting's time. Only such a process may be touched."""
    return rank.alive and now_ns - rank.moved_ns >= to_ns(settings.no_progress_s)


def stacks_wanted(
    ranks: Sequence[WatchedRank], longest_ns: Mapping[int, int], now_ns: int, settings: AgentSettings
) -> list[StackWanted]:
    """Whose stacks tell the story of a hang: ranks with no open operation first, then one waiter per group; and why.

    longest_ns: by agent-wide group number, the longest completed operation seen. Each rank once per standstill.
    """
    slow_groups: dict[int, WatchedRank] = {}
    waiting: set[int] = set()
    for rank in ranks:
        if not rank.alive or not rank.completion_seen():
            continue
        for index in rank.groups.rows:
            since_ns = rank.groups.open_since_ns(index)
            if not since_ns:
                continue
            waiting.add(rank.slot)
            number = rank.groups.numbers.get(index, -1)
            limit_ns = max(to_ns(settings.stack_operation_s), int(settings.stack_factor * longest_ns.get(number, 0)))
            if now_ns - since_ns > limit_ns and no_progress(rank, now_ns, settings):
                slow_groups.setdefault(number, rank)
    if not slow_groups:
        return []
    wanted = [
        StackWanted(rank, "not entered")
        for rank in ranks
        if rank.slot not in waiting and no_progress(rank, now_ns, settings) and not rank.leaving()
    ]
    seen: set[int] = set()
    for rank in slow_groups.values():
        if rank.slot not in seen:
            seen.add(rank.slot)
            wanted.append(StackWanted(rank, "waits"))
    return [want for want in wanted if want.rank.told.stack_at_head != want.rank.hot.event_head]
