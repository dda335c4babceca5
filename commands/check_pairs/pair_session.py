"""A check of pairs among the ranks of a job: one of them leads, all carry out its orders, over the job's own store.

The leader plans and judges (``diagnosis.pair_checks``), writes an order per node and round, and reads a result per
rank. A rank that gives no result in time has not answered in any of its exchanges. Ranks of one place on their nodes
are one rail: they exchange with each other only.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Protocol

import numpy as np

from ...diagnosis.pair_checks.judging import Named, without
from ...diagnosis.pair_checks.measured import Exchange, Measured, PairPhase, Quantity
from ...diagnosis.pair_checks.planner import PairPlanner, Round
from .exchange import Effort, Timed

#: A sweep's exchanges that a rank tells of: the worst, and those that stand out among its own.
_TOLD_OF_SWEEP = 48
_ODD, _ODD_LATENCY, _ODD_STALL_S = 1.2, 1.5, 0.03
_END, _RING, _RENEW = "end", "ring", "renew"
#: With so many others a node may fail before it is asked nothing any more.
_MOST_FAILURES = 3


class Store(Protocol):
    """What c10d's stores can."""

    def set(self, key: str, value: str) -> object:
        """Sets a key."""

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""

    def wait(self, keys: list[str], timeout: timedelta) -> object:
        """Until all keys are there. Raises RuntimeError where they are not in time."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def delete_key(self, key: str) -> bool:
        """Forgets a key."""


#: What one rank tells of an order: numbers, line by line.
Rows = list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """what: a phase's name, or one of the words above. steps: the node's partners one after the other, -1 none.

    tag: of the first step. ranks: whom it concerns.
    """

    what: str
    steps: Sequence[int] = ()
    tag: int = 0
    ranks: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRank:
    """Where a rank is. Ranks of a node follow each other, as torchrun and srun number them."""

    rank: int
    world: int
    rails: int

    @property
    def node(self) -> int:
        """Its node's number."""
        return self.rank // self.rails

    @property
    def rail(self) -> int:
        """Its place on its node."""
        return self.rank % self.rails

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self.world // self.rails


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOutcome:
    """usual: seconds by quantity. ring_s: of an all-reduce over all; without: those that are named (0: not done)."""

    named: Sequence[Named]
    usual: dict[str, float]
    rounds: int
    exchanges: int
    left_out: int
    took_s: float
    ring_s: float = 0.0
    ring_without_s: float = 0.0


#: (partner's rank, tag, effort, leads) -> what was timed.
Measure = Callable[[int, int, Effort, bool], Timed]
#: Ranks, all of which call it at once: they forget what an exchange that failed has broken.
Renew = Callable[[Sequence[int]], None]
#: Ranks, all of which call it at once with the same -> seconds of an all-reduce over them; 0: it is not one of them.
Ring = Callable[[Sequence[int]], float]


class PairFollower:
    """Carries orders out, one after the other."""

    def __init__(
        self,
        store: Store,
        place: PairRank,
        effort: Effort,
        measure: Measure,
        ring: Ring | None = None,
        renew: Renew | None = None,
    ) -> None:
        """ring None: no all-reduce. renew None: after an exchange that failed its ranks can do no other one."""
        self._store, self._place, self._effort, self._measure, self._ring = store, place, effort, measure, ring
        self.renew = renew
        self._number = 0

    def run(self) -> None:
        """Until the leader ends it. Raises RuntimeError where no order comes within the store's own limit."""
        while self.next():
            pass

    def next(self) -> bool:
        """One order; False: it was the last one."""
        order = _Order(**json.loads(self._store.get(_order(self._number, self._place.node))))
        number, self._number = self._number, self._number + 1
        rows: Rows = [[1.0]]
        if order.what == _END:
            return False
        if order.what == _RING:
            rows = [[self._ring(order.ranks) if self._ring is not None else 0.0]]
        elif order.what == _RENEW:
            if self._place.rank in order.ranks and self.renew is not None:
                with suppress(RuntimeError):  # whoever has not met the others answers nobody
                    self.renew(order.ranks)
        else:
            rows = self._carry_out(order)
        self._store.set(_result(number, self._place.rank), json.dumps(rows))
        return True

    def _carry_out(self, order: _Order) -> Rows:
        """Rows of those exchanges in which this rank is the lower one: step, seconds, latency, stall, failed."""
        is_sweep = order.what == PairPhase.SWEEP.name
        effort = self._effort.quick() if is_sweep else self._effort
        rows: Rows = []
        for number, partner in enumerate(order.steps):
            if partner < 0:
                continue
            rank, leads = partner * self._place.rails + self._place.rail, self._place.node < partner
            timed = self._measure(rank, order.tag + number, effort, leads)
            if leads:
                rows.append([number, timed.seconds, timed.latency_s, timed.stall_s, float(timed.failed)])
        return _standing_out(rows) if is_sweep else rows


