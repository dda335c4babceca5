"""Which pipeline stage slow ranks are slow in: those of the others that work for them stand out with them.

On devices nobody sees who waits in point-to-point calls, so what a late stage costs its neighbours looks like their own
work. They cannot lose more than the late one is late by, and lose less where they have time to spare.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....telemetry.vocabulary import Phase
from ..columns.median import median
from ..columns.rows import pick
from ..detectors.slow.robust_excess import excess_over_others
from ..detectors.slow.step_times import StepTimes
from ..detectors.slow.straggler import COMPANY_SHARE, FEWEST_BASELINE_STEPS, LONGEST_BASELINE
from ..detectors.slow.straggler_memory import Straggler
from ..intake.device_groups import has_become_slow
from ..state.job_state import JobState

#: In standard deviations, as ranks of one stage differ, by how much one stage stands out from the next; looks are
#: coarse, so that so many steps are asked, and after so many nothing better is to be had.
SIGMAS = 3.0
FEWEST_STEPS, MOST_STEPS = 12, 32
#: Of fetching data: by what share it takes longer at least, and in how many steps that is known.
LONGER_FETCH, FEWEST_FETCHES = 0.2, 4
#: Of a stage's slow ranks, how many fetch longer.
FETCHING_SHARE = 0.7
#: Of a stage's ranks, how many are slow where the stage is.
MOST_OF_STAGE = 0.7


def sends(job: JobState) -> bool:
    """Whether any rank has sent to another: such ranks do different parts of the work, as stages of a pipeline."""
    return bool((job.groups.rows["p2p_enqueued"] > 0).any())


def stages_of(job: JobState, ranks: np.ndarray) -> np.ndarray:
    """By rank, its place in a group whose members send to one another, which is its stage; -1 where it sends to nobody.

    ranks: (ranks,), ascending.
    """
    stages = np.full(ranks.size, -1, np.int64)
    for index, members in enumerate(job.groups.members):
        rows, _ = job.groups.rows_of(index)
        if 1 < members.size < len(job.ranks) and (rows["p2p_enqueued"] > 0).any():
            column = np.searchsorted(ranks, members)
            known = (column < ranks.size) & (ranks[np.minimum(column, ranks.size - 1)] == members)
            stages[column[known]] = np.flatnonzero(known)
    return stages


def busiest_groups(job: JobState, ranks: np.ndarray) -> np.ndarray:
    """By rank, the group in which its device has called most often, of those smaller than the job; -1 none.

    That is the group of each layer's calls.
    """
    size, busiest = job.groups.shape(job.ranks).sizes, np.full(ranks.size, -1, np.int64)
    partial = job.groups.are_on_device() & (size > 1) & (size < len(job.ranks))
    rows = job.groups.rows
    rows = pick(rows, (job.groups.stamps > 0) & (rows["enqueued"] > 0) & partial[rows["group"]])
    rows = pick(rows, np.argsort(rows["enqueued"], kind="stable"))
    column = np.searchsorted(ranks, rows["rank"])
    known = column < ranks.size
    known[known] = ranks[column[known]] == rows["rank"][known]
    busiest[column[known]] = rows["group"][known]  # of those that come twice the last counts
    return busiest


def order_of_stages(job: JobState, ranks: np.ndarray) -> np.ndarray:
    """The same; where all ranks send to one another in one group their order in it, which is that of the stages, each
    of one rank or of several that follow each other."""
    stages = stages_of(job, ranks)
    if (stages < 0).all():
        for index, members in enumerate(job.groups.members):
            if members.size == len(job.ranks) and (job.groups.rows_of(index)[0]["p2p_enqueued"] > 0).any():
                return np.arange(ranks.size)
    return stages


def ends_last_by_schedule(times: StepTimes, stages: np.ndarray, found: Straggler) -> bool:
    """Whether the slow ranks are those of the first stages, or nearly, slow as long as anything is known.

    Their backward passes are the last of a step, and all others wait for them at the end. The fewer microbatches, the
    longer. stages: by rank, in their order. Pure.
    """
    slow = np.isin(times.ranks, (found.rank, *found.company))
    if has_become_slow(times, found) or (stages[slow] < 0).any():
        return False
    first = range(int(stages[slow].max()) + 1)
    return all(float(slow[stages == stage].mean()) >= MOST_OF_STAGE for stage in first)


def of_one_stage(times: StepTimes, stages: np.ndarray, found: Straggler) -> Straggler | None:
    """The slow ranks without those that only work for them: of the stage that rose most. None: it does not show yet.

    Where it does not show in many steps, all of them, as found. stages: by rank. Pure.
    """
    slow = np.isin(times.ranks, (found.rank, *found.company))
    if not found.based or not found.company or (stages[slow] < 0).any() or np.unique(stages[slow]).size < 2:
        return found
    since = times.steps >= found.onset_step
    if not since.any():
        return None
    before = np.flatnonzero(~since)[-LONGEST_BASELINE:]
    was_ns = times.self_ns[before].mean(axis=0) if before.size else np.zeros(times.ranks.size)
    rise_ns = times.self_ns[since].mean(axis=0) - was_ns
    fetching = _stage_that_fetches_longer(times, stages, slow, found.onset_step)
    if fetching is not None:
        return _only(times, found, slow & (stages == fetching), before, rise_ns)
    if int(since.sum()) < FEWEST_STEPS:
        return None
    if before.size < FEWEST_BASELINE_STEPS:
        return found  # nothing to compare with: it most likely began before what is remembered
    means = {int(stage): rise_ns[slow & (stages == stage)] for stage in np.unique(stages[slow])}
    first, second = sorted(means, key=lambda stage: -float(means[stage].mean()))[:2]
    apart_ns = float(means[first].mean() - means[second].mean())
    errors = [float(means[stage].std()) / means[stage].size ** 0.5 for stage in (first, second)]
    if float(means[first].mean()) <= 0.0:
        return found  # slow only against the others, which have become faster
    if apart_ns <= SIGMAS * float(np.hypot(*errors)):
        return found if int(since.sum()) >= MOST_STEPS else None
    late = (stages == first) & (rise_ns > COMPANY_SHARE * float(means[first].mean()))
    return _only(times, found, late, before, rise_ns)


def _stage_that_fetches_longer(times: StepTimes, stages: np.ndarray, slow: np.ndarray, onset_step: int) -> int | None:
    """The one stage whose slow ranks fetch their data for longer since then than they did, as nobody else does."""
    fetch_ns = times.phase_self_ns[:, :, Phase.DATA].astype(np.float64)
    since = times.steps[times.steps.size - len(fetch_ns) :] >= onset_step
    if min(int(since.sum()), int((~since).sum())) < FEWEST_FETCHES:
        return None
    usual_ns = median(fetch_ns[~since], axis=0)
    more_ns = median(fetch_ns[since], axis=0) - usual_ns
    chance_ns = SIGMAS * float(more_ns[~slow].std()) if not slow.all() else 0.0
    longer = slow & (more_ns > np.maximum(LONGER_FETCH * usual_ns, chance_ns)) & (usual_ns > 0)
    shares = {int(stage): float(longer[slow & (stages == stage)].mean()) for stage in np.unique(stages[slow])}
    most = max(shares, key=lambda stage: shares[stage])
    others_do = any(share > 0.0 for stage, share in shares.items() if stage != most)
    return most if shares[most] >= FETCHING_SHARE and not others_do else None


def _only(times: StepTimes, found: Straggler, late: np.ndarray, before: np.ndarray, rise_ns: np.ndarray) -> Straggler:
    """What was found, of these ranks alone; told of the one that has become slower by most, unless it was found.

    late: by rank. before: rows of ``times``. rise_ns: by rank, against those.
    """
    ranks = times.ranks[late].tolist()
    if found.rank in ranks:
        return replace(found, company=tuple(rank for rank in ranks if rank != found.rank))
    latest = int(np.argmax(np.where(late, rise_ns, -np.inf)))
    excess = excess_over_others(times.self_ns[before])[:, latest] / np.maximum(times.duration_ns[before], 1)
    return replace(
        found,
        rank=int(times.ranks[latest]),
        company=tuple(rank for rank in ranks if rank != int(times.ranks[latest])),
        usual=max(0.0, float(median(excess))) if before.size else 0.0,
        self_ns=int(median(times.self_ns[times.steps >= found.onset_step][:, latest])),
    )
