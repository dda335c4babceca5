"""When to commit: soon where a commit is cheap, seldom where it is dear. What is lost in a crash is read again.

The state of a job of 16,384 ranks is 50 MB, nearly all of which every second changes. Outputs do not wait for this:
what is concluded is committed at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Without output, changes are committed at most this often: losing them costs only a replay of this much input.
LEAST_S = 0.2
#: And at least this often.
MOST_S = 10.0
#: Of the time that passes, so much goes into commits.
SHARE = 0.02


class CommitPace:
    """Decides when to commit next, between ``least_s`` and ``most_s`` after the last one, by what commits take.

    clock_s: measures the time between commits; cost_s: the time that a commit takes.
    """

    def __init__(
        self,
        least_s: float = LEAST_S,
        most_s: float = MOST_S,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        cost_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._clock_s, self._cost_s = clock_s, cost_s
        self._interval_s = least_s
        self._committed_s = clock_s()

    def is_due(self) -> bool:
        """Whether enough time has passed since the last commit that another keeps to its share of the time."""
        return self._clock_s() - self._committed_s >= self._interval_s

    def commit(self, commit: Callable[[], object]) -> None:
        """Calls ``commit``, and sets by how long it took when the next one is due."""
        began_s = self._cost_s()
        commit()
        took_s = self._cost_s() - began_s
        self._interval_s = min(self._most_s, max(self._least_s, took_s / SHARE))
        self._committed_s = self._clock_s()
