"""Events of ranks and nodes that the agents of an attempt have yet to send, before or behind the blocks of a flush."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..telemetry.records import Block, Event, Identity
from ..telemetry.vocabulary import EventName
from .clock import ns
from .node_agents import NodeClocks

#: From a rank's end or exception, or the agent's own, until it has flushed everything and says so.
TOLD_AFTER_S = 0.01
_Waiting = dict[int, list[tuple[float, Event]]]


class UnsentEvents:
    """Events that an attempt's agents have yet to send. identities, clocks: by node of the job."""

    def __init__(self, identities: Sequence[Identity], clocks: NodeClocks, node_of_rank: NDArray[np.int64]) -> None:
        self._identities, self._clocks, self._node_of_rank = identities, clocks, node_of_rank
        self._before: _Waiting = {}
        self._behind: _Waiting = {}
        self._witness_s = np.full(len(identities), np.inf)

    def before(self, name: EventName, rank: int, at_s: float, attributes: dict[str, Any]) -> None:
        """Adds an event of a rank, at ``at_s``, to be sent before the blocks of its node's flush."""
        self._of_rank(self._before, name, rank, at_s, attributes)

    def behind(self, name: EventName, rank: int, at_s: float, attributes: dict[str, Any]) -> None:
        """Adds an event of a rank, at ``at_s``, to be sent behind the blocks of its node's flush; it makes a flush
        urgent.
        """
        self._of_rank(self._behind, name, rank, at_s, attributes)

    def of_node(self, name: EventName, node: int, at_s: float, attributes: dict[str, Any]) -> None:
        """Adds an event of the node itself, to be sent behind its blocks. node: its place in the job."""
        event = self._made(name, self._identities[node], node, at_s, attributes)
        self._behind.setdefault(node, []).append((at_s, event))

    def forget_from(self, at_s: float) -> None:
        """Drops events to be sent behind blocks that would happen at ``at_s`` or later."""
        kept = {node: [each for each in told if each[0] < at_s] for node, told in self._behind.items()}
        self._behind = {node: told for node, told in kept.items() if told}

    def witness(self, node: int, at_s: float) -> None:
        """Lets the node's agent flush at ``at_s``, and tell then how all of its ranks stand."""
        self._witness_s[node] = at_s

    def flushes(
        self, regular_s: NDArray[np.float64], from_s: float, until_s: float
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
        """For each flush of this window: by node, when it is (inf: not), and whether progress goes with it at once.

        regular_s: by node, of the flush that comes in any case.
        """
        urgent = np.maximum(self.first_s(regular_s.size) + TOLD_AFTER_S, from_s)
        urgent[urgent >= until_s] = np.inf
        witness = np.where(self._witness_s < until_s, np.maximum(self._witness_s, from_s), np.inf)
        self._witness_s[np.isfinite(witness)] = np.inf
        for moments in np.sort([regular_s, urgent, witness], axis=0):
            yield moments, (moments == urgent) | (moments == witness)

    def first_s(self, nodes: int) -> NDArray[np.float64]:
        """By node, when the first event to be sent behind its blocks happened; inf: there is none. nodes: how many."""
        first = np.full(nodes, np.inf)
        for node, told in self._behind.items():
            first[node] = min(at_s for at_s, _ in told)
        return first

    def take(self, node: int, until_s: float, blocks: Sequence[Block]) -> list[Block | Event]:
        """The payloads of a flush of this node: events due before, the blocks, events due behind. They
        are given once.
        """
        return [*_due(self._before, node, until_s), *blocks, *_due(self._behind, node, until_s)]

    def _of_rank(self, waiting: _Waiting, name: EventName, rank: int, at_s: float, attributes: dict[str, Any]) -> None:
        node = int(self._node_of_rank[rank])
        event = self._made(name, replace(self._identities[node], rank=rank), node, at_s, attributes)
        waiting.setdefault(node, []).append((at_s, event))

    def _made(self, name: EventName, identity: Identity, node: int, at_s: float, attributes: dict[str, Any]) -> Event:
        at_ns = ns(at_s)
        return Event(
            name=name,
            identity=identity,
            time_ns=at_ns + int(self._clocks.wall_ns[node]),
            mono_ns=at_ns + int(self._clocks.mono_ns[node]),
            attributes=attributes,
        )


def _due(waiting: _Waiting, node: int, until_s: float) -> list[Event]:
    """Takes what is to be told by then."""
    told = [event for at_s, event in waiting.get(node, ()) if at_s <= until_s]
    if told:
        waiting[node] = [(at_s, event) for at_s, event in waiting[node] if at_s > until_s]
        if not waiting[node]:
            del waiting[node]
    return told
