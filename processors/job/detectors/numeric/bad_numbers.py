"""Numbers gone bad: which step first, and on which ranks. A NaN that one rank feeds in is everybody's a step later.

The loss is each rank's own and decides; the gradient norm is usually taken after the reduction and is then the same
everywhere, so it names a rank only where the ranks' norms differ.

Method: the first step with a value that is not finite; explosions by a z score and by the ratio to what was usual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .....telemetry.vocabulary import StepFlag
from ...columns.median import median

#: Robust z of the logarithm of the gradient norm, and its jump, that count as an explosion; held for some steps.
EXPLOSION_Z = 6.0
EXPLOSION_RATIO = 5.0
#: The same where one rank's loss explodes in the first of these steps: among many ranks one bad batch is a small part
#: of the sum.
FED_RATIO = 2.0
EXPLOSION_STEPS = 3
EXPLOSION_BASELINE = 30
#: Steps that are looked at together.
EXPLOSION_WINDOW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNumber:
    """A number gone bad. what: "loss" | "gradient norm"; ranks: where it was bad at that step; all_ranks: those whose
    value is known.

    usual_norm: largest usual gradient norm of a rank, for an explosion. calls_before: of a loop without steps, the
    calls of the world's group that the ranks had issued; -1: steps tell it.
    """

    step: int
    what: str
    value: str
    ranks: tuple[int, ...]
    all_ranks: tuple[int, ...]
    onset_ns: int
    usual_norm: float = 0.0
    calls_before: int = -1

    @property
    def everywhere(self) -> bool:
        """Whether all ranks with a known value had it, so that it came with the step and not from one of them."""
        return len(self.ranks) == len(self.all_ranks)


def find_non_finite(rows: np.ndarray) -> BadNumber | None:
    """The first step with a NaN or an infinity in a loss, or in a gradient norm of an update that was not skipped; else
    None.

    rows: (n,) of STEPS. Where losses are bad they name the ranks, else the norms do.
    """
    # Asked of every block of steps: `reduce` is one call, the method `all` three.
    if np.logical_and.reduce(np.isfinite(rows["loss"])) and np.logical_and.reduce(np.isfinite(rows["grad_norm"])):
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
        onset_ns=int(rows["begin_ns"][bad & now].min()),  # it shows at the step's end, and came of what was done in it
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """Numbers of consecutive plain steps whose update was not skipped: steps, ends_ns (n,); norms, losses (n, ranks).

    Norms are known throughout, losses are NaN where they are not.
    """

    ranks: np.ndarray
    steps: np.ndarray
    ends_ns: np.ndarray
    norms: np.ndarray
    losses: np.ndarray


def find_explosion(numbers: Numbers) -> BadNumber | None:
    """Where gradient norms have been far above the rest for EXPLOSION_STEPS, and where it began; None: nowhere.

    Where all ranks have one norm (it is taken after the reduction), the loss tells who fed it: each rank's is its own.
    """
    norms = numbers.norms
    if norms.shape[0] < EXPLOSION_BASELINE + EXPLOSION_STEPS:
        return None
    lowest = float(np.minimum.reduce(norms, axis=None))
    if not float(np.maximum.reduce(norms[-EXPLOSION_STEPS:], axis=None)) > 0.99 * FED_RATIO * lowest:
        return None  # nearly always, and no median is below the lowest (NaN is no explosion, and compares with nothing)
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        return None
    logs = np.log(norms)
    middle = median(logs, axis=0)
    if not (logs[-EXPLOSION_STEPS:] - middle > np.log(FED_RATIO)).all(axis=0).any():
        return None
    return _explosion(numbers, logs, middle, EXPLOSION_RATIO) or _explosion(numbers, logs, middle, FED_RATIO)


def _explosion(numbers: Numbers, logs: np.ndarray, middle: np.ndarray, ratio: float) -> BadNumber | None:
    """logs: of the norms. ratio: asked of them; of less than EXPLOSION_RATIO only where the losses tell who fed it."""
    high = _far_above(logs, ratio)
    exploded = high[-EXPLOSION_STEPS:].all(axis=0)
    if not exploded.any():
        return None
    since = _since(high)
    first = int(since[exploded].min())
    began = exploded & (since == first)
    what, source = "gradient norm", logs
    if began.all():
        with np.errstate(divide="ignore"):
            losses = np.log(np.abs(numbers.losses))
        fed = np.isfinite(losses).all(axis=0)
        # The weights bear it on, a bad batch is read once.
        fed[fed] = _far_above(losses[:, fed], EXPLOSION_RATIO)[first]
        if fed.any() and not fed.all():
            what, source, began = "loss", losses, fed
    if ratio < EXPLOSION_RATIO and (what != "loss" or 2 * int(began.sum()) > began.size):
        return None
    rise = (source - median(source, axis=0))[first:, began]
    return BadNumber(
        step=int(numbers.steps[first]),
        what=what,
        value=f"{float(np.exp(rise.max())):.0f} times its usual size",
        ranks=tuple(int(rank) for rank in numbers.ranks[began]),
        all_ranks=tuple(int(rank) for rank in numbers.ranks),
        onset_ns=int(numbers.ends_ns[first]),
        usual_norm=float(np.exp(middle.max())),
    )


def _far_above(logs: np.ndarray, ratio: float) -> np.ndarray:
    """(n, ranks): whether a value lies above its rank's usual by z and by ratio."""
    above = logs - median(logs, axis=0)
    spread = np.maximum(1.4826 * median(np.abs(above), axis=0), 0.05)
    return np.asarray((above / spread > EXPLOSION_Z) & (above > np.log(ratio)))


def _since(high: np.ndarray) -> np.ndarray:
    """By rank: index from which on all its values are high (their number where the last is not)."""
    return np.asarray(high.shape[0] - np.argmin(np.vstack([high[::-1], np.zeros(high.shape[1], bool)]), axis=0))
