"""Spans of this node's ranks for people: steps, phases and collectives as they were drained.

Polling thread. Whole steps are told, the same ones on every rank: every k-th by the size of the world, and every
second, fourth, … of those where the ranks make more spans than people's storage is meant to take. Nodes may settle on
different powers of two; a coarser choice is part of every finer one, so what the coarsest tells is whole. What is over
the rate all the same is dropped and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...telemetry import attributes as names
from ...telemetry.otlp_wire import RequestBuilder
from ...telemetry.records import Group
from ...telemetry.spans import TraceScope, collective_spans, phase_spans, rank_resource, step_spans
from ...telemetry.trace_identity import attempt_word
from ...telemetry.whole_steps import whole_steps_every
from ..base.health import AgentHealth
from ..ranks.watched_rank import WatchedRank
from ..reduction.collect_collectives import CollectedRows
from ..reduction.collect_steps import CollectedSteps
from ..rings.ring_directory import identity_int

_SECOND_NS = 1_000_000_000
#: The rate is looked at this often, and sooner where it is far too high, but never over less than the second.
_LOOK_S = 2.0
_SHORT_LOOK_S = 0.5
#: Spans saved up: a burst of so many seconds' worth passes at once.
_BURST_S = 10.0
#: The choice may become finer again only where it would then hold with this much room.
_ROOM = 0.8
_MAX_EXPONENT = 20


class SpanRate:
    """How many spans may go out, and of which steps. limit_s: spans per rank and second."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._offered = 0.0
        self._since_ns = 0
        self._saved: float | None = None
        self._saved_ns = 0
        #: Of the steps that the size of the world leaves, every ``1 << exponent``-th is told.
        self.exponent = 0

    def offer(self, spans: int, ranks: int, now_ns: int, covered_s: float = 0.0) -> None:
        """Hears how many spans came up since the last call, before any was left out, and chooses the steps that go out.

        covered_s: what they tell of, from first begin to last end; in the first call, what had gathered. now_ns:
        monotonic.
        """
        offered = spans / max(ranks, 1)
        if not self._since_ns:
            self._since_ns = now_ns
            if spans:
                self._choose(offered, covered_s)
            return
        self._offered += offered
        passed_s = (now_ns - self._since_ns) / _SECOND_NS
        if passed_s < _LOOK_S and self._offered < self._limit_s * _LOOK_S:
            return
        self._choose(self._offered, passed_s)
        self._offered, self._since_ns = 0.0, now_ns

    def _choose(self, offered: float, passed_s: float) -> None:
        per_limit = offered / (self._limit_s * max(passed_s, _SHORT_LOOK_S))
        wanted = max(0, math.ceil(math.log2(per_limit))) if per_limit > 0 else 0
        if wanted > self.exponent or per_limit < _ROOM * (1 << max(self.exponent - 1, 0)):
            self.exponent = min(max(wanted, self.exponent - 1), _MAX_EXPONENT)

    def admit(self, spans: int, ranks: int, now_ns: int) -> int:
        """How many of these spans may go out now; they are counted as sent. now_ns: monotonic."""
        per_s = 2 * self._limit_s * max(ranks, 1)  # twice: the choice of steps is what keeps the average
        most = per_s * _BURST_S
        saved = most if self._saved is None else self._saved + per_s * (now_ns - self._saved_ns) / _SECOND_NS
        admitted = min(spans, int(min(saved, most)))
        self._saved, self._saved_ns = min(saved, most) - admitted, now_ns
        return admitted


