"""A job that is started for a game day: ``whichrank run`` as its user would start it, with leave to inject faults."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ...telemetry.injection_words import ALLOW_VARIABLE
from ..run_folder.run_directory import RunDirectory, Unusable
from ..support.end_of_run import end_run
from .target_job import TargetJob

LOOK_S = 0.2


class OwnRun:
    """out: the run's folder; None: a new one below whichrank-out. quiet: stdout stays free."""

    def __init__(self, command: Sequence[str], out: Path | None, *, quiet: bool) -> None:
        self.out = out or Path("whichrank-out") / f"{time.strftime('%Y%m%d-%H%M%S')}-inject-{secrets.token_hex(2)}"
        program = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(self.out), "--"]
        self._child = subprocess.Popen(
            [*program, *command],
            env={**os.environ, ALLOW_VARIABLE: "1"},
            stdout=sys.stderr if quiet else None,
        )

    def find_rings(self, until_s: float) -> Path:
        """The job's ring folder, once it is there. until_s: monotonic. Raises Unusable where none comes."""
        why = f"{self.out}: no job has begun"
        while time.monotonic() < until_s and not self.has_ended():
            time.sleep(LOOK_S)
            try:
                rings = RunDirectory(self.out).read_run().ring_directory
                if rings:
                    return Path(rings)
            except Unusable as error:
                why = str(error)
        raise Unusable(f"the command has ended before a fault could be injected: {why}" if self.has_ended() else why)

    def has_ended(self) -> bool:
        """Whether ``whichrank run`` is over."""
        return self._child.poll() is not None

    def end(self, job: TargetJob | None) -> None:
        """Ends it in bounded time; of a job whose ranks are known they are killed where they heed no SIGTERM."""

        def free() -> None:
            for rank in job.ranks.values() if job is not None else ():
                rank.process.send(signal.SIGKILL)

        end_run(self._child, free)
