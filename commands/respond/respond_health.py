"""What the service says of itself: /healthz, /readyz and /metrics. An open breaker is not ready, on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..incident_service.service_pages import FeedHealth, feed_gauges, unreadable_counter

#: A turn that takes longer means that the service hangs: hooks try for a minute and a half at most.
HUNG_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondHealth(FeedHealth):
    """breaker: why it is open, None: it is closed. outcomes: by outcome, hook and operation. refusals: by reason."""

    mode: str
    breaker: str | None
    nodes_out: int
    waiting: int
    events_dropped: int
    outcomes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)

    def holds_up(self) -> bool:
        """Whether the breaker is open."""
        return self.breaker is not None

    def page(self, good: bool, idle_s: float) -> str:
        """The JSON text of the health page. good: whether all is well; idle_s: seconds since the last turn."""
        told = {
            "ok": good,
            "mode": self.mode,
            "breaker": self.breaker or "closed",
            "caught_up": self.caught_up,
            "source": self.trouble or "ok",
            "nodes_out": self.nodes_out,
            "waiting": self.waiting,
            "idle_s": round(idle_s, 3),
        }
        return json.dumps(told)


class RespondFigures(Collector):
    def __init__(self, health: Callable[[], RespondHealth]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """The service's metrics, as the last turn left them."""
        now = self._health()
        gauges = {
            "breaker_open": ("1 while nothing is done until a person resets the breaker", now.breaker is not None),
            "dry_run": ("1 where it is only said what would be done", now.mode == "dry"),
            "nodes_out": ("nodes taken out and not given back", now.nodes_out),
            "waiting": ("incidents whose advice must stand a while longer", now.waiting),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"whichrank_respond_{name}", text, value=float(value))
        yield from feed_gauges("whichrank_respond", now)
        acts = CounterMetricFamily(
            "whichrank_respond_acts",
            "acts and refusals by what became of them",
            labels=["outcome", "hook", "operation"],
        )
        for labels, count in dict(now.outcomes).items():
            acts.add_metric(labels, count)
        yield acts
        refusals = CounterMetricFamily("whichrank_respond_refusals", "what was not done, by reason", labels=["why"])
        for why, count in dict(now.refusals).items():
            refusals.add_metric([why], count)
        yield refusals
        yield CounterMetricFamily(
            "whichrank_respond_events_dropped", "events that Kafka did not take", value=now.events_dropped
        )
        yield unreadable_counter("whichrank_respond", now)
