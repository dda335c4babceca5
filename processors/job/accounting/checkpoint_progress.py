"""Checkpoints and evaluations as progress rows show them: those in a step that never ends, and after the last one, are
in no step row.

A checkpoint is whole when every rank that was seen to write it was seen to do something else afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from ....telemetry.vocabulary import Phase, ProcessState
from ..state.accounting_state import Saving

if TYPE_CHECKING:
    from ..state.job_state import JobState

#: As ``Ledger`` names what is remembered of them.
What = Literal["saving", "evaluating"]
_PHASES: tuple[tuple[What, Phase], ...] = (("saving", Phase.CHECKPOINT), ("evaluating", Phase.EVAL))
_DEAD = int(ProcessState.DEAD)
_IS_ONE = np.zeros(256, bool)
_IS_ONE[[int(phase) for _, phase in _PHASES]] = True


def note_saves(job: JobState, rows: np.ndarray, before: np.ndarray, known: np.ndarray) -> None:
    """Notes in the job's ledger when ranks begin and end to save or to evaluate.

    rows: PROGRESS in Unix time, the newest of each rank; before: each rank's row before it, valid where ``known``.
    """
    is_on = _is_on(job.ledger.saving) or _is_on(job.ledger.evaluating)
    if not is_on and not np.logical_or.reduce(_IS_ONE[rows["phase"]]):
        return  # asked of every message
    for what, phase in _PHASES:
        _note(job, what, phase, rows, before, known)


def note_exit(job: JobState, rank: int, step: int, phase: str, time_ns: int) -> None:
    """Takes the ended rank out of the save or evaluation it was seen in at ``step``, unless ``phase`` says it is still
    in it.

    step, phase: where the process stood by its own last word. time_ns: Unix, of the end.
    """
    for what, of in _PHASES:
        saving = _known(job, what)
        if saving is not None and rank in saving.ranks and step == saving.step and phase != of.name.lower():
            _leave(job, what, saving, {rank}, time_ns)


def _note(job: JobState, what: What, phase: Phase, rows: np.ndarray, before: np.ndarray, known: np.ndarray) -> None:
    is_in_it = (rows["phase"] == int(phase)) & (rows["process_state"] != _DEAD)
    if is_in_it.any():
        _begin(job, what, rows[is_in_it])
    saving = _known(job, what)
    if not _is_on(saving):
        return
    assert saving is not None
    was_in_it = (before["phase"] == int(phase)) & known & (before["pid"] == rows["pid"])
    left = was_in_it & ~is_in_it & (rows["process_state"] != _DEAD)
    mine = left & np.isin(rows["rank"], saving.ranks)
    if not mine.any():
        return
    ended_ns = int((rows["read_ns"] - rows["phase_age_ns"])[mine].max())
    _leave(job, what, saving, set(rows["rank"][mine].tolist()), ended_ns)


def _known(job: JobState, what: What) -> Saving | None:
    return job.ledger.saving if what == "saving" else job.ledger.evaluating


def _is_on(saving: Saving | None) -> bool:
    return saving is not None and bool(saving.ranks)


def _remember(job: JobState, what: What, saving: Saving) -> None:
    setattr(job.ledger, what, saving)
    job.ledger.changed = True


def _leave(job: JobState, what: What, saving: Saving, who: set[int], ended_ns: int) -> None:
    ranks = [rank for rank in saving.ranks if rank not in who]
    _remember(job, what, Saving(saving.step, saving.begin_ns, max(saving.end_ns, ended_ns), ranks))
    if what == "saving" and not ranks:
        job.checkpoints.note_saved(saving.step)


def _begin(job: JobState, what: What, rows: np.ndarray) -> None:
    """rows: of ranks that are in one."""
    step = int(rows["step"].max())
    rows = rows[rows["step"] == step]
    begin_ns = int((rows["read_ns"] - rows["phase_age_ns"]).min())
    known = _known(job, what)
    # A second one of the same step, as of optimizer and model in turn, goes on with the first.
    same = known if known is not None and known.step == step else None
    if known is not None and known.step > step:
        return
    ranks = sorted({*(same.ranks if same else ()), *rows["rank"].tolist()})
    found = Saving(step, min(same.begin_ns, begin_ns) if same else begin_ns, same.end_ns if same else 0, ranks)
    if found != known:
        _remember(job, what, found)
