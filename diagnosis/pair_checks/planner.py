"""What to measure next, from what was measured: looks at all, a sweep of all pairs, and suspects again. Pure.

Looks are rounds of a tournament drawn at random, about log2 of the nodes: each node meets so many others. They name
nodes, rails and ways out of groups. One link of two nodes among thousands shows only when those two meet, which takes
as many exchanges as there are nodes; the sweep does them without orders in between, so it is one round. In a
confirmation suspects meet nodes that nothing was seen of, and suspected pairs meet again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from .judging import Named, SlowPart, Suspicion, judge
from .measured import Measured, PairLimits, PairPhase, stand_out
from .pairings import Pairing, pairing_of, pairing_within, rounds_of

#: Up to so many nodes all pairs are few enough to be looked at, twice: what is lost now and then may not be at once.
ALL_PAIRS_UP_TO = 32
#: Rounds in which suspects are asked again; the last ones only where a link is neither well nor named.
CONFIRM_ROUNDS, MOST_CONFIRM_ROUNDS = 2, 4
#: In each of them so often, and so many.
REPEATS, MOST_SUSPECTS, MOST_LINKS = 3, 256, 65_536
#: Looks within groups, beside those over all.
_INNER_LOOKS = 3
_LEAST_LOOKS = 3
_LEAST_CONTROLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One order: its pairings are measured one after the other. controls: pairs that are measured to compare with."""

    number: int
    phase: PairPhase
    pairings: Sequence[Pairing]
    controls: Pairing | None = None

    @property
    def exchanges(self) -> int:
        """How often a node exchanges data in it, at most."""
        return len(self.pairings)


