"""Where in the training the attempts stand: ranks count their steps from 0 in each, a restart goes on from a save."""

from __future__ import annotations

import numpy as np

from ....telemetry.vocabulary import Phase
from .unsaved import Unsaved


class CheckpointState:
    """steps_before: steps of the training before the attempt's first one. saved_steps: in the newest checkpoint.

    by_place: steps of the training in each checkpoint. restored_steps: what the attempt has read of these before its
    first step, -1 none.
    """

    def __init__(self, unsaved: Unsaved) -> None:
        self._unsaved = unsaved
        self.steps_before = 0
        self.saved_steps = 0
        self.by_place: dict[str, int] = {}
        self.restored_steps = -1

    def note_saving(self, rows: np.ndarray) -> None:
        """Takes the newest of these steps in which a checkpoint was written as the one a later attempt goes on from.

        rows: STEPS (n,), n > 0.
        """
        saving_ns = rows["phase_ns"][:, int(Phase.CHECKPOINT)]
        if int(np.maximum.reduce(saving_ns)) > 0:  # asked of every message
            self.saved_steps = self.steps_before + int(rows["step"][saving_ns > 0].max())
            self._unsaved.steps = True
