"""What an agent tells people beside what operators read: spans and metrics, each in its own rhythm.

Polling thread. Nothing here decides anything or may fail anything else: it is the first to be dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...telemetry.records import Group, Identity
from ...telemetry.topics import TOPIC_METRICS, TOPIC_SPANS
from ..base.health import AgentHealth
from ..base.settings import AgentSettings
from ..ranks.local_verdicts import to_ns
from ..ranks.watched_rank import WatchedRank
from ..reduction.collect_collectives import CollectedRows
from ..reduction.collect_steps import CollectedSteps
from .rank_metrics import RankMetrics
from .rank_spans import RankSpans

#: Topic and a serialized OTLP request of at most ``AgentSettings.request_bytes``.
Send = Callable[[str, bytes], None]


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
        """Makes spans and metrics of a flush's rows, before they become blocks. now_ns: monotonic."""

        def look() -> None:
            self._spans.see(collected, steps, groups, ranks, clock_offset_ns=clock_offset_ns, now_ns=now_ns)
            self._metrics.see(collected, steps, groups, ranks, time_ns=now_ns + clock_offset_ns)

        self._guarded(look)

    def forget(self, rank: WatchedRank, ranks: Sequence[WatchedRank], *, time_ns: int) -> None:
        """Ends the spans and metrics of a rank whose ring was closed. ranks: still watched; time_ns: Unix."""

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

    def _report(self, ranks: Sequence[WatchedRank], clock_offset_ns: int, now_ns: int, everything: bool) -> None:
        if everything or now_ns >= self._next_spans_ns or self._spans.is_full:
            self._next_spans_ns = now_ns + to_ns(self._settings.spans_period_s)
            for request in self._spans.take():
                self._send(TOPIC_SPANS, request)
        if everything or now_ns >= self._next_metrics_ns:
            self._next_metrics_ns = now_ns + to_ns(self._settings.metrics_period_s)
            time_ns = now_ns + clock_offset_ns
            size = self._settings.request_bytes
            for request in self._metrics.take(ranks, now_ns=now_ns, time_ns=time_ns, request_bytes=size):
                self._send(TOPIC_METRICS, request)
