"""A training of two ranks without torch: real processes, real rings, faults that pass or do not. Not a test module.

usage: ring_training.py FOLDER STEPS FAULT [RANK]. The launcher ends all ranks once one has failed. FAULT: kill, always
(an exit code at the same step each time), none, or slow, which trains until somebody ends it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.ring_layout import DEFINITION_ATTEMPT
from whichrank.telemetry.vocabulary import HookState, Level, Phase

RANKS, AT, STEP_S = 2, 10, 0.03


def main() -> None:
    folder, steps, fault = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if len(sys.argv) > 4:
        train(folder, steps, fault, int(sys.argv[4]))
        return
    number = len(list(folder.glob("attempt-*")))
    (folder / f"attempt-{number}").mkdir()
    command = [sys.executable, __file__, *sys.argv[1:4]]
    started = [
        subprocess.Popen([*command, str(rank)], env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(RANKS)
    ]
    while all(process.poll() is None for process in started):
        time.sleep(0.02)
    time.sleep(0.3)  # as launchers look now and then
    if any(process.poll() for process in started):
        for process in started:
            process.terminate()
    codes = [process.wait() for process in started]
    sys.exit(max(abs(code) for code in codes) and 1)


def train(folder: Path, steps: int, fault: str, rank: int) -> None:
    here = folder / f"attempt-{len(list(folder.glob('attempt-*'))) - 1}"
    writer = RingWriter.create(
        Path(os.environ["WHICHRANK_DIR"]),
        rank=rank,
        local_rank=rank,
        world_size=RANKS,
        identity={"restart_count": 0, "host": "here"},
        slots=None,
    )
    told = {"name": "pg", "ranks": "0-1", "size": RANKS, "backend": "gloo", "ordinal": 0, "timeout_s": 600}
    group = writer.define_group({**told, "default": True})
    writer.define(DEFINITION_ATTEMPT, 0, {"token": here.name})
    writer.track_completion(True)
    writer.set_level(Level.EVENTS, HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED | HookState.PHASES_HOOKED)
    threading.Thread(target=beat, args=(writer,), daemon=True).start()
    seen = folder / "run" / "capture"
    deadline = time.monotonic() + 10.0
    while not seen.exists() and time.monotonic() < deadline:  # of who ends before anybody looks, nobody knows how
        time.sleep(0.02)
    for step in range(steps):
        writer.set_phase(int(Phase.FORWARD))
        time.sleep(STEP_S)
        if step == AT and rank == 1:
            fail(fault, folder)
        call = writer.enqueue(group, 1, 4096, 6, -1, 0)
        (here / f"{rank}.{step}").touch()
        while not (here / f"{1 - rank}.{step}").exists():
            time.sleep(0.005)
        writer.complete(group, call, 0, 0)
        writer.set_phase(int(Phase.OTHER))
        writer.end_step(1.0, None, 0)
    writer.record_exit(1)


def fail(fault: str, folder: Path) -> None:
    happened = folder / "happened"
    if fault == "always":
        os._exit(3)
    if fault == "kill" and not happened.exists():
        happened.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def beat(writer: RingWriter) -> None:
    while True:
        writer.beat()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
