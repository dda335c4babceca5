"""Checkpoints as progress rows show them: those in a step that never ends, and after the last one, are in no step row.

A checkpoint is whole when every rank that was seen to write it was seen to do something else afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...telemetry.vocabulary import Phase, ProcessState
from .ledger import Saving

if TYPE_CHECKING:
    from .state import JobState

_CHECKPOINT, _DEAD = int(Phase.CHECKPOINT), int(ProcessState.DEAD)
_WORD = Phase.CHECKPOINT.name.lower()


def note_saves(job: JobState, rows: np.ndarray, before: np.ndarray, known: np.ndarray) -> None:
    """rows: PROGRESS in Unix time, newest of each rank. before, known: the ranks' rows before; known False: none."""
    ledger = job.ledger
    is_saving = (rows["phase"] == _CHECKPOINT) & (rows["process_state"] != _DEAD)
    if is_saving.any():
        _begin(job, rows[is_saving])
    saving = ledger.saving
    if saving is None or not saving.ranks:
        return
    was_saving = (before["phase"] == _CHECKPOINT) & known & (before["pid"] == rows["pid"])
    left = was_saving & ~is_saving & (rows["process_state"] != _DEAD)
    mine = left & np.isin(rows["rank"], saving.ranks)
    if not mine.any():
        return
    ended_ns = int((rows["read_ns"] - rows["phase_age_ns"])[mine].max())
    _leave(job, saving, set(rows["rank"][mine].tolist()), ended_ns)


def note_exit(job: JobState, rank: int, step: int, phase: str, time_ns: int) -> None:
    """A process has ended. step, phase: where it stood by its own last word."""
    saving = job.ledger.saving
    if saving is not None and rank in saving.ranks and step == saving.step and phase != _WORD:
        _leave(job, saving, {rank}, time_ns)


def _leave(job: JobState, saving: Saving, who: set[int], ended_ns: int) -> None:
    ranks = [rank for rank in saving.ranks if rank not in who]
    job.ledger.saving = Saving(saving.step, saving.begin_ns, max(saving.end_ns, ended_ns), ranks)
    job.ledger.changed = True
    if not ranks:
        job.saved_steps = max(job.saved_steps, job.steps_before + saving.step)
        job.steps_changed = True


def _begin(job: JobState, rows: np.ndarray) -> None:
    """rows: of ranks that are writing one."""
    ledger = job.ledger
    step = int(rows["step"].max())
    rows = rows[rows["step"] == step]
    begin_ns = int((rows["read_ns"] - rows["phase_age_ns"]).min())
    known = ledger.saving
    # A second one of the same step, as of optimizer and model in turn, goes on with the first.
    same = known if known is not None and known.step == step else None
    if known is not None and known.step > step:
        return
    ranks = sorted({*(same.ranks if same else ()), *rows["rank"].tolist()})
    found = Saving(step, min(same.begin_ns, begin_ns) if same else begin_ns, same.end_ns if same else 0, ranks)
    if found != known:
        ledger.saving, ledger.changed = found, True