class RankSpans:
    """``see`` every flush, ``take`` what has gathered."""

    def __init__(self, health: AgentHealth, job_name: str, limit_s: float, request_bytes: int) -> None:
        self._health = health
        self._job_name = job_name
        self._rate = SpanRate(limit_s)
        self._builder = RequestBuilder(names.SCOPE_NAME, request_bytes)
        self._request_bytes = request_bytes
        self._resources: dict[int, bytes] = {}  # by slot
        #: Spans that were handed on.
        self.told = 0

    @property
    def is_full(self) -> bool:
        """Whether enough has gathered for a request of full size."""
        return self._builder.size_bytes >= self._request_bytes

    def forget(self, rank: WatchedRank) -> None:
        """Forgets a rank's resource: its slot may go to another rank."""
        self._resources.pop(rank.slot, None)

    def take(self) -> list[bytes]:
        """Takes away the encoded requests with the spans that have gathered."""
        return self._builder.take()

    def see(
        self,
        collected: CollectedRows,
        steps: CollectedSteps,
        groups: Sequence[Group],
        ranks: Sequence[WatchedRank],
        *,
        clock_offset_ns: int,
        now_ns: int,
    ) -> None:
        """Makes spans of the rows of one flush, of those steps that the rate allows; group columns index ``groups``.

        clock_offset_ns: from monotonic to Unix time; now_ns: monotonic.
        """
        if not ranks:
            return
        by_slot = {rank.slot: rank for rank in ranks}
        every = np.ones(max(by_slot) + 1, np.int64)
        for slot, rank in by_slot.items():
            every[slot] = whole_steps_every(rank.ring.header.world_size)
        tables = [
            (steps.steps, steps.steps_ring, None),
            (steps.phases, steps.phases_ring, None),
            (collected.rows, collected.ring, collected.rows["done_ns"] != 0),
        ]
        offered = sum(int(_of_steps(*table, every).sum()) for table in tables)
        self._rate.offer(offered, len(ranks), now_ns, _covered_s(steps.steps))
        every <<= self._rate.exponent
        chosen = [_of_steps(*table, every) for table in tables]
        wanted = sum(int(which.sum()) for which in chosen)
        room = self._rate.admit(wanted, len(ranks), now_ns)
        self._health.drop("spans_over_rate", wanted - room)
        self.told += room
        if not room:
            return
        words = attempt_words(ranks)
        for launch, word in words.items():
            slots = [rank.slot for rank in ranks if rank.identity.attempt == launch]
            scope = TraceScope(job=ranks[0].identity.job, attempt=word, clock_offset_ns=clock_offset_ns)
            for kind, ((rows, ring, _), which) in enumerate(zip(tables, chosen, strict=True)):
                own = which if len(words) == 1 else which & np.isin(ring, slots)
                told, told_ring = rows.compress(own)[:room], ring[own][:room]
                room -= len(told)
                self._encode(kind, told, told_ring, groups, scope, by_slot)

    def _encode(
        self,
        kind: int,
        rows: NDArray[np.void],
        ring: NDArray[np.uint16],
        groups: Sequence[Group],
        scope: TraceScope,
        by_slot: Mapping[int, WatchedRank],
    ) -> None:
        if not len(rows):
            return
        if kind == 0:
            spans = step_spans(rows, scope)
        elif kind == 1:
            spans = phase_spans(rows, scope)
        else:
            spans = collective_spans(rows, groups, scope)
        entries: dict[int, list[bytes]] = {}
        for slot, span in zip(ring.tolist(), spans, strict=True):
            entries.setdefault(slot, []).append(span)
        for slot, of_rank in entries.items():
            self._builder.add(self._resource(by_slot[slot]), of_rank)

    def _resource(self, rank: WatchedRank) -> bytes:
        found = self._resources.get(rank.slot)
        if found is None:
            header = rank.ring.header
            found = self._resources[rank.slot] = rank_resource(
                rank.identity,
                job_name=self._job_name,
                pid=rank.pid,
                local_rank=header.local_rank,
                world_size=header.world_size,
            )
        return found


def _covered_s(steps: NDArray[np.void]) -> float:
    return float(steps["end_ns"].max() - steps["begin_ns"].min()) / _SECOND_NS if len(steps) else 0.0


def _of_steps(
    rows: NDArray[np.void], ring: NDArray[np.uint16], ended: NDArray[np.bool_] | None, every: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which rows are of steps that are told of their rank, and have ended."""
    step = rows["step"]
    chosen: NDArray[np.bool_] = (step >= 0) & (step % every[ring] == 0)
    return chosen if ended is None else chosen & ended


def attempt_words(ranks: Sequence[WatchedRank]) -> dict[str, str]:
    """By launch of these ranks: the word by which its attempt is known in traces (``trace_identity.attempt_word``)."""
    tokens: dict[str, str] = {}
    restarts: dict[str, int] = {}
    for rank in ranks:
        launch = rank.identity.attempt
        tokens[launch] = tokens.get(launch) or rank.token
        restarts[launch] = max(0, identity_int(rank.ring.header.identity, "restart_count"))
    return {
        launch: attempt_word(launch=launch, token=token, restart_count=restarts[launch])
        for launch, token in tokens.items()
    }
