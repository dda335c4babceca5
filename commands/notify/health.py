"""What the service says of itself: /healthz, /readyz and /metrics. A receiver that does not answer is not ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..support.health_server import Page, PageServer

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
class NotifyHealth:
    """turned_s: monotonic time of the last turn. trouble None: what is read answers."""

    turned_s: float
    caught_up: bool
    trouble: str | None
    unreadable: int
    passed_over: Mapping[str, int] = field(default_factory=dict)
    receivers: Mapping[str, ReceiverHealth] = field(default_factory=dict)


class NotifyServer(PageServer):
    def __init__(self, host: str, port: int, health: Callable[[], NotifyHealth]) -> None:
        """Raises OSError when the address cannot be had."""

        def page(ready: bool) -> tuple[bool, Mapping[str, object]]:
            now = health()
            idle_s = time.monotonic() - now.turned_s
            failing = {
                name: each.trouble
                for name, each in now.receivers.items()
                if each.trouble is not None and each.waiting and each.failing_s > FAILING_S
            }
            good = idle_s < HUNG_S
            if ready:
                good = good and now.caught_up and now.trouble is None and not failing
            return good, {
                "ok": good,
                "caught_up": now.caught_up,
                "source": now.trouble or "ok",
                "failing": failing,
                "waiting": {name: each.waiting for name, each in now.receivers.items()},
                "withheld": {name: each.counts.get("withheld", 0) for name, each in now.receivers.items()},
                "passed_over": dict(now.passed_over),
                "unreadable": now.unreadable,
                "idle_s": round(idle_s, 3),
            }

        pages: dict[str, Page] = {"/healthz": lambda: page(False), "/readyz": lambda: page(True)}
        super().__init__(host, port, pages, NotifyFigures(health))


class NotifyFigures(Collector):
    def __init__(self, health: Callable[[], NotifyHealth]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        now = self._health()
        gauges = {
            "caught_up": ("1 when every incident that is there was read", now.caught_up),
            "source_reachable": ("0 while what is read does not answer", now.trouble is None),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"whichrank_notify_{name}", text, value=float(value))
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
        yield CounterMetricFamily(
            "whichrank_notify_unreadable", "messages or lines that are no incident", value=now.unreadable
        )
