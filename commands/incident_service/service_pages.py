"""What a service that reads incidents says of itself: /healthz, /readyz and /metrics, over what its last turn left."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..support.health_server import Page, PageServer


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedHealth(ABC):
    """turned_s: monotonic time of the last turn. trouble None: what is read answers. unreadable: messages or lines."""

    turned_s: float
    caught_up: bool
    trouble: str | None
    unreadable: int

    def holds_up(self) -> bool:
        """Whether the service cannot do its work, although it reads."""
        return False

    @abstractmethod
    def page(self, good: bool, idle_s: float) -> str:
        """The JSON text of the health page. good: whether all is well; idle_s: seconds since the last turn."""


Health = TypeVar("Health", bound=FeedHealth)


class ServicePages(PageServer, Generic[Health]):
    """Good while the loop turns; ready where all is read, what is read answers, and nothing holds it up."""

    def __init__(
        self, host: str, port: int, health: Callable[[], Health], collector: Collector, *, hung_s: float
    ) -> None:
        """hung_s: a turn that takes longer means that the service hangs. Raises OSError: the address cannot be had."""

        def page(ready: bool) -> tuple[bool, str]:
            now = health()
            idle_s = time.monotonic() - now.turned_s
            good = idle_s < hung_s
            if ready:
                good = good and now.caught_up and now.trouble is None and not now.holds_up()
            return good, now.page(good, idle_s)

        pages: dict[str, Page] = {"/healthz": lambda: page(False), "/readyz": lambda: page(True)}
        super().__init__(host, port, pages, collector)


def feed_gauges(prefix: str, health: FeedHealth) -> Iterator[Metric]:
    """Metrics on whether all was read, and what is read answers. prefix: of their names, as ``whichrank_notify``."""
    yield GaugeMetricFamily(
        f"{prefix}_caught_up", "1 when every incident that is there was read", value=float(health.caught_up)
    )
    yield GaugeMetricFamily(
        f"{prefix}_source_reachable", "0 while what is read does not answer", value=float(health.trouble is None)
    )


def unreadable_counter(prefix: str, health: FeedHealth) -> Metric:
    """The metric of messages or lines that are no incident. prefix: of its name, as ``whichrank_notify``."""
    return CounterMetricFamily(
        f"{prefix}_unreadable", "messages or lines that are no incident", value=health.unreadable
    )
