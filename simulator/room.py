"""The room of the shared file system: what checkpoints take of it, and which writes find none.

Each job keeps its newest whole checkpoint; the one before goes when the next one is whole. Pieces of those that failed
stay where they are, as they do in life until somebody tidies up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import user_frames
from .live_steps import saves_of
from .resources import ParameterChange, Resources
from .simulated_attempt import SimulatedAttempt

Floats = NDArray[np.float64]
#: Until a write that finds no room at all has come back with its error.
_REFUSED_AFTER_S = 0.02
#: What the system says: of the file system, and of the quota.
_NO_SPACE = "[Errno 28] No space left on device"
_NO_QUOTA = "[Errno 122] Disk quota exceeded"


class Room:
    """What checkpoints take of the shared file system. Call ``changed`` for each change of a resource, ``serve`` for
    each attempt in each window.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        #: Taken since room and quota were last changed.
        self._taken = {"room_bytes": 0.0, "quota_bytes": 0.0}
        self._kept: dict[str, float] = {}  # by job, the bytes of its newest whole checkpoint
        self._seen: set[tuple[str, int, int]] = set()

    def changed(self, change: ParameterChange) -> None:
        """To be called for each change: where room or quota was set anew, what has been taken counts from there."""
        if change.family == "filesystem":
            self._taken[change.name] = 0.0

    def left(self, name: str) -> float:
        """Bytes left of "room_bytes" or "quota_bytes"."""
        return max(0.0, float(self._resources.of("filesystem", name)[0]) - self._taken[name])

    def serve(self, job: str, attempt: SimulatedAttempt, bytes_per_rank: float, until_s: float) -> None:
        """Takes room for the checkpoints that the attempt has begun to write by ``until_s``; where there is none, ranks
        raise.

        Each checkpoint is served once.
        """
        for live in attempt.steps.live:
            key = (job, attempt.number, live.step)
            if key in self._seen:
                continue
            began_s, ended_s = saves_of(live)
            if float(began_s.min()) > until_s:
                continue
            self._seen.add(key)
            message, full_s = self._write(job, began_s, ended_s, bytes_per_rank)
            if message:
                late = full_s < ended_s
                ranks = np.flatnonzero(late)
                when_s = np.maximum(full_s, began_s[late] + _REFUSED_AFTER_S)
                folder = f"/data/checkpoints/{job}/step-{attempt.steps_before + live.step}"
                frames = user_frames("save_checkpoint", 203)
                attempt.raise_in(ranks, when_s, "OSError", f"{message}: '{folder}'", frames, is_victim=False)

    def _write(self, job: str, began_s: Floats, ended_s: Floats, bytes_per_rank: float) -> tuple[str, float]:
        """What the system says of it ("" nothing), and from when on there is no room."""
        asked = bytes_per_rank * began_s.size
        scarcest = min(self._taken, key=self.left)
        left = self.left(scarcest)
        if asked <= left:
            for name in self._taken:
                self._taken[name] += asked - self._kept.get(job, 0.0)
            self._kept[job] = asked
            return "", np.inf
        for name in self._taken:
            self._taken[name] += left
        begin_s, end_s = float(began_s.min()), float(ended_s.max())
        message = _NO_SPACE if scarcest == "room_bytes" else _NO_QUOTA
        return message, begin_s + (end_s - begin_s) * left / asked if np.isfinite(end_s) else begin_s
