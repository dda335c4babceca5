"""What ``NearCheckpoints`` tells the training script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOutcome:
    """Of one call of ``save`` on this rank.

    is_taken: whether the state was copied; what becomes of it shows later. why: where it was not. blocked_s: seconds
    that training waited.
    """

    is_taken: bool
    why: str = ""
    blocked_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What ``load`` has put into the state; the same on all ranks but for ``source`` and ``seconds``.

    step: that was given to ``save``. source: ``local``, ``partner`` (from another node's memory) or ``persistent``.
    from_partner: ranks whose part came from another node.
    """

    step: int
    source: str
    from_partner: tuple[int, ...] = ()
    seconds: float = 0.0
