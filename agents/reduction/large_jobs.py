"""From which size on a job's agents tell less often: of so many nodes every message costs who reads them all.

What is news (a fast verdict, an event, an operation that gets slow) is told at once whatever the size.
"""

from __future__ import annotations

LARGE_RANKS = 1024
#: The agents' counters and the metrics of ranks are told so many times less often, and flushes come once a second.
SELDOM_HEALTH, SELDOM_METRICS = 5, 3


def is_large(world_size: int) -> bool:
    """Whether a job of so many ranks is told of less often."""
    return world_size >= LARGE_RANKS
