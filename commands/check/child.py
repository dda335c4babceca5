"""The process of one probe: ``python -m whichrank.commands.check.child MODULE``, its setup as JSON on stdin."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import IO

from ...diagnosis.health_checks.outcome import CheckStatus
from ...telemetry.missing_packages import missing_package
from .child_messages import Begins, ChildMessage, Done, read_setup, write_message
from .finding import CheckFinding


class ParentPipe:
    """``Tell`` to the parent: a line each, at once."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def found(self, *findings: CheckFinding) -> None:
        """Writes each finding to the parent at once, in a line of its own."""
        for finding in findings:
            self.write(finding)

    def begins(self, what: str, stuck: CheckStatus = CheckStatus.UNKNOWN) -> None:
        """Tells the parent what is asked now, and what it means (``stuck``) if this process has to be left there."""
        self.write(Begins(what=what, stuck=stuck))

    def write(self, message: ChildMessage) -> None:
        """Writes a message as one line, at once. Raises OSError where the parent is gone."""
        self._out.write(write_message(message))
        self._out.flush()


def main(module: str) -> None:
    """Runs one module's check and ends the process, whatever its threads wait for. module: its name in this package."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no finding
    pipe = ParentPipe(out)
    setup = read_setup(sys.stdin.buffer.read())
    try:
        import_module(f".{module}", __package__).check(setup, pipe)
    except Exception as error:  # edge: drivers, mounts and files of /sys can do anything
        missing = missing_package(error)
        reason = f"the check itself failed: {type(error).__name__}: {error}"
        remedy = "report it with the output of whichrank check --json"
        if missing:
            reason, remedy = f"{missing} is not installed", "pip install 'whichrank[agent]'"
        for family in sorted(setup.families):
            pipe.found(
                CheckFinding(
                    family=family,
                    check="answer",
                    status=CheckStatus.UNKNOWN,
                    reason=reason,
                    remedy=remedy,
                )
            )
    pipe.write(Done())
    # Threads may sit in dead mounts, a driver's library in its own end: nothing of that is waited for.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
