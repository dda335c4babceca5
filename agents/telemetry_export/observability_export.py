"""What an agent tells people beside what operators read: spans and metrics, each in its own rhythm.

Polling thread. Nothing here decides anything or may fail anything else: it is the first to be dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...telemetry.records import Group, Identity
from ...telemetry.topics import TOPIC_METRICS, TOPIC_SPANS
from ..base.health import AgentHealth
from ..base.settings import AgentSettings
from ..ranks.local_verdicts import to_ns
from ..ranks.watched_rank import WatchedRank
from ..reduction.collect_collectives import CollectedRows, joined_rows
from ..reduction.collect_steps import CollectedSteps, joined_steps
from ..reduction.large_jobs import SELDOM_METRICS, is_large
from .rank_metrics import RankMetrics
from .rank_spans import RankSpans

#: Topic and a serialized OTLP request of at most ``AgentSettings.request_bytes``.
Send = Callable[[str, bytes], None]
#: Rows of flushes that wait until spans or metrics are due: what a look costs besides its rows is paid once for all.
_WAITING_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flush:
    """Copies of what a flush brought, and when (monotonic)."""

    collected: CollectedRows
    steps: CollectedSteps
    clock_offset_ns: int
    now_ns: int


class ObservabilityExport:
    """send: takes what is told; it must return at once (``Shipper.send_to_people``). Else: ``RankMetrics``."""

    def __init__(
        self,
        settings: AgentSettings,
        health: AgentHealth,
        identity: Identity,
        job_name: str,
        send: Send,
        *,
        since_ns: int,
        more_health: Callable[[], Mapping[str, int | str]] = dict,
    ) -> None:
        self._settings = settings
        self._health = health
        self._send = send
        self._spans = RankSpans(health, job_name, settings.spans_per_rank_s, settings.request_bytes)
        self._metrics = RankMetrics(
            health, identity, job_name, settings.max_histograms, since_ns=since_ns, more_health=more_health
        )
        self._next_spans_ns = self._next_metrics_ns = 0
        self._waiting: list[_Flush] = []
        self._waiting_rows = 0
        self._groups: Sequence[Group] = ()

    def see(
        self,
        collected: CollectedRows,
        steps: CollectedSteps,
        groups: Sequence[Group],
        *,
        ranks: Sequence[WatchedRank],
        clock_offset_ns: int,
        now_ns: int,
    ) -> None:
        """Takes a flush's rows, before they become blocks; spans and metrics are made of those of several at once.

        groups: what group columns index, with all that were there before. now_ns: monotonic.
        """
        rows = len(collected.rows) + len(steps.steps) + len(steps.phases)
        self._groups = groups
        self._waiting.append(
            _Flush(
                collected=replace(collected, rows=collected.rows.copy()) if len(collected.rows) else collected,
                steps=steps,
                clock_offset_ns=clock_offset_ns,
                now_ns=now_ns,
            )
        )
        self._waiting_rows += rows
        if self._waiting_rows >= _WAITING_ROWS:
            self._guarded(lambda: self._look(ranks))

    def forget(self, rank: WatchedRank, ranks: Sequence[WatchedRank], *, time_ns: int) -> None:
        """Ends the spans and metrics of a rank whose ring was closed. ranks: still watched; time_ns: Unix."""
        self._guarded(lambda: self._look([*ranks, rank]))

        def forget() -> None:
            self._spans.forget(rank)
            self._metrics.end(rank, ranks, time_ns=time_ns)

        self._guarded(forget)

    def tell(
        self, ranks: Sequence[WatchedRank], *, clock_offset_ns: int, now_ns: int, everything: bool = False
    ) -> None:
        """Sends the spans and metrics that are due; everything: all of them, as the last words. now_ns: monotonic."""
        self._guarded(lambda: self._report(ranks, clock_offset_ns, now_ns, everything))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the edge towards what operators read: a bug here must not cost them a flush
            self._health.drop("people_failed")
            self._health.report(f"spans and metrics for people failed: {type(error).__name__}: {error}")

    def _look(self, ranks: Sequence[WatchedRank]) -> None:
        """Makes spans and metrics of all rows that wait. ranks: all of whom there may be rows."""
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if not waiting:
            return
        first, last = waiting[0], waiting[-1]
        collected, steps = first.collected, first.steps
        if len(waiting) > 1:
            collected = joined_rows([flush.collected for flush in waiting])
            steps = joined_steps([flush.steps for flush in waiting])
        self._spans.see(collected, steps, self._groups, ranks, clock_offset_ns=last.clock_offset_ns, now_ns=last.now_ns)
        # What begins with these rows began with the first of them.
        self._metrics.see(collected, steps, self._groups, ranks, time_ns=first.now_ns + first.clock_offset_ns)

    def _report(self, ranks: Sequence[WatchedRank], clock_offset_ns: int, now_ns: int, everything: bool) -> None:
        if everything or now_ns >= min(self._next_spans_ns, self._next_metrics_ns):
            self._look(ranks)
        if everything or now_ns >= self._next_spans_ns or self._spans.is_full:
            self._next_spans_ns = now_ns + to_ns(self._settings.spans_period_s)
            for request in self._spans.take():
                self._send(TOPIC_SPANS, request)
        if everything or now_ns >= self._next_metrics_ns:
            times = SELDOM_METRICS if any(is_large(rank.ring.header.world_size) for rank in ranks) else 1
            self._next_metrics_ns = now_ns + times * to_ns(self._settings.metrics_period_s)
            time_ns = now_ns + clock_offset_ns
            size = self._settings.request_bytes
            for request in self._metrics.take(ranks, now_ns=now_ns, time_ns=time_ns, request_bytes=size):
                self._send(TOPIC_METRICS, request)
