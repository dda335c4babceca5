"""Which steps' calls agents ship whole: the same on every rank, and known to the judge. Pure."""

from __future__ import annotations

#: Up to this many ranks every step's collectives are shipped whole; beyond, every k-th step.
WHOLE_UP_TO_RANKS = 64


def whole_steps_every(world_size: int) -> int:
    """k, where everything of every k-th step is shipped: 1 for a small job, more for a large one."""
    return -(-max(world_size, 1) // WHOLE_UP_TO_RANKS)
