"""Checkpoints near the job: into the node's memory at each save, to a partner node, and to storage that stays, now and
then. For training scripts: ``from whichrank.checkpoint import NearCheckpoints``. See docs/near-checkpoints.md.
"""

from __future__ import annotations

from .near_checkpoints import NearCheckpoints
from .outcomes import Restored, SaveOutcome

__all__ = ["NearCheckpoints", "Restored", "SaveOutcome"]
