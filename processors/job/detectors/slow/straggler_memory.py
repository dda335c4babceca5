"""What is found of a slow rank, and what is remembered of it while its finding is open. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A slow rank. excess: share of the step time by which it is slower than usual, against the others. z: how sure.

    starved_ns: of ``excess_ns``, what it waited for a CPU. waited_ns, waited_before_ns: what another rank waits in a
    step, now and before. company: other ranks that are slower in the same steps. based: it was not always so. noise: of
    one step's excess, in step times.
    """

    rank: int
    onset_step: int
    onset_ns: int
    excess: float
    excess_ns: int
    usual: float
    phase: int
    z: float
    window: int
    slow_steps: int
    step_ns: int
    others_self_ns: int
    self_ns: int
    starved_ns: int = 0
    waited_ns: int = 0
    waited_before_ns: int = 0
    company: tuple[int, ...] = ()
    based: bool = True
    noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerMemory:
    """What is remembered of a straggler while its finding is open. step: its first slow one. based: it was faster.
    company: ranks that are slow together with it."""

    rank: int
    step: int
    excess: float
    usual: float
    noise: float
    based: bool = True
    company: tuple[int, ...] = ()
