"""Numbers gone bad: which step first, and on which ranks. A NaN that one rank feeds in is everybody's a step later.

The loss is each rank's own and decides; the gradient norm is usually taken after the reduction and is then the same
everywhere, so it names a rank only where the ranks' norms differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...telemetry.vocabulary import StepFlag
from .median import median

#: Robust z of the logarithm of the gradient norm, and its jump, that count as an explosion; held for some steps.
EXPLOSION_Z = 6.0
EXPLOSION_RATIO = 5.0
EXPLOSION_STEPS = 3
EXPLOSION_BASELINE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNumber:
    """what: "loss" | "gradient norm"; ranks: where it was bad at that step; all_ranks: those whose value is known."""

    step: int
    what: str
    value: str
    ranks: tuple[int, ...]
    all_ranks: tuple[int, ...]
    onset_ns: int

    @property
    def everywhere(self) -> bool:
        return len(self.ranks) == len(self.all_ranks)


def find_non_finite(rows: np.ndarray) -> BadNumber | None:
    """The first step of these STEPS rows with a NaN or an infinity."""
    if np.isfinite(rows["loss"]).all() and np.isfinite(rows["grad_norm"]).all():
        return None
    has_loss = (rows["flags"] & int(StepFlag.HAS_LOSS)) != 0
    has_norm = (rows["flags"] & int(StepFlag.HAS_GRAD_NORM)) != 0
    skipped = (rows["flags"] & int(StepFlag.SKIPPED)) != 0
    bad_loss = has_loss & ~np.isfinite(rows["loss"])
    bad_norm = has_norm & ~np.isfinite(rows["grad_norm"]) & ~skipped
    if not (bad_loss.any() or bad_norm.any()):
        return None
    step = int(rows["step"][bad_loss | bad_norm].min())
    now = rows["step"] == step
    # With the losses known and good everywhere, the reduced norm says that it is bad, not where it began.
    what, known, bad, column = (
        ("loss", has_loss, bad_loss, "loss")
        if (bad_loss & now).any()
        else ("gradient norm", has_norm, bad_norm, "grad_norm")
    )
    values = rows[column][bad & now]
    return BadNumber(
        step=step,
        what=what,
        value="NaN" if np.isnan(values).any() else "infinity",
        ranks=tuple(sorted(int(rank) for rank in rows["rank"][bad & now])),
        all_ranks=tuple(sorted(int(rank) for rank in rows["rank"][known & now])),
        onset_ns=int(rows["end_ns"][bad & now].min()),
    )


def find_explosion(steps: np.ndarray, norms: np.ndarray, ranks: np.ndarray, ends_ns: np.ndarray) -> BadNumber | None:
    """norms: (n, ranks) gradient norms of consecutive steps. The last EXPLOSION_STEPS have to be far above the rest."""
    if norms.shape[0] < EXPLOSION_BASELINE + EXPLOSION_STEPS:
        return None
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        return None
    logs = np.log(norms)
    middle = median(logs, axis=0)
    if not (logs[-EXPLOSION_STEPS:] - middle > np.log(EXPLOSION_RATIO)).all(axis=0).any():
        return None
    spread = np.maximum(1.4826 * median(np.abs(logs - middle), axis=0), 0.05)
    high = ((logs - middle) / spread > EXPLOSION_Z) & (logs - middle > np.log(EXPLOSION_RATIO))
    exploded = high[-EXPLOSION_STEPS:].all(axis=0)
    if not exploded.any():
        return None
    calm = np.flatnonzero(~high[:, exploded].any(axis=1))
    first = int(calm[-1]) + 1 if calm.size else 0
    return BadNumber(
        step=int(steps[first]),
        what="gradient norm",
        value=f"{float(np.exp((logs - middle)[first:, exploded].max())):.0f} times its usual size",
        ranks=tuple(int(rank) for rank in ranks[exploded]),
        all_ranks=tuple(int(rank) for rank in ranks),
        onset_ns=int(ends_ns[first]),
    )
