"""Tests beside processes that want the same cores: which fail, k of n.

    python -m tests.under_load [--runs 20] [--load 4] [--make TARGET | PYTEST WORDS ...]

Runs pytest (default: ``tests/clock``), or a target of make, over and over at a load of ``--load``: what others do on
the machine counts; as long as that is less, up to as many processes compute without end. Prints *asked | measured |
k of n | ok or SHORT*; each test that failed is named with how often, and what it printed is in build/under-load/N.log.
No run is repeated or left out.
Exit status 1 where a run failed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.outside.table import Line, print_table

BUSY = "while True: pass"
#: What runs that failed have printed.
KEPT = Path("build/under-load")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
#: Between two looks at the load; the kernel's own figure is a mean of the last minute, and follows so slowly.
_LOOK_S = 5.0


class Load:
    """Keeps the load of the machine at least at ``least``, in a thread; ``seen``: the load at each look."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._busy: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()
        self.seen: list[float] = []
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        while self.seen[-1:] < [float(self._least)] and self._least:  # so that the first run has it, too
            time.sleep(1.0)
        self.seen.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for process in self._busy:
            process.kill()
            process.wait()

    def _keep(self) -> None:
        while not self._ended.is_set():
            load = os.getloadavg()[0]
            self.seen.append(load)
            if load < self._least + 0.3 and len(self._busy) < self._least:
                self._busy.append(subprocess.Popen([sys.executable, "-c", BUSY]))
            elif load > self._least + 1.5 and self._busy:
                process = self._busy.pop()
                process.kill()
                process.wait()
            self._ended.wait(_LOOK_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.under_load", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", type=int, default=20, help="(20)")
    parser.add_argument("--load", type=int, default=4, help="of the machine, at least (4)")
    parser.add_argument("--make", help="a target of make in place of pytest")
    asked, words = parser.parse_known_args()
    if asked.runs < 1 or asked.load < 0:
        parser.error("--runs at least 1, --load at least 0")
    words = words or ["tests/clock"]
    command = ["make", "-k", asked.make] if asked.make else [sys.executable, "-m", "pytest", "-q", *words]
    failed: Counter[str] = Counter()
    right, seconds = 0, []
    with Load(asked.load) as load:
        for number in range(asked.runs):
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds.append(time.monotonic() - began)
            right += done.returncode == 0
            names = _FAILED.findall(done.stdout)
            failed.update(names)
            last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
            print(
                f"run {number + 1} of {asked.runs}: {last[0]}, after {seconds[-1]:.0f} s",
                *names,
                sep="\n  ",
                flush=True,
            )
            if done.returncode:
                KEPT.mkdir(parents=True, exist_ok=True)
                (KEPT / f"{number + 1}.log").write_text(done.stdout + done.stderr)
    for name, times in failed.most_common():
        print(f"failed {times} of {asked.runs}: {name}")
    seen = f"load {min(load.seen):.1f} to {max(load.seen):.1f}, median {statistics.median(load.seen):.1f}"
    line = Line.of(f"runs without a failure at a load of {asked.load}", right, asked.runs, 1.0,
                   f"{seen}, {statistics.median(seconds):.0f} s a run on {os.cpu_count()} cores")  # fmt: skip
    return print_table([line], f"Under load: {' '.join(command)}")


if __name__ == "__main__":
    raise SystemExit(main())
