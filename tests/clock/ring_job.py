"""A job without torch: real processes with real rings that wait for each other through files. Not a test module.

usage: ring_job.py FOLDER FIRST-LAST WORLD STEPS [RANK@STEP]   starts those ranks; RANK stands still in STEP.

usage: ring_job.py FOLDER FIRST-LAST WORLD STEPS [RANK@STEP]: starts those ranks; RANK stands still in STEP.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.ring_layout import DEFINITION_ATTEMPT
from whichrank.telemetry.vocabulary import HookState, Level, Phase

STEP_S = 0.05
TOLD = "told"


def main() -> None:
    folder, ranks, world, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    fault = sys.argv[5] if len(sys.argv) > 5 else ""
    if "-" not in ranks:
        train(folder, int(ranks), world, steps, fault)
        return
    first, last = map(int, ranks.split("-"))
    command = [sys.executable, __file__, str(folder)]
    rest = [str(world), str(steps), fault]
    started = [subprocess.Popen([*command, str(rank), *rest]) for rank in range(first, last + 1)]
    sys.exit(max(process.wait() for process in started))


def train(folder: Path, rank: int, world: int, steps: int, fault: str) -> None:
    writer = RingWriter.create(
        Path(os.environ["WHICHRANK_DIR"]),
        rank=rank,
        local_rank=rank,
        world_size=world,
        identity={"launcher_pid": os.getppid(), "launcher_start_ticks": 7, "restart_count": 0, "host": "here"},
        slots=None,
    )
    ranks = f"0-{world - 1}"
    group = writer.define_group(
        {
            "name": "pg",
            "ranks": ranks,
            "size": world,
            "backend": "gloo",
            "ordinal": 0,
            "timeout_s": 600,
            "default": True,
        }
    )
    writer.define(DEFINITION_ATTEMPT, 0, {"token": "the token of rank 0"})
    writer.track_completion(True)
    hooks = HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED
    writer.set_level(Level.EVENTS, hooks)
    threading.Thread(target=beat, args=(writer,), daemon=True).start()
    for step in range(steps):
        if over(folder, step):
            break
        writer.set_phase(int(Phase.FORWARD))
        time.sleep(STEP_S)
        if fault == f"{rank}@{step}" or (fault == f"{rank}@{TOLD}" and (folder / TOLD).exists()):
            stand_still()
        call = writer.enqueue(group, 1, 4096, 6, -1, 0)
        meet(folder, rank, world, step)
        writer.complete(group, call, 0, 0)
        writer.set_phase(int(Phase.OTHER))
        writer.end_step(1.0, None, 0)
    writer.record_exit(1)


def over(folder: Path, step: int) -> bool:
    try:
        return step >= int((folder / "last-step").read_text())
    except FileNotFoundError:
        return False


def stand_still() -> None:
    while True:
        time.sleep(0.05)  # MARK: stands still here


def meet(folder: Path, rank: int, world: int, step: int) -> None:
    """An all_reduce of nothing: everybody is here, or nobody goes on."""
    (folder / f"{rank}.{step}").touch()
    while not all((folder / f"{other}.{step}").exists() for other in range(world)):
        time.sleep(0.005)


def beat(writer: RingWriter) -> None:
    while True:
        writer.beat()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