class PairPlanner:
    """``next`` gives the next round, None when all is known; ``take`` takes what it measured; then ``named`` is set."""

    def __init__(
        self,
        count: int,
        *,
        groups: Sequence[int] | None = None,
        sweep: bool = False,
        limits: PairLimits | None = None,
        seed: int = 0,
    ) -> None:
        """count: nodes. groups: which leaf or rack each is of. sweep: all pairs are wanted, however many there are."""
        self._count, self._limits = count, limits or PairLimits()
        self._random = np.random.default_rng(seed)
        self._groups = np.asarray(groups, dtype=np.int64) if groups is not None and len(set(groups)) > 1 else None
        self._shuffled = self._random.permutation(count).astype(np.int32)
        turns = rounds_of(count)
        self._turns = self._random.permutation(turns).tolist()
        all_pairs = count <= ALL_PAIRS_UP_TO
        looks = turns if all_pairs else min(turns, max(_LEAST_LOOKS, ceil(log2(count))))
        self._looks: list[Pairing] = []
        for turn in self._turns[:looks] * (2 if all_pairs else 1):
            self._looks.append(pairing_of(self._shuffled, turn))
        if self._groups is not None and not all_pairs:
            members = [np.flatnonzero(self._groups == each).astype(np.int32) for each in np.unique(self._groups)]
            for number in range(min(_INNER_LOOKS, max(rounds_of(len(group)) for group in members))):
                self._looks.append(pairing_within(members, number))
        self._swept = all_pairs or not sweep
        self._left = self._turns[looks:]
        self._number = 0
        self._confirmed = 0
        self._asked_nodes: tuple[int, ...] = ()
        self._asked_links: tuple[tuple[int, int], ...] = ()
        self._measured = Measured()
        self.rounds = self.exchanges = 0
        self.named: list[Named] = []
        #: Suspects beyond what is asked again.
        self.left_out = 0

    def next(self) -> Round | None:
        """The next round; None when nothing is left to be asked."""
        chosen = self._choose()
        if chosen is not None:
            self._number += 1
            self.rounds += 1
            self.exchanges += chosen.exchanges
        return chosen

    def conclude(self) -> None:
        """Says what there is to say now, where no time is left for the next round."""
        self.named, _ = judge(self._measured, self._count, self._groups, self._limits)

    def take(self, measured: Measured) -> None:
        """Takes a round's exchanges. Of a sweep those that stand out are enough."""
        self._measured = self._measured.and_more(measured)

    @property
    def usual(self) -> dict[str, float]:
        """What is usual by now, in seconds, by the quantity's name; of several rails the best."""
        found: dict[str, float] = {}
        for rail in np.unique(self._measured.rail):
            rows = self._measured.where(self._measured.rail == rail)
            seen = stand_out(rows, np.zeros(len(rows), dtype=np.int64), self._limits)
            for quantity, value in seen.usual.items():
                found[quantity.value] = min(value, found.get(quantity.value, value))
        return found

    def _choose(self) -> Round | None:
        if self._looks:
            return Round(number=self._number, phase=PairPhase.LOOK, pairings=(self._looks.pop(0),))
        self.named, suspicion = judge(self._measured, self._count, self._groups, self._limits)
        if not self._swept:
            self._swept = True
            # Whoever is slow with all would only hold the others up.
            known = {node for each in self.named if each.part is SlowPart.NODE for node in each.nodes}
            pairings = [pairing_of(self._shuffled, turn) for turn in self._left]
            guilty = np.fromiter(known, dtype=np.int64)
            left = [pairs[~np.isin(pairs, guilty).any(axis=1)] for pairs in pairings]
            return Round(number=self._number, phase=PairPhase.SWEEP, pairings=left)
        if not self._confirmed:
            self._asked_nodes = suspicion.nodes[:MOST_SUSPECTS]
            self.left_out = max(0, len(suspicion.nodes) - MOST_SUSPECTS) + max(0, len(suspicion.links) - MOST_LINKS)
        # Those that are well by now are not asked again.
        self._asked_links = suspicion.links[:MOST_LINKS]
        most = MOST_CONFIRM_ROUNDS if self._asked_links else CONFIRM_ROUNDS if self._asked_nodes else 0
        if self._confirmed >= most:
            return None
        self._confirmed += 1
        return self._confirm(suspicion)

    def _confirm(self, suspicion: Suspicion) -> Round:
        """Suspected pairs again, disjoint in each pairing; suspected nodes with others, new ones first; controls."""
        clear = self._random.permutation(suspicion.clear).tolist()
        if not clear:
            clear = [node for node in range(self._count) if node not in self._asked_nodes]
        met = self._partners()
        pairings: list[Pairing] = []
        for links in _disjoint(self._asked_links):
            pairings += [np.asarray(links, dtype=np.int32)] * REPEATS
        for number in range(REPEATS):
            pairs = self._partnered(clear[number:] + clear[:number], met)
            if pairs and number < len(pairings) and _are_apart(pairings[number], pairs):
                pairings[number] = np.concatenate((pairings[number], np.asarray(pairs, dtype=np.int32)))
            elif pairs:
                pairings.append(np.asarray(pairs, dtype=np.int32))
        busy = set(pairings[0].ravel().tolist()) if pairings else set()
        free = [node for node in clear if node not in busy]
        most = 2 * max(_LEAST_CONTROLS, len(pairings[0]) if pairings else 0)
        controls = list(zip(free[0:most:2], free[1:most:2], strict=False))
        return Round(
            number=self._number,
            phase=PairPhase.CONFIRM,
            pairings=pairings,
            controls=np.asarray(controls, dtype=np.int32).reshape(-1, 2),
        )

    def _partnered(self, clear: Sequence[int], met: dict[int, set[int]]) -> list[tuple[int, int]]:
        """Each suspected node with one that is clear and that it has not met, if there is any left."""
        busy: set[int] = set()
        pairs: list[tuple[int, int]] = []
        for node in self._asked_nodes:
            if node in busy:
                continue
            known = met.setdefault(node, set())
            free = [other for other in clear if other not in busy and other != node]
            partner = next((other for other in free if other not in known), next(iter(free), None))
            if partner is not None:
                pairs.append((node, partner))
                busy.update((node, partner))
                known.add(partner)
        return pairs

    def _partners(self) -> dict[int, set[int]]:
        asked = np.asarray(self._asked_nodes, dtype=np.int64)
        a, b = self._measured.a, self._measured.b
        chosen = np.isin(a, asked) | np.isin(b, asked)
        met: dict[int, set[int]] = {}
        for one, other in zip(a[chosen].tolist(), b[chosen].tolist(), strict=True):
            met.setdefault(one, set()).add(other)
            met.setdefault(other, set()).add(one)
        return met


def _disjoint(links: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The links in as few lists as they fit into, each node once in each of them."""
    lists: list[list[tuple[int, int]]] = []
    busy: list[set[int]] = []
    for link in links:
        at = next((at for at, used in enumerate(busy) if used.isdisjoint(link)), len(lists))
        if at == len(lists):
            lists.append([])
            busy.append(set())
        lists[at].append(link)
        busy[at].update(link)
    return lists


def _are_apart(pairing: Pairing, pairs: Sequence[tuple[int, int]]) -> bool:
    return set(pairing.ravel().tolist()).isdisjoint(node for pair in pairs for node in pair)


def group_numbers(names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Groups' names as numbers, in the order of their names."""
    return np.unique(np.asarray(names), return_inverse=True)[1].astype(np.int64)
