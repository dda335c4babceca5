"""What has been told of one rank, so that nothing is told twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ToldOfRank:
    """Times are monotonic ns of this node; 0 = not yet. Owned by the polling thread."""

    exception_version: int = 0  # of the exception record that was told
    exception_final: bool = False  # the main thread's was told: nothing replaces it
    had_exception: bool = False
    exit_sent: bool = False
    calls: bool = False  # the lines of its newest operations, when it failed
    slow_open_ns: int = 0  # enqueue time of the slow operation that was already announced
    stack_at_head: int = -1
    level: tuple[int, int] | None = None
