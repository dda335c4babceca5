"""Answers requests to ask NCCL's RAS: seldom, once at a time for a user, in a thread that may wait for an answer."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...telemetry.records import Event
from ..base.health import AgentHealth
from ..base.owner_workers import STACKS
from ..ranks.watched_rank import WatchedRank, requested_rank
from .ras_client import ras_attributes

ACTION = "nccl_ras"
#: Whoever asks more often is not answered: RAS bothers every process of the job.
LEAST_PAUSE_NS = 30_000_000_000
_REMEMBERED_IDS = 256


class RasDesk:
    """Polling thread, but for what it gives to a worker. Idempotent by id."""

    def __init__(self, health: AgentHealth, *, is_on: bool) -> None:
        self._health = health
        self._is_on = is_on
        self._ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._requests: list[Event] = []
        self._answers: queue.SimpleQueue[tuple[WatchedRank, dict[str, Any]]] = queue.SimpleQueue()
        self._asked_ns = -LEAST_PAUSE_NS

    def request(self, event: Event, now_ns: int) -> None:
        """Queues a request; what is unreadable, too soon after another, or not allowed is counted.

        now_ns: monotonic.
        """
        request_id = event.attributes.get("id")
        if not isinstance(request_id, str):
            self._health.drop("requests_unreadable")
        elif request_id in self._ids:
            return
        elif not self._is_on or now_ns - self._asked_ns < LEAST_PAUSE_NS:
            self._health.drop("requests_refused")
        else:
            self._asked_ns = now_ns
            self._ids.append(request_id)
            self._requests.append(event)

    def serve(self, ranks: Sequence[WatchedRank]) -> None:
        """Lets a worker ask beside the rank of each request."""
        while self._requests:
            event = self._requests.pop()
            rank = requested_rank(ranks, event)
            if rank is None or not rank.pid or not rank.alive:
                self._health.drop("requests_for_nobody")
                continue
            STACKS.submit(rank.ring.uid, partial(self._ask, rank, rank.pid, rank.ring.uid, str(event.attributes["id"])))

    def answers(self) -> list[tuple[WatchedRank, dict[str, Any]]]:
        """Takes away what was answered: each rank beside which it was asked, with attributes of an NCCL_RAS."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        return found

    def _ask(self, rank: WatchedRank, pid: int, uid: int, request_id: str) -> None:
        self._answers.put((rank, {**ras_attributes(pid, uid), "request_id": request_id}))
