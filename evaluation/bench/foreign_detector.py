"""Somebody else's detector: a program that reads the folder of a run and writes its incidents; docs/faultbench.md."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from ...telemetry.incident import read_line

_MOST_BYTES = 256 << 20
_MOST_WORDS = 200


class DetectorFailed(Exception):
    """One line that says why there is nothing to score."""


class DetectorLate(DetectorFailed):
    """It had not ended in time."""


def detect(program: Path, run_folder: Path, out: Path, *, limit_s: float) -> list[bytes]:
    """Runs ``PROGRAM RUN_FOLDER OUT``, and gives the incidents that it wrote to OUT, a line of JSON each, in their
    order.

    limit_s: for the program. Raises DetectorLate when it has not ended by then, DetectorFailed for all else.
    """
    command = [str(program.resolve()), str(run_folder), str(out)]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise DetectorFailed(f"{program}: {error.strerror or error}") from error
    try:
        _, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise DetectorLate(f"{program}: not done after {limit_s:.0f} s") from None
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2][:_MOST_WORDS]
        raise DetectorFailed(f"{program}: ended with {process.returncode}: {last}")
    return _read(out)


def _read(out: Path) -> list[bytes]:
    try:
        if out.stat().st_size > _MOST_BYTES:
            raise DetectorFailed(f"{out.name}: more than {_MOST_BYTES >> 20} MiB")
        lines = out.read_bytes().splitlines()
    except OSError as error:
        raise DetectorFailed(f"{out.name}: {error.strerror or error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            read_line(line)
        except ValueError as error:
            raise DetectorFailed(f"{out.name}, line {number}: {error}") from error
    return lines
