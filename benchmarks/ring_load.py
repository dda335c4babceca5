"""Writer processes that load a ring directory like a training node: steps, phases, collectives with completion.

Each process is one rank with its own ring, written by the real writer at a fixed pace and with a heartbeat. Used by
``agent_cost``; never part of the product.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from whichrank.instrumentation.ring_writer import open_ring_writer
from whichrank.telemetry.vocabulary import HookState, Level, Op, Phase

#: Three groups per rank, as a job with data, tensor and default groups has.
GROUPS = ("default", "dp", "tp")
_BURST_HZ = 20
_HEARTBEAT_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Per rank: collectives and steps a second. Phases change six times a step."""

    ranks: int = 8
    collectives_per_s: int = 200
    steps_per_s: int = 10


def open_writer(directory: str, rank: int, load: Load, native: bool | None) -> tuple[Any, list[int]]:
    """A rank's ring with its groups, at the level of events."""
    writer = open_ring_writer(
        Path(directory),
        rank=rank,
        local_rank=rank,
        world_size=load.ranks,
        identity={"launcher_pid": os.getppid(), "launcher_start_ticks": 1, "restart_count": 0},
        native=native,
    )
    members = f"0-{load.ranks - 1}"
    groups = [
        writer.define_group(
            {
                "name": name,
                "ranks": members,
                "size": load.ranks,
                "backend": "gloo",
                "ordinal": place,
                "timeout_s": 1800,
                "default": place == 0,
            }
        )
        for place, name in enumerate(GROUPS)
    ]
    writer.track_completion(True)
    writer.set_level(Level.EVENTS, HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED)
    return writer, groups


def _write_rank(directory: str, rank: int, load: Load, stop: Event, native: bool | None) -> None:
    writer, groups = open_writer(directory, rank, load, native)
    per_burst = load.collectives_per_s // _BURST_HZ
    bursts_per_step = max(1, _BURST_HZ // load.steps_per_s)
    next_s = time.monotonic()
    burst = 0
    while not stop.is_set():
        if burst % bursts_per_step == 0:
            writer.set_phase(Phase.DATA)
            writer.set_phase(Phase.FORWARD)
        else:
            writer.set_phase(Phase.BACKWARD)
        for place in range(per_burst):
            group = groups[place % len(groups)]
            seq = writer.enqueue(group, Op.ALL_REDUCE, 1 << 20, 6, -1, 0)
            writer.complete(group, seq, 0, 0)
        burst += 1
        if burst % bursts_per_step == 0:
            writer.set_phase(Phase.OPTIMIZER)
            writer.end_step(1.0, 0.5, 0)
            writer.set_phase(Phase.OTHER)
        writer.beat()
        next_s += 1 / _BURST_HZ
        time.sleep(max(0.0, next_s - time.monotonic()))
    writer.record_exit(1)
    writer.close()


#: Ring directory, rank, load, when to stop, which recorder.
WriteRank = Callable[[str, int, Load, Event, "bool | None"], None]


class RingLoad:
    """Starts and stops the writers; ``stop`` returns once all have left."""

    def __init__(self, directory: Path, load: Load, native: bool | None = None, write: WriteRank | None = None) -> None:
        """write: what each rank's process does, the pace of ``Load`` if nothing else."""
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._processes: list[SpawnProcess] = [
            context.Process(
                target=write or _write_rank, args=(str(directory), rank, load, self._stop, native), daemon=True
            )
            for rank in range(load.ranks)
        ]
        for process in self._processes:
            process.start()

    def wait_for_rings(self, directory: Path, timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while len(list(directory.glob("*.ring"))) < len(self._processes):
            if time.monotonic() > deadline_s or any(process.exitcode is not None for process in self._processes):
                raise RuntimeError("ring writers did not start")
            time.sleep(0.05)

    def stop(self) -> None:
        self._stop.set()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
