"""A GPU collector in a process of its own, beside a played node: it does what it is told, and says what it cost.

The dynamic loader chooses ``libnvidia-ml.so.1`` when a process starts, so every profile needs a new one. Run as a
script it is that process: pickled commands on its input, pickled answers on its output.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichrank.agents.collectors.base.collector import Collected, NodeEvent, Timestamps
from whichrank.telemetry.records import Point

_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    resident_bytes: int


class Blocked(Exception):
    """The collector's process did not answer in time."""


class Raised(Exception):
    """The collector raised."""


class CollectingProcess:
    """``with CollectingProcess(played.environment()) as gpus: gpus.collect()``. It is killed at the end."""

    def __init__(
        self, environment: Mapping[str, str], proc: Path = Path("/proc"), sys_folder: Path = Path("/sys")
    ) -> None:
        paths = (environment.get("PYTHONPATH"), str(_REPOSITORY))
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(proc), str(sys_folder)],
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> CollectingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def collect(self, later_s: float = 0.0, timeout_s: float = 30.0) -> Collected:
        """later_s: how far its clock is ahead of the real one."""
        answer = self._ask(("collect", later_s), timeout_s)
        assert isinstance(answer, Collected)
        return answer

    def wait(self, seconds: float, timeout_s: float = 30.0) -> Collected:
        answer = self._ask(("wait", seconds), timeout_s)
        assert isinstance(answer, Collected)
        return answer

    def start_wait(self, seconds: float) -> None:
        self._send(("wait", seconds))

    def cost(self) -> Cost:
        answer = self._ask(("cost", 0.0), 30.0)
        assert isinstance(answer, Cost)
        return answer

    def collected(self) -> Collected:
        """The answer to ``start_wait``, or to a ``collect`` that was blocked."""
        answer = self.answer(30.0)
        assert isinstance(answer, Collected)
        return answer

    def answer(self, timeout_s: float) -> object:
        """Of the command that was sent last. Raises Blocked, or Raised."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        if not ready:
            raise Blocked
        answer = pickle.load(self.process.stdout)
        if isinstance(answer, str):
            raise Raised(answer)
        return answer

    def _ask(self, command: tuple[str, float], timeout_s: float) -> object:
        self._send(command)
        return self.answer(timeout_s)

    def _send(self, command: tuple[str, float]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(pickle.dumps(command))


def values_of(collected: Collected, metric: str, **labels: str) -> dict[str, float]:
    """Values of a metric by ``hw.id``; of labels with a dot in their name give ``hw__type="gpu"``."""
    wanted = {key.replace("__", "."): value for key, value in labels.items()}
    found: dict[str, float] = {}
    for point in collected.points:
        if point.name == metric and all(point.attributes.get(key) == value for key, value in wanted.items()):
            assert point.attributes["hw.id"] not in found, f"two points: {point}"
            found[point.attributes["hw.id"]] = point.value
    return found


def happenings_of(collected: Collected, event: str) -> list[NodeEvent]:
    return [happening for happening in collected.happenings if happening.attributes.get("event") == event]


def attributes_by_metric(points: list[Point]) -> dict[str, set[frozenset[str]]]:
    found: dict[str, set[frozenset[str]]] = {}
    for point in points:
        found.setdefault(point.name, set()).add(frozenset(point.attributes))
    return found


def serve(proc: Path, sys_folder: Path) -> None:
    from whichrank.agents.collectors.gpu.which_maker import make_gpu_collector

    collector = make_gpu_collector(proc, sys_folder)
    commands, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            what, number = pickle.load(commands)
        except EOFError:
            return
        answer: Any
        try:
            if what == "collect":
                ahead_ns = int(number * 1e9)
                moment = Timestamps(wall_ns=time.time_ns() + ahead_ns, mono_ns=time.monotonic_ns() + ahead_ns)
                answer = collector.collect(moment)
            elif what == "wait":
                answer = collector.wait(number)
            else:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                answer = Cost(time.process_time(), pages * os.sysconf("SC_PAGE_SIZE"))
        except Exception as error:  # whatever it raises is the test's to judge
            answer = f"{type(error).__name__}: {error}"
        answers.write(pickle.dumps(answer))
        answers.flush()


if __name__ == "__main__":
    # Under its own name: what is pickled here is read there.
    from tests.played_gpu import collecting

    collecting.serve(Path(sys.argv[1]), Path(sys.argv[2]))
