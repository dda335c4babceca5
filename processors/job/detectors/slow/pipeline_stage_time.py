"""Which stage of a device pipeline has got more to do: by how long a step's passes take from stage to stage.

Nobody tells when a receive on a device has ended, so a stage that only waits for another looks as busy as that one. But
the first forward pass of a step goes through the stages one after the other, and each one's first call among its own
ranks (a layer's sum) ends when its part is done: from one stage's to the next one's is the next one's forward pass; or
from when all its devices had done the step before, where that is later (a slow exchange of its own). In the same way
the last backward pass comes back, by the ends of their last calls. The first stage has no time to forward, and the last
none to come back, as others wait in between. Looks tell an end to a tenth of a second of one rank, and to some ms of
hundreds. Pure.

Method: rise of each stage's time over its median, in robust standard deviations (median absolute deviation).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from ...columns.median import median

#: Steps whose passes are kept; how many say what was usual, and how many what is now.
KEPT_STEPS = 64
FEWEST_BEFORE, FEWEST_SINCE = 8, 3
#: Of a stage's ranks, of how many the ends must be known in a step.
KNOWN_SHARE = 0.9
#: By what share of what they take a stage's passes have become longer at least, also in standard deviations; and of
#: that share, the most by which another's may have, errors included, or the way forward differ from the way back.
LEAST_RISE, SIGMAS, MOST_OF_OTHERS, SURELY = 0.05, 5.0, 0.5, 3.0
#: What is not known better: clocks, and looks that keep time with the steps.
SMALLEST_ERROR_NS = 500_000.0
_FIRST, _LAST, _DONE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyStage:
    """A pipeline stage whose passes take longer. stage: its place in the pipeline; ranks: its own. pass_ns,
    pass_before_ns: its part of a step's first pass forward and last one back, as far as these are known.

    others: by what share any other stage's are longer at most. z: how sure.
    """

    stage: int
    ranks: tuple[int, ...]
    pass_ns: int
    pass_before_ns: int
    others: float
    z: float


def no_passes(ranks: int) -> np.ndarray:
    """An empty table of passes, (0, 1 + 3 * ranks) in ns, for ``with_passes``.

    Columns: step; by rank, when the first and the last call of its busiest group had ended on its device in that step,
    and the last one of any group; 0 not known.
    """
    return np.zeros((0, 1 + 3 * ranks), np.int64)


def with_passes(
    kept: np.ndarray, busiest: np.ndarray, rows: np.ndarray, sums: np.ndarray, ranks: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """The table with these steps added, the last KEPT_STEPS; with another number of ranks it begins anew.

    busiest: by rank, the group in which it calls most often (``stages.busiest_groups``). rows: COLLECTIVES of devices;
    sums: DEVICE_STEPS, used instead of rows for the steps in them.
    """
    if kept.shape[1] != 1 + 3 * ranks.size:
        kept = no_passes(ranks.size)
    never = np.iinfo(np.int64).max
    ends_ns = np.zeros((3, steps.size, ranks.size), np.int64)
    ends_ns[_FIRST] = never
    rows = rows[~np.isin(rows["step"], sums["step"])]
    for told, first, last in ((rows, "done_ns", "done_ns"), (sums, "first_end_ns", "last_end_ns")):
        place, column = np.searchsorted(steps, told["step"]), np.searchsorted(ranks, told["rank"])
        known = (place < steps.size) & (column < ranks.size) & (told[last] > 0)
        known[known] = (steps[place[known]] == told["step"][known]) & (ranks[column[known]] == told["rank"][known])
        np.maximum.at(ends_ns[_DONE], (place[known], column[known]), told[last][known])
        known[known] = busiest[column[known]] == told["group"][known]
        where = place[known], column[known]
        np.minimum.at(ends_ns[_FIRST], where, told[first][known])
        np.maximum.at(ends_ns[_LAST], where, told[last][known])
    ends_ns[_FIRST][ends_ns[_FIRST] == never] = 0
    return np.concatenate([kept, np.column_stack([steps, *ends_ns])])[-KEPT_STEPS:]


def are_enough(passes: np.ndarray, onset_step: int) -> bool:
    """Whether steps before this one and since then are known, as many as it takes. passes: one row per step."""
    since = int((passes[:, 0] >= onset_step).sum())
    return since >= FEWEST_SINCE and len(passes) - since >= FEWEST_BEFORE


def find_heavy_stage(passes: np.ndarray, ranks: np.ndarray, stages: np.ndarray, onset_step: int) -> HeavyStage | None:
    """The one stage whose passes take longer since ``onset_step``, as no other's do; None: none, or it cannot be told.

    passes: as ``with_passes`` gives them; ranks: of their columns; stages: by rank, -1 none.
    """
    count = int(stages.max(initial=-1)) + 1
    if count < 2 or (stages < 0).any() or passes.shape[1] != 1 + 3 * ranks.size:
        return None
    ends_ns = np.where(passes[:, 1:] > 0, passes[:, 1:] - passes[:, 1:].max(), np.nan)  # floats hold no Unix time
    ends_ns = ends_ns.reshape(len(passes), 3, ranks.size)
    means = np.stack([_mean_of_most(ends_ns[:, :, stages == stage]) for stage in range(count)], axis=2)
    ready_ns = np.full((len(means), count), np.nan)  # when the last of a stage's devices had done the step before
    follows = np.flatnonzero(np.diff(passes[:, 0]) == 1)
    for stage in range(count):
        ready_ns[follows + 1, stage] = _latest(ends_ns[follows, _DONE][:, stages == stage])
    known = np.isfinite(means).all(axis=(1, 2)) & np.isfinite(ready_ns).all(axis=1)
    if not are_enough(passes[known], onset_step):
        return None
    since, ends_ns, means = passes[known, 0] >= onset_step, ends_ns[known], means[known]
    # From when the pass could come to each stage. Of the first one forward, of the last one back nothing is known: nan.
    begun_ns = np.full((len(means), 2, count), np.nan)
    begun_ns[:, _FIRST, 1:] = np.maximum(means[:, _FIRST, :-1], ready_ns[known, 1:])
    begun_ns[:, _LAST, :-1] = means[:, _LAST, 1:]
    parts_ns = means[:, : _LAST + 1] - begun_ns
    usual_ns, rise_ns, error_ns = _rises(parts_ns, since)
    if (usual_ns <= 0.0).any():
        return None  # no layers' calls, or none that follow each other so
    share, error = _shares(usual_ns, rise_ns, error_ns)
    heavy = int(np.argmax(share))
    others = np.arange(count) != heavy
    if share[heavy] < max(LEAST_RISE, SIGMAS * error[heavy]):
        return None
    if (np.abs(share[others]) + 2.0 * error[others] > MOST_OF_OTHERS * share[heavy]).any():
        return None
    # What is on its way from one stage to the next for longer is so in both directions, if not by as large a share.
    most_ns = MOST_OF_OTHERS * float(np.nanmax(rise_ns[:, heavy]))
    if (rise_ns[:, others] > np.maximum(most_ns, SURELY * error_ns[:, others])).any():
        return None
    apart = np.abs(rise_ns / usual_ns - share)[:, heavy]
    if (apart > np.maximum(MOST_OF_OTHERS * share[heavy], SURELY * (error_ns / usual_ns)[:, heavy])).any():
        return None
    pass_before_ns = float(np.nansum(usual_ns[:, heavy]))
    if not _is_even(ends_ns[:, :, stages == heavy], begun_ns[:, :, heavy], since, share[heavy] * pass_before_ns):
        return None
    return HeavyStage(
        stage=heavy,
        ranks=tuple(ranks[stages == heavy].tolist()),
        pass_ns=int(pass_before_ns * (1.0 + share[heavy])),
        pass_before_ns=int(pass_before_ns),
        others=max(0.0, float(share[others].max())),
        z=float(share[heavy] / error[heavy]),
    )


def _shares(usual_ns: np.ndarray, rise_ns: np.ndarray, error_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By stage, of its usual passes by what share they are longer, each way counting by how well it is known, and the
    error of that. Arguments: (2, stages), nan not known."""
    weight = (usual_ns / error_ns) ** 2
    total = np.nansum(weight, axis=0)
    return np.nansum(weight * rise_ns / usual_ns, axis=0) / total, total**-0.5


