"""What is to be done at later times of a simulation, in the order of these times."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(order=True)
class _Due:
    at_s: float
    number: int
    act: Callable[[float], None] = field(compare=False)


class Dues:
    """What is to be done at later times of a simulation. Of things at one time the first put is done first."""

    def __init__(self) -> None:
        self._dues: list[_Due] = []
        self._count = 0

    def put(self, at_s: float, act: Callable[[float], None]) -> None:
        """Adds what is to be done at ``at_s`` (seconds of the simulation). act: is given that time."""
        self._count += 1
        heapq.heappush(self._dues, _Due(at_s, self._count, act))

    def act_until(self, until_s: float) -> None:
        """Does all that is due before ``until_s``, in order, and what is put meanwhile."""
        while self._dues and self._dues[0].at_s < until_s:
            due = heapq.heappop(self._dues)
            due.act(due.at_s)
