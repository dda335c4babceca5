"""Starts one process in a session of its own, and one that leaves it; writes down their pids. Not a test module.

usage: launcher.py FOLDER tame|stubborn|sleep: stubborn ones ignore SIGTERM. ``sleep`` is what it starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    folder, way = Path(sys.argv[1]), sys.argv[2]
    if way.startswith("sleep"):
        if way == "sleep-stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        time.sleep(600)
    elif way.startswith("leave"):
        subprocess.Popen([sys.executable, __file__, str(folder), way.replace("leave", "sleep")], start_new_session=True)
    else:
        launch(folder, way)


def launch(folder: Path, way: str) -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, str(folder), f"sleep-{way}"], start_new_session=True, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    leaving = subprocess.Popen([sys.executable, __file__, str(folder), f"leave-{way}"], stdout=subprocess.PIPE)
    assert leaving.stdout is not None
    left = int(leaving.stdout.readline())
    leaving.wait()

    def end(*_: object) -> None:
        (folder / "asked").touch()
        if way == "tame":
            child.terminate()
            sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    (folder / "pids.tmp").write_text(f"{child.pid} {left}")
    (folder / "pids.tmp").rename(folder / "pids")
    while True:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
