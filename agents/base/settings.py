"""Everything about the agent that can be tuned, in one frozen record. No I/O.

Defaults are chosen so that eight ranks at 200 collectives a second each cost at most 2 % of one core.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Periods, thresholds and bounds of one agent. Raises ValueError for combinations that make no sense."""

    #: Cheap look at progress pages and heartbeats, while all is well. A death wakes the agent by itself (pidfd).
    #: What a wake-up costs is mostly cold caches, so few of them is what keeps the agent cheap.
    look_period_s: float = 0.25
    #: The same while a heartbeat is late, a stop is to be confirmed or a stack is being taken.
    alert_look_period_s: float = 0.05
    #: Events are drained and shipped this often, or at once when something is wrong.
    flush_period_s: float = 0.5
    #: The same while steps are shorter than this: a rank that becomes slow is to be named within ten of them.
    fast_flush_period_s: float = 0.25
    fast_step_s: float = 0.2
    progress_period_s: float = 1.0
    health_period_s: float = 4.0
    #: ``/proc/PID/stat`` of a rank whose heartbeat is fresh (CPU time), and of one whose heartbeat is late.
    process_period_s: float = 1.0
    suspicious_process_period_s: float = 0.2
    #: A heartbeat older than this makes the process state worth a look.
    suspicious_heartbeat_s: float = 0.2
    #: Two looks this far apart must agree before a stop is reported.
    confirm_s: float = 0.05
    stale_heartbeat_s: float = 1.0
    #: An open operation that gets this old makes the agent ship everything at once, once.
    slow_operation_s: float = 1.0
    #: Stacks are taken for an open operation older than this and than ``stack_factor`` times the longest seen.
    stack_operation_s: float = 1.5
    stack_factor: float = 2.0
    #: A process is touched only if its own ring has not moved for this long.
    no_progress_s: float = 1.0
    stack_timeout_s: float = 5.0
    stacks_per_minute: int = 30
    take_stacks: bool = True
    #: Evidence requests are answered within this time or dropped.
    request_lifetime_s: float = 60.0
    #: Kept in the evidence folder, and sent in answer to requests within ten minutes.
    evidence_bytes: int = 20 << 20
    #: Requests for files (rings, log tails, dumps, kernel log) that are answered per minute; 0: none is.
    requests_per_minute: int = 0
    #: So much of what was drained of the rings is kept for such requests; 0: nothing is.
    history_s: float = 0.0
    history_bytes: int = 32 << 20
    #: Answers go out on the bus in pieces, and into the evidence folder.
    ships_answers: bool = True
    keeps_answers: bool = False
    #: Where kernel lines are: /dev/kmsg or a logger's file; empty: found. An incident gets those of so long before it.
    kernel_log: str = ""
    kernel_log_s: float = 600.0
    #: Names of ``privacy_options``: what does not leave the node.
    withheld: frozenset[str] = frozenset()
    #: Rings of ranks that have ended stay in their folder, which is memory, up to so many bytes; the oldest go first.
    ended_ring_bytes: int = 64 << 20
    #: Blocks stay under this; whole requests under ``request_bytes``.
    block_bytes: int = 60_000
    request_bytes: int = 600_000
    #: Spans and metrics for people (Jaeger, Prometheus), beside the blocks that operators read.
    tell_people: bool = False
    #: More spans than this per rank, and only every second, fourth … step is told; the same steps on every rank.
    spans_per_rank_s: float = 20.0
    #: Spans are gathered for so long: what goes out together compresses well.
    spans_period_s: float = 5.0
    metrics_period_s: float = 10.0
    #: Histograms of one node, 2.4 KB of memory each.
    max_histograms: int = 4096
    #: Operations held for a completion that has not come, over all rings.
    open_rows: int = 65_536
    max_rings: int = 1024

    def __post_init__(self) -> None:
        periods_s = (
            self.alert_look_period_s,
            self.look_period_s,
            self.fast_flush_period_s,
            self.flush_period_s,
            self.progress_period_s,
        )
        if periods_s[0] <= 0 or list(periods_s) != sorted(periods_s):
            raise ValueError("periods must satisfy 0 < alert look <= look <= fast flush <= flush <= progress")
        if not 1 <= self.max_rings <= 4095:
            raise ValueError("max_rings must be between 1 and 4095: the join key has 12 bits for a ring")
        if min(self.spans_per_rank_s, self.spans_period_s, self.metrics_period_s) <= 0 or self.max_histograms < 1:
            raise ValueError("spans_per_rank_s, spans_period_s, metrics_period_s and max_histograms must be positive")
        if self.block_bytes < 1024 or self.request_bytes < self.block_bytes:
            raise ValueError("block_bytes must be at least 1024 and request_bytes at least block_bytes")
