"""A check of pairs among the ranks of a job: one of them leads, all carry out its orders, over the job's own store.

The leader plans and judges (``diagnosis.pair_checks``), writes an order per node and round, and reads a result per
rank. A rank that gives no result in time has not answered in any of its exchanges. Ranks of one place on their nodes
are one rail: they exchange with each other only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from ....diagnosis.pair_checks.judging import Named, without
from ....diagnosis.pair_checks.measured import Exchange, Measured, Phase, Quantity
from ....diagnosis.pair_checks.planner import PairPlanner, Round
from .exchange import Effort, Timed

#: A sweep's exchanges that a rank tells of: the worst, and those that stand out among its own.
_TOLD_OF_SWEEP = 48
_ODD, _ODD_LATENCY, _ODD_STALL_S = 1.2, 1.5, 0.03
_END = "end"


class Store(Protocol):
    """What c10d's stores can."""

    def set(self, key: str, value: str) -> Any:
        """Sets a key."""

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""

    def wait(self, keys: list[str], timeout: timedelta) -> Any:
        """Until all keys are there. Raises RuntimeError where they are not in time."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def delete_key(self, key: str) -> bool:
        """Forgets a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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
class Outcome:
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
#: Ranks, all of which call it at once with the same -> seconds of an all-reduce over them; 0: it is not one of them.
Ring = Callable[[Sequence[int]], float]


class Follower:
    """Carries orders out, one after the other."""

    def __init__(self, store: Store, place: Place, effort: Effort, measure: Measure, ring: Ring | None) -> None:
        self._store, self._place, self._effort, self._measure, self._ring = store, place, effort, measure, ring
        self._number = 0

    def run(self) -> None:
        """Until the leader ends it. Raises RuntimeError where no order comes within the store's own limit."""
        while self.next():
            pass

    def next(self) -> bool:
        """One order; False: it was the last one."""
        order = json.loads(self._store.get(_order(self._number, self._place.node)))
        number, self._number = self._number, self._number + 1
        if order == _END:
            return False
        if "ring" in order:
            seconds = self._ring(order["ring"]) if self._ring is not None else 0.0
            self._store.set(_result(number, self._place.rank), json.dumps(seconds))
            return True
        rows = self._carry_out(order)
        self._store.set(_result(number, self._place.rank), json.dumps(rows))
        return True

    def _carry_out(self, order: dict[str, Any]) -> list[list[float]]:
        """Rows of those exchanges in which this rank is the lower one: step, seconds, latency, stall, failed."""
        is_sweep = order["phase"] == Phase.SWEEP
        effort = self._effort.quick() if is_sweep else self._effort
        rows: list[list[float]] = []
        for number, partner in enumerate(order["steps"]):
            if partner < 0:
                continue
            rank, leads = partner * self._place.rails + self._place.rail, self._place.node < partner
            timed = self._measure(rank, order["tag"] + number, effort, leads)
            if leads:
                rows.append([number, timed.seconds, timed.latency_s, timed.stall_s, float(timed.failed)])
        return _standing_out(rows) if is_sweep else rows


class Leader:
    """Orders, results and verdict. It is one of the ranks, too: its own orders are carried out by ``follower``."""

    def __init__(
        self, store: Store, place: Place, effort: Effort, follower: Follower, *, until_s: float, first_tag: int = 1
    ) -> None:
        """until_s: monotonic; nothing is asked any more after it. first_tag: none from it on was ever used."""
        self._store, self._place, self._effort, self._follower = store, place, effort, follower
        self._until_s = until_s
        self._usual_s = 0.0
        self._number = 0
        self.tag = first_tag

    def run(self, planner: PairPlanner, *, with_ring: bool) -> Outcome:
        """Measures what the planner asks for, and tells all others that it is over, whatever happens."""
        began_s = time.monotonic()
        ring_s = ring_without_s = 0.0
        try:
            while (asked := planner.next()) is not None and time.monotonic() < self._until_s:
                if asked.phase is Phase.SWEEP:
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
            self._tell_all(json.dumps(_END))
            self._follower.next()
        return Outcome(
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
        for step, pairs in enumerate(asked.pairings):
            for a, b in pairs.tolist():
                steps[a][step], steps[b][step] = b, a
        if asked.controls is not None:
            for a, b in asked.controls.tolist():
                steps[a][0], steps[b][0] = b, a
                controls.add((min(a, b), max(a, b)))
        tag, self.tag = self.tag, self.tag + max(len(asked.pairings), 1)
        number = self._number
        for node in range(place.nodes):
            order = {"phase": int(asked.phase), "steps": steps[node], "tag": tag}
            self._store.set(_order(number, node), json.dumps(order))
        results = self._results(number, steps)
        found: list[Exchange] = []
        scale = self._scale(results.values()) if asked.phase is Phase.SWEEP else 1.0
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
                            phase=Phase.CONTROL if is_control else asked.phase,
                            a=node,
                            b=other,
                            rail=rail,
                            seconds=seconds * scale,
                            latency_s=latency_s,
                            stall_s=stall_s,
                            failed=bool(failed),
                        )
                    )
        return Measured.of(found)

    def _scale(self, results: Iterable[Sequence[Sequence[float]]]) -> float:
        """A sweep exchanges less: what is usual in it is made what was usual before."""
        usual = self._usual_s
        medians = [row[1] for rows in results for row in rows if row[0] < 0 and row[1] > 0]
        return usual / float(np.median(medians)) if medians and usual else 1.0

    def _results(self, number: int, steps: Sequence[Sequence[int]]) -> dict[int, list[list[float]]]:
        """By rank; of those that gave any in time. Each step may take its exchanges' limits at most."""
        self._number += 1
        self._follower.next()
        ranks = [rank for rank in range(self._place.world) if max(steps[rank // self._place.rails]) >= 0]
        length = max((len(each) for each in steps), default=1)
        patience_s = self._effort.limit_s * (4 + 2 * length)
        found: dict[int, list[list[float]]] = {}
        for rank, told in self._told(number, ranks, patience_s).items():
            found[rank] = told
        return found

    def _told(self, number: int, ranks: Sequence[int], patience_s: float) -> dict[int, Any]:
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
        self._tell_all(json.dumps({"ring": ranks}))
        self._number += 1
        self._follower.next()
        told = self._told(number, range(self._place.world), 10 * self._effort.limit_s)
        return max((seconds for rank, seconds in told.items() if rank in set(ranks)), default=0.0)

    def _tell_all(self, order: str) -> None:
        for node in range(self._place.nodes):
            self._store.set(_order(self._number, node), order)


def _order(number: int, node: int) -> str:
    return f"order/{number}/{node}"


def _result(number: int, rank: int) -> str:
    return f"result/{number}/{rank}"


def _lost(steps: Sequence[Sequence[int]], node: int) -> list[list[float]]:
    """Nothing was heard of a rank that was to tell of these."""
    return [[step, 0.0, 0.0, 0.0, 1.0] for step, other in enumerate(steps[node]) if other > node]


def _standing_out(rows: list[list[float]]) -> list[list[float]]:
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


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain data, for JSON."""
    return asdict(outcome)
