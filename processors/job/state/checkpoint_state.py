"""Where in the training the attempts stand: ranks count their steps from 0 in each, a restart goes on from a save."""

from __future__ import annotations

import numpy as np

from ....telemetry.vocabulary import Phase
from .checkpoint_saves import CheckpointSaves
from .emergency_save import EmergencySave
from .unsaved import Unsaved


class CheckpointState:
    """steps_before: steps of the training before the attempt's first one. saved_steps: in the newest durable one.

    saves: what ranks tell of theirs. emergency: the newest that was asked for in this attempt. by_place: steps of the
    training in each checkpoint. restored_steps: what the attempt has read of these before its first step, -1 none.
    """

    def __init__(self, unsaved: Unsaved) -> None:
        self._unsaved = unsaved
        self.steps_before = 0
        self.saved_steps = 0
        self.saves = CheckpointSaves()
        self.emergency: EmergencySave | None = None
        self.by_place: dict[str, int] = {}
        self.restored_steps = -1

    def note_saving(self, rows: np.ndarray) -> None:
        """Takes the newest of these steps in which a checkpoint was written as the one a later attempt goes on from.

        rows: STEPS (n,), n > 0. Nothing where ranks tell what becomes of saves.
        """
        if self.saves.are_told:
            return
        saving_ns = rows["phase_ns"][:, int(Phase.CHECKPOINT)]
        if int(np.maximum.reduce(saving_ns)) > 0:  # asked of every message
            self.saved_steps = self.steps_before + int(rows["step"][saving_ns > 0].max())
            self._unsaved.steps = True

    def note_saved(self, step: int) -> None:
        """Takes ``step`` (of the attempt) as saved, as its ranks' progress shows it; not where they tell of saves."""
        if not self.saves.are_told:
            self.saved_steps = max(self.saved_steps, self.steps_before + step)
            self._unsaved.steps = True

    def settle_saves(self) -> None:
        """Takes the newest complete save as the one a later attempt goes on from; to be called after each change."""
        self.saved_steps = max(self.saves.newest_complete_step(), self.steps_before)
        self._unsaved.steps = self._unsaved.facts = True

    def leave_attempt(self) -> None:
        """Its processes are gone: what they did not complete nobody will, and what they have read is settled."""
        self.restored_steps = -1
        self.emergency = None
        self.saves.leave_attempt()
