"""What the service says of itself: /healthz, /readyz and /metrics. An open breaker is not ready, on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..support.health_server import Page, PageServer

#: A turn that takes longer means that the service hangs: hooks try for a minute and a half at most.
HUNG_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondHealth:
    """turned_s: monotonic time of the last turn. breaker None: closed. trouble None: what is read answers."""

    mode: str
    turned_s: float
    caught_up: bool
    trouble: str | None
    breaker: str | None
    nodes_out: int
    waiting: int
    events_dropped: int
    unreadable: int
    outcomes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)


class RespondServer(PageServer):
    def __init__(self, host: str, port: int, health: Callable[[], RespondHealth]) -> None:
        """Raises OSError when the address cannot be had."""

        def page(ready: bool) -> tuple[bool, Mapping[str, object]]:
            now = health()
            idle_s = time.monotonic() - now.turned_s
            good = idle_s < HUNG_S
            if ready:
                good = good and now.caught_up and now.trouble is None and now.breaker is None
            return good, {
                "ok": good,
                "mode": now.mode,
                "breaker": now.breaker or "closed",
                "caught_up": now.caught_up,
                "source": now.trouble or "ok",
                "nodes_out": now.nodes_out,
                "waiting": now.waiting,
                "idle_s": round(idle_s, 3),
            }

        pages: dict[str, Page] = {"/healthz": lambda: page(False), "/readyz": lambda: page(True)}
        super().__init__(host, port, pages, RespondFigures(health))


class RespondFigures(Collector):
    def __init__(self, health: Callable[[], RespondHealth]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        now = self._health()
        gauges = {
            "breaker_open": ("1 while nothing is done until a person resets the breaker", now.breaker is not None),
            "dry_run": ("1 where it is only said what would be done", now.mode == "dry"),
            "nodes_out": ("nodes taken out and not given back", now.nodes_out),
            "waiting": ("incidents whose advice must stand a while longer", now.waiting),
            "caught_up": ("1 when every incident that is there was read", now.caught_up),
            "source_reachable": ("0 while what is read does not answer", now.trouble is None),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"whichrank_respond_{name}", text, value=float(value))
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
        yield CounterMetricFamily(
            "whichrank_respond_unreadable", "messages or lines that are no incident", value=now.unreadable
        )