class PairLeader:
    """Orders, results and verdict. It is one of the ranks, too: its own orders are carried out by ``follower``."""

    def __init__(
        self,
        store: Store,
        place: PairRank,
        effort: Effort,
        follower: PairFollower,
        *,
        until_s: float,
        first_tag: int = 1,
    ) -> None:
        """until_s: monotonic; nothing is asked any more after it. first_tag: none from it on was ever used."""
        self._store, self._place, self._effort, self._follower = store, place, effort, follower
        self._until_s = until_s
        self._usual_s = 0.0
        self._failures: Counter[int] = Counter()
        #: Nodes that are asked nothing any more: their exchanges fail.
        self._gone: set[int] = set()
        self._number = 0
        self.tag = first_tag

    def run(self, planner: PairPlanner, *, with_ring: bool) -> PairOutcome:
        """Measures what the planner asks for, and tells all others that it is over, whatever happens."""
        began_s = time.monotonic()
        ring_s = ring_without_s = 0.0
        try:
            while (asked := planner.next()) is not None and time.monotonic() < self._until_s:
                if asked.phase is PairPhase.SWEEP:
                    self._usual_s = planner.usual.get(Quantity.SECONDS.value, 0.0)
                planner.take(self._measured(asked))
            if asked is not None:
                planner.conclude()
            named = planner.named
            answered = all(each.worst is not Quantity.FAILED for each in named)
            if with_ring and answered and time.monotonic() < self._until_s:
                everybody = list(range(self._place.nodes))
                ring_s = self._ring(everybody)
                if named and len(rest := without(self._place.nodes, named)) > 1:
                    ring_without_s = self._ring(rest)
        finally:
            self._tell_all(_Order(what=_END))
            self._follower.next()
        return PairOutcome(
            named=named,
            usual=planner.usual,
            rounds=planner.rounds,
            exchanges=planner.exchanges,
            left_out=planner.left_out,
            took_s=time.monotonic() - began_s,
            ring_s=ring_s,
            ring_without_s=ring_without_s,
        )

    def _measured(self, asked: Round) -> Measured:
        place = self._place
        steps = [[-1] * max(len(asked.pairings), 1) for _ in range(place.nodes)]
        controls: set[tuple[int, int]] = set()
        lost: list[Exchange] = []
        for step, pairs in enumerate(asked.pairings):
            for a, b in pairs.tolist():
                if self._gone.isdisjoint((a, b)):
                    steps[a][step], steps[b][step] = b, a
                else:
                    lost.append(Exchange(phase=asked.phase, a=a, b=b, failed=True))
        if asked.controls is not None:
            for a, b in asked.controls.tolist():
                if not self._gone.isdisjoint((a, b)):
                    continue
                steps[a][0], steps[b][0] = b, a
                controls.add((min(a, b), max(a, b)))
        tag, self.tag = self.tag, self.tag + max(len(asked.pairings), 1)
        number = self._number
        for node in range(place.nodes):
            order = _Order(what=asked.phase.name, steps=steps[node], tag=tag)
            self._store.set(_order(number, node), json.dumps(asdict(order)))
        results = self._results(number, steps)
        found: list[Exchange] = []
        scale = self._scale(results.values()) if asked.phase is PairPhase.SWEEP else 1.0
        for node in range(place.nodes):
            for rail in range(place.rails):
                rows = results.get(node * place.rails + rail)
                for at_step, seconds, latency_s, stall_s, failed in rows if rows is not None else _lost(steps, node):
                    at = int(at_step)
                    if at < 0:
                        continue
                    other = steps[node][at]
                    is_control = at == 0 and (node, other) in controls
                    found.append(
                        Exchange(
                            phase=PairPhase.CONTROL if is_control else asked.phase,
                            a=node,
                            b=other,
                            rail=rail,
                            seconds=seconds * scale,
                            latency_s=latency_s,
                            stall_s=stall_s,
                            failed=bool(failed),
                        )
                    )
        unanswered = [each for each in found if each.failed]
        if unanswered and self._follower.renew is not None:
            self._renew(unanswered)
        found += [replace(each, rail=rail) for each in lost for rail in range(place.rails)]
        return Measured.of(found)

    def _renew(self, failed: Sequence[Exchange]) -> None:
        """Whoever failed with several others, or says nothing at all any more, is asked nothing; the others go on."""
        self._failures.update(node for pair in {(each.a, each.b) for each in failed} for node in pair)
        self._gone |= {node for node, count in self._failures.items() if count >= _MOST_FAILURES}
        rails = self._place.rails
        # First who is there: a group waits for all that are to be of it.
        alive = self._ask_all(_Order(what=_RENEW))
        self._gone |= {rank // rails for rank in range(self._place.world) if rank not in alive}
        left = sorted(set(range(self._place.nodes)) - self._gone)
        self._ask_all(_Order(what=_RENEW, ranks=[node * rails + rail for node in left for rail in range(rails)]))

    def _ask_all(self, order: _Order) -> dict[int, Rows]:
        """By rank: of those that answered in time."""
        number = self._number
        self._tell_all(order)
        self._number += 1
        self._follower.next()
        return self._told(number, range(self._place.world), self._effort.limit_s)

    def _scale(self, results: Iterable[Sequence[Sequence[float]]]) -> float:
        """A sweep exchanges less: what is usual in it is made what was usual before."""
        usual = self._usual_s
        medians = [row[1] for rows in results for row in rows if row[0] < 0 and row[1] > 0]
        return usual / float(np.median(medians)) if medians and usual else 1.0

    def _results(self, number: int, steps: Sequence[Sequence[int]]) -> dict[int, Rows]:
        """By rank; of those that gave any in time. Each step may take its exchanges' limits at most."""
        self._number += 1
        self._follower.next()
        ranks = [rank for rank in range(self._place.world) if max(steps[rank // self._place.rails]) >= 0]
        length = max((len(each) for each in steps), default=1)
        patience_s = self._effort.limit_s * (4 + 2 * length)
        return self._told(number, ranks, patience_s)

    def _told(self, number: int, ranks: Sequence[int], patience_s: float) -> dict[int, Rows]:
        keys = [_result(number, rank) for rank in ranks]
        if keys:
            patience_s = max(min(patience_s, self._until_s - time.monotonic()), 1.0)
            try:
                self._store.wait(keys, timedelta(seconds=patience_s))
                missing: set[str] = set()
            except RuntimeError:
                missing = {key for key in keys if not self._store.check([key])}
            told = {
                rank: json.loads(self._store.get(key))
                for rank, key in zip(ranks, keys, strict=True)
                if key not in missing
            }
            for key in keys:
                self._store.delete_key(key)
            return told
        return {}

    def _ring(self, nodes: Sequence[int]) -> float:
        """The slowest rank's seconds."""
        rails = self._place.rails
        ranks = [node * rails + rail for node in nodes for rail in range(rails)]
        number = self._number
        self._tell_all(_Order(what=_RING, ranks=ranks))
        self._number += 1
        self._follower.next()
        told = self._told(number, range(self._place.world), 10 * self._effort.limit_s)
        return max((rows[0][0] for rank, rows in told.items() if rank in set(ranks)), default=0.0)

    def _tell_all(self, order: _Order) -> None:
        for node in range(self._place.nodes):
            self._store.set(_order(self._number, node), json.dumps(asdict(order)))


def _order(number: int, node: int) -> str:
    return f"order/{number}/{node}"


def _result(number: int, rank: int) -> str:
    return f"result/{number}/{rank}"


def _lost(steps: Sequence[Sequence[int]], node: int) -> Rows:
    """Nothing was heard of a rank that was to tell of these."""
    return [[step, 0.0, 0.0, 0.0, 1.0] for step, other in enumerate(steps[node]) if other > node]


def _standing_out(rows: Rows) -> Rows:
    """Of a sweep's rows those that stand out among the rank's own; and last, as step -1, what is usual among them."""
    if not rows:
        return rows
    table = np.asarray(rows)
    well = table[table[:, 4] == 0]
    usual = np.median(well[:, 1:3], axis=0) if len(well) else np.zeros(2)
    odd = (table[:, 1] > _ODD * usual[0]) | (table[:, 2] > _ODD_LATENCY * usual[1])
    odd |= (table[:, 3] > _ODD_STALL_S) | (table[:, 4] > 0)
    worst = sorted(table[odd].tolist(), key=lambda row: (row[4], row[1] + row[3]), reverse=True)
    return [*worst[:_TOLD_OF_SWEEP], [-1.0, float(usual[0]), float(usual[1]), 0.0, 0.0]]
