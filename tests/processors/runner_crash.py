"""A whichrank that dies by kill -9 at a chosen step of a commit.

``python -m tests.processors.runner_crash DIR STEP N`` reads DIR/capture with the example operators, keeps
DIR/state.sqlite and appends outputs to DIR/outputs. STEP is where to die, N at which pass through it; 0 is never.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processors.runner_examples import Clock, make_operators, open_bus, output_line
from whichrank.processors.commit_pace import CommitPace
from whichrank.processors.runner import EmbeddedRunner
from whichrank.processors.runner_outputs import OncePerRevision
from whichrank.processors.runner_state import RunnerState
from whichrank.telemetry.incident import read_line
from whichrank.telemetry.records import Incident, Record
from whichrank.transport.embedded import EmbeddedBus

#: (class, method, before or after it)
STEPS: dict[str, tuple[type, str, str]] = {
    "before commit": (RunnerState, "commit", "before"),
    "in the transaction": (RunnerState, "_write", "after"),
    "after commit": (RunnerState, "commit", "after"),
    "before append": (EmbeddedBus, "append", "before"),
    "after append": (EmbeddedBus, "append", "after"),
    "before forgetting": (RunnerState, "forget_outputs", "before"),
    "after forgetting": (RunnerState, "forget_outputs", "after"),
    "before output": (OncePerRevision, "__call__", "before"),
    "after output": (OncePerRevision, "__call__", "after"),
}


def die_at(step: str, passes: int) -> None:
    owner, name, when = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)
    count = 0

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if when == "before" and count == passes:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if when == "after" and count == passes:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


def main(directory: Path, step: str, passes: int) -> None:
    if passes:
        die_at(step, passes)
    path = directory / "outputs"
    seen = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        topic, _, document = line.partition(b" ")
        if topic == b"whichrank.incidents":
            fields = read_loosely(document)
            seen.append((fields["id"], fields["revision"]))
    outputs = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def consume(record: Record) -> None:
        if isinstance(record.payload, Incident):
            os.write(outputs, output_line(record))

    bus = open_bus(directory / "capture", Clock())
    runner = EmbeddedRunner(
        bus,
        directory / "state.sqlite",
        make_operators(),
        OncePerRevision(consume, seen),
        live=True,
        pace=CommitPace(0.0, 0.0),
    )
    runner.drain()
    runner.close()
    bus.close()


def read_loosely(line: bytes) -> dict[str, Any]:
    """The example's documents hold only what its tests look at."""
    try:
        return read_line(line)
    except ValueError:
        return dict(json.loads(line))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
