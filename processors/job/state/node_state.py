"""The nodes that tell of a job: which are here, when each was heard, and how its clock stands to ours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....telemetry.records import Event
from .rank_state import Hearing, NodeFacts
from .unsaved import Unsaved


class NodeState:
    """known: by name. expected: how many there should be. heard: only where silence is told from the records alone.

    heard_ns, listen_due_ns: when any node last told of progress, and when that is asked; listened_ns, looked_ns: when
    silence and lost nodes were last looked at.
    """

    def __init__(self, unsaved: Unsaved) -> None:
        self._unsaved = unsaved
        self.known: dict[str, NodeFacts] = {}
        self.expected = 0
        self.offsets: dict[str, int] = {}
        self.heard: dict[str, Hearing] = {}
        self.heard_ns = self.listen_due_ns = 0
        self.listened_ns = self.looked_ns = 0

    def begin_attempt(self) -> None:
        """Forgets clock offsets and when progress was heard: they belong to a set of processes."""
        self.offsets = {}
        self.heard_ns = self.listen_due_ns = 0

    def facts(self, node: str) -> NodeFacts:
        """What is known of the node, to be changed; an unknown node is added."""
        facts = self.known.get(node)
        if facts is None:
            facts = self.known[node] = NodeFacts()
        self._unsaved.facts = True
        return facts

    def hear_of(self, node: str, stamp_ns: int) -> None:
        """A node that was not heard before is heard from now on."""
        self.heard[node] = Hearing(since_ns=stamp_ns, last_ns=stamp_ns)
        self._unsaved.facts = True

    def stop_hearing(self, node: str) -> None:
        """Forgets when it was heard: nobody waits for a word of it. Raises KeyError where it was not heard."""
        del self.heard[node]
        self._unsaved.facts = True

    def heard_times(self) -> np.ndarray:
        """(since, last) of each heard node, in the order of ``heard``: for the row of state."""
        return np.array([(each.since_ns, each.last_ns) for each in self.heard.values()], np.int64).reshape(-1, 2)

    def put_back_heard(self, names: Sequence[str], times: np.ndarray) -> None:
        """What ``heard_times`` gave of these nodes. Raises ValueError where it is of others.

        times: (nodes, 2), since and last, in ns of the bus.
        """
        pairs = zip(names, times.tolist(), strict=True)
        self.heard = {name: Hearing(since_ns=since_ns, last_ns=last_ns) for name, (since_ns, last_ns) in pairs}

    def offset_of(self, node: str) -> int | None:
        """Ns to add to this node's monotonic clock for the clock of all times here; None: not known."""
        offset = self.offsets.get(node)
        if offset is None and node in self.known:
            offset = self.known[node].offset_ns or None
        return offset

    def time_of(self, event: Event) -> int:
        """Unix ns on the same clock as the rows of this node, so that what happened first comes first."""
        offset = self.offset_of(event.identity.node)
        return event.mono_ns + offset if event.mono_ns and offset is not None else event.time_ns

    def unheard(self) -> set[str]:
        """Names of nodes from which nothing comes, whether that was announced or not (``NodeFacts.is_lost``: it was
        not).
        """
        return {name for name, node in self.known.items() if node.state != "here"}

    def are_missing(self) -> bool:
        """Whether fewer nodes are here than expected: absent ranks may be on the others, and well."""
        return self.expected > sum(1 for node in self.known.values() if node.state == "here")
