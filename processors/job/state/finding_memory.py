"""What an open finding remembers of how it was found, by which it is seen whether it is over: one type per detector.

``finding_rows`` writes and reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..detectors.numeric.bad_numbers import BadNumber
from ..detectors.slow.straggler_memory import StragglerMemory


class AskedCall(NamedTuple):
    """An operation whose line is wanted. seq: -1 where ranks issued different numbers of them."""

    rank: int
    group: int
    point_to_point: bool
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LateMemory:
    """A rank whose device, host or stage makes all steps longer. usual_step_ns, late_step_ns: how long one takes."""

    rank: int
    usual_step_ns: int
    late_step_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowWriterMemory:
    """A rank whose saves are slow. before_ns, now_ns: how long one takes."""

    rank: int
    before_ns: int
    now_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftMemory:
    """A rank that became slow by and by. usual, rise: its excess at its best, and since, in step times."""

    rank: int
    rise: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceMemory:
    """Steps that take longer on all ranks. before_ns, after_ns: a step's length. wanders: another rank is late in each
    step.
    """

    before_ns: int
    after_ns: int
    wanders: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StallMemory:
    """Stalls that come again. pause_steps: the longest pause between two of them; one twice as long ends them."""

    pause_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberMemory:
    """Numbers gone bad. usual: the norm that was, None where it is not that. good: steps with good numbers since.

    bad: None of an older release.
    """

    bad: BadNumber | None
    usual: float | None = None
    good: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentNodeMemory:
    """The node of which nothing is seen."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSilentMemory:
    """No node was heard. since_ns: bus stamp; a node that is heard after it is there again."""

    since_ns: int


FindingMemory = (
    StragglerMemory
    | LateMemory
    | SlowWriterMemory
    | DriftMemory
    | PaceMemory
    | StallMemory
    | NumberMemory
    | SilentNodeMemory
    | AllSilentMemory
)
SlowRankMemory = StragglerMemory | LateMemory | SlowWriterMemory | DriftMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingDetail:
    """What a finding keeps for later. memory: of its detector. calls: whose lines are wanted.

    by_device: a device stands still, not its host. is_crash: concluded from how ranks ended.
    """

    memory: FindingMemory | None = None
    calls: tuple[AskedCall, ...] = ()
    by_device: bool = False
    is_crash: bool = False
