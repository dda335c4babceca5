"""How much a counter grew between two looks, through resets and wraps; and the latch of one rule over one counter.

Pure. A latch is small enough to have one per rule and port, and packs into a list of JSON's types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .rules import CounterRule, RuleKind

#: A counter that fell is taken to have wrapped only from the last quarter of its width into the first one.
_WIDTHS_BITS = (32, 64)


class Step(str, Enum):
    SAME = "same"
    GREW = "grew"
    #: Began anew: cleared by hand, or with its driver or device.
    RESET = "reset"
    WRAPPED = "wrapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """``amount``: what was counted for certain since the last look; after a reset what was counted since the reset."""

    step: Step
    amount: int


def growth(previous: int, current: int, *, may_wrap: bool = False) -> Growth:
    """How a counter moved from one look to the next: same, grew, wrapped or was reset, and by how much.

    may_wrap: for counters that pass their width in normal work (bytes, packets).
    """
    if current == previous:
        return Growth(step=Step.SAME, amount=0)
    if current > previous:
        return Growth(step=Step.GREW, amount=current - previous)
    if may_wrap:
        for bits in _WIDTHS_BITS:
            size = 1 << bits
            if size - (size >> 2) <= previous < size and current < size >> 2:
                return Growth(step=Step.WRAPPED, amount=size - previous + current)
    return Growth(step=Step.RESET, amount=current)


def rate_per(amount: int, elapsed_s: float, unit_s: float) -> float:
    """The growth per ``unit_s`` seconds; 0 where no time has passed."""
    return amount / elapsed_s * unit_s if elapsed_s > 0 else 0.0


class LatchEvent(str, Enum):
    BREACH = "breach"
    #: Growth went beyond the limit again while latched.
    AGAIN = "again"
    #: Cleared: the counter began anew.
    RECOVERY = "recovery"


@dataclass(slots=True)
class Latch:
    """One rule over one counter of one port. A breach latches; only a reset of the counter clears it.

    ``t_s``, ``value``: the beginning of the window that is being measured. None: not seen yet.
    """

    t_s: float | None = None
    value: int | None = None
    is_latched: bool = False
    #: Largest growth, or rate, of a window that was beyond the limit.
    worst: float = 0.0
    #: End of the last window that was beyond the limit.
    breached_at_s: float = 0.0

    def take(self, rule: CounterRule, t_s: float, value: int | None) -> LatchEvent | None:
        """Takes one look at the counter; BREACH or AGAIN: it grew beyond the rule's limit, RECOVERY: it was reset,
        None: no news.

        A None value is no look, nor is one that is not later than the last. t_s: seconds of any one clock.
        """
        if value is None or (self.t_s is not None and t_s <= self.t_s):
            return None
        if self.value is None or self.t_s is None:
            self.t_s, self.value = t_s, value
            return None
        elapsed_s = t_s - self.t_s
        if value == self.value:
            # By far the most frequent look: nothing was counted, so nothing can be beyond a limit.
            if elapsed_s >= rule.unit_s:
                self.t_s = t_s
            return None
        grown = growth(self.value, value)
        if grown.step is Step.RESET:
            self.t_s, self.value = t_s, value
            if not self.is_latched:
                return None
            self.is_latched, self.worst = False, 0.0
            return LatchEvent.RECOVERY
        # A short window tells nothing about a long unit: three errors in one second are not 10,800 per hour.
        if rule.kind is RuleKind.RATE and elapsed_s < rule.unit_s:
            return None
        self.t_s, self.value = t_s, value
        measured = (
            float(grown.amount) if rule.kind is RuleKind.DELTA else rate_per(grown.amount, elapsed_s, rule.unit_s)
        )
        if measured <= rule.limit:
            return None
        was_latched, self.is_latched = self.is_latched, True
        self.worst, self.breached_at_s = max(self.worst, measured), t_s
        return LatchEvent.AGAIN if was_latched else LatchEvent.BREACH

    def is_quiet(self, rule: CounterRule, t_s: float) -> bool:
        """Whether the rule was broken and nothing beyond its limit has come for its ``quiet_s``. t_s: now."""
        return self.is_latched and t_s - self.breached_at_s >= rule.quiet_s

    def clear(self) -> None:
        """No longer latched; the samples that growth is measured from stay."""
        self.is_latched, self.worst = False, 0.0

    def pack(self) -> list[float | int | bool | None]:
        """A list for JSON, in the order that ``unpack`` takes."""
        return [self.t_s, self.value, self.is_latched, self.worst, self.breached_at_s]

    @classmethod
    def unpack(cls, packed: list[float | int | bool | None]) -> Latch:
        """The latch from what ``pack`` gave; raises ValueError for a list of another length."""
        if len(packed) != 5:
            raise ValueError(f"a latch has 5 fields, not {len(packed)}")
        t_s, value, is_latched, worst, breached_at_s = packed
        return cls(
            t_s=None if t_s is None else float(t_s),
            value=None if value is None else int(value),
            is_latched=bool(is_latched),
            worst=float(worst or 0.0),
            breached_at_s=float(breached_at_s or 0.0),
        )
