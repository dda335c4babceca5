"""Faults that the rank itself does: asked for by a file in its ring folder, answered by another one."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path

from ...agents.user_files.user_files import open_own
from ...telemetry.injection_words import ANSWER_FILE, MAX_FILE_BYTES, REQUEST_FILE, InsideFault


class InsideRankFault:
    """seconds: so long the rank may take until it is at the place where the fault belongs."""

    def __init__(self, rings: Path, rank: int, kind: InsideFault, seconds: float) -> None:
        self.done_s: float | None = None
        self.step = -1
        self._rings, self._rank, self._kind, self._seconds = rings, rank, kind, seconds
        self._id = secrets.token_hex(8)

    def begin(self) -> None:
        """Puts the request into the ring folder."""
        request = {
            "id": self._id,
            "kind": self._kind.value,
            "rank": self._rank,
            "until_s": time.time() + self._seconds,
        }
        part = self._rings / f".{REQUEST_FILE}.{os.getpid()}"
        part.write_text(json.dumps(request), encoding="utf-8")
        part.replace(self._rings / REQUEST_FILE)

    def tend(self) -> None:
        """Looks whether the rank has done it."""
        if self.done_s is not None:
            return
        try:
            descriptor = open_own(self._rings / ANSWER_FILE)
        except OSError:
            return
        try:
            said = json.loads(os.read(descriptor, MAX_FILE_BYTES))
            if said["id"] == self._id:
                self.step, self.done_s = int(said["step"]), float(said["time"])
        except (ValueError, KeyError, TypeError):
            return
        finally:
            os.close(descriptor)

    def halt(self) -> None:
        """Looks a last time."""
        self.tend()

    def undo(self) -> None:
        """Takes the request back; what was done stays done."""
        for name in (REQUEST_FILE, ANSWER_FILE):
            (self._rings / name).unlink(missing_ok=True)
