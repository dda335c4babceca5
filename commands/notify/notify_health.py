"""What the service says of itself: /healthz, /readyz and /metrics. A receiver that does not answer is not ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..incident_service.service_pages import FeedHealth, feed_gauges, unreadable_counter

#: A turn that takes longer means that the service hangs.
HUNG_S = 60.0
#: Receivers may fail for so long before the service counts as not ready.
FAILING_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverHealth:
    """counts: by what became of it. trouble None: its last try was answered; else failing_s tells for how long not."""

    counts: Mapping[str, int]
    waiting: int
    trouble: str | None
    failing_s: float
    last_delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyHealth(FeedHealth):
    """passed_over: incidents told to nobody, by reason. receivers: by name."""

    passed_over: Mapping[str, int] = field(default_factory=dict)
    receivers: Mapping[str, ReceiverHealth] = field(default_factory=dict)

    def failing(self) -> dict[str, str]:
        """Receivers at which something has waited for too long, and why."""
        return {
            name: each.trouble
            for name, each in self.receivers.items()
            if each.trouble is not None and each.waiting and each.failing_s > FAILING_S
        }

    def holds_up(self) -> bool:
        """Whether a receiver does not answer for too long."""
        return bool(self.failing())

    def page(self, good: bool, idle_s: float) -> str:
        """The JSON text of the health page. good: whether all is well; idle_s: seconds since the last turn."""
        told = {
            "ok": good,
            "caught_up": self.caught_up,
            "source": self.trouble or "ok",
            "failing": self.failing(),
            "waiting": {name: each.waiting for name, each in self.receivers.items()},
            "withheld": {name: each.counts.get("withheld", 0) for name, each in self.receivers.items()},
            "passed_over": dict(self.passed_over),
            "unreadable": self.unreadable,
            "idle_s": round(idle_s, 3),
        }
        return json.dumps(told)


class NotifyFigures(Collector):
    def __init__(self, health: Callable[[], NotifyHealth]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """The service's metrics, as the last turn left them."""
        now = self._health()
        yield from feed_gauges("whichrank_notify", now)
        notices = CounterMetricFamily(
            "whichrank_notify_notices", "what became of what was to be told", labels=["receiver", "outcome"]
        )
        waiting = GaugeMetricFamily("whichrank_notify_waiting", "notices that wait to be told", labels=["receiver"])
        failing = GaugeMetricFamily(
            "whichrank_notify_failing_seconds", "for how long tries have failed", labels=["receiver"]
        )
        delay = GaugeMetricFamily(
            "whichrank_notify_delay_seconds", "from the revision to the receiver, the last time", labels=["receiver"]
        )
        for name, each in now.receivers.items():
            for outcome, count in each.counts.items():
                notices.add_metric([name, outcome], count)
            waiting.add_metric([name], each.waiting)
            failing.add_metric([name], each.failing_s if each.trouble is not None else 0.0)
            delay.add_metric([name], each.last_delay_s)
        yield from (notices, waiting, failing, delay)
        passed = CounterMetricFamily("whichrank_notify_passed_over", "incidents told to nobody", labels=["why"])
        for why, count in dict(now.passed_over).items():
            passed.add_metric([why], count)
        yield passed
        yield unreadable_counter("whichrank_notify", now)