def _mean_of_most(values: np.ndarray) -> np.ndarray:
    """Over the last axis, of what is known; nan where too little is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nothing known
        mean = np.nanmean(values, axis=-1)
    return np.where(np.isfinite(values).mean(axis=-1) >= KNOWN_SHARE, mean, np.nan)


def _latest(values: np.ndarray) -> np.ndarray:
    """Over the last axis, of what is known; nan where nothing is."""
    latest: np.ndarray = np.fmax.reduce(values, axis=-1)
    return latest


def _rises(values: np.ndarray, since: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Over the first axis, steps: what was usual, by how much it is more since then, and the error of that."""
    before, now = values[~since], values[since]
    usual = median(before, axis=0)
    noise = 1.4826 * median(np.abs(before - usual), axis=0)
    error = np.maximum(noise * (1.57 / len(before) + 1.57 / len(now)) ** 0.5, SMALLEST_ERROR_NS)
    return usual, median(now, axis=0) - usual, error


def _is_even(ends_ns: np.ndarray, begun_ns: np.ndarray, since: np.ndarray, rise_ns: float) -> bool:
    """Whether most of a stage's ranks have become later, and not some by far more. ends_ns: (steps, ways, ranks) of
    these; begun_ns: (steps, ways) when the pass could come to them."""
    ways = [way for way in (_FIRST, _LAST) if np.isfinite(begun_ns[:, way]).all()]
    later_ns = sum(_gain(ends_ns[:, way] - begun_ns[:, way, None], since) for way in ways)
    return float(np.nanmedian(later_ns)) > rise_ns / 2.0


def _gain(values: np.ndarray, since: np.ndarray) -> np.ndarray:
    """By rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values[since], axis=0) - np.nanmean(values[~since], axis=0))
