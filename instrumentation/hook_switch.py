"""The switch that all collective hooks share, and the sample of what they cost. The C recorder has the same type."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Protocol


class Switch(Protocol):
    """``enabled``: record, or only count. ``stopped``: for good, by a hook that raised; every hook returns at once.

    check: of the inputs of each operation (``input_checks``), None where nobody asked for it.
    """

    enabled: bool
    stopped: bool
    calls: int
    sampled: int
    sampled_ns: int
    check: Callable[[int, int, int, Any], None] | None


class HookSwitch:
    """Plain attributes: hooks read them on every call."""

    __slots__ = ("calls", "check", "enabled", "sampled", "sampled_ns", "stopped")

    def __init__(self) -> None:
        self.enabled = False
        self.stopped = False
        #: Operations seen, how many of them were timed, and what those took inside the hook.
        self.calls = 0
        self.sampled = 0
        self.sampled_ns = 0
        self.check: Callable[[int, int, int, Any], None] | None = None


#: Own cost is timed on every 64th operation; timing all of them would itself cost.
SAMPLE_EVERY = 64
#: A longer sample means that the thread was descheduled, not that the hook was slow.
MAX_SAMPLE_NS = 50_000
#: What a hook costs outside its body, per operation: crossing from C++, the post hook, the wrapped wait (measured,
#: benchmarks/overhead.py). Together with the sampled body this estimates the own cost.
CROSSING_NS_OFFICIAL = 3_000
CROSSING_NS_DISPATCH = 25_000


def note_sample(switch: Switch, begin_ns: int) -> None:
    """Counts the time since ``begin_ns`` (monotonic) as that of one operation, which stands for ``SAMPLE_EVERY``."""
    switch.calls += SAMPLE_EVERY
    switch.sampled += 1
    switch.sampled_ns += min(monotonic_ns() - begin_ns, MAX_SAMPLE_NS)


def estimate_cost_ns(switch: Switch, crossing_ns: int) -> int:
    """Nanoseconds that the hooks have cost so far, estimated from the timed calls."""
    if not switch.sampled:
        return switch.calls * crossing_ns
    return switch.calls * (switch.sampled_ns // switch.sampled + crossing_ns)
