"""Tests beside processes that want the same cores: which fail, k of n.

    python -m tests.under_load [--runs 20] [--load 4] [--bar 0] [PYTEST WORDS ...]

Runs pytest over and over (default: ``tests/clock``) while ``--load`` processes compute without end, and prints *asked |
measured | k of n | ok or SHORT*; each test that failed is named with how often. No run is repeated or left out.
Exit status 1 where a run failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter

from tests.outside.table import Line, print_table

BUSY = "while True: pass"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.under_load", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", type=int, default=20, help="(20)")
    parser.add_argument("--load", type=int, default=4, help="processes that compute beside them (4)")
    asked, words = parser.parse_known_args()
    if asked.runs < 1 or asked.load < 0:
        parser.error("--runs at least 1, --load at least 0")
    words = words or ["tests/clock"]
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(asked.load)]
    failed: Counter[str] = Counter()
    right, seconds = 0, []
    try:
        for number in range(asked.runs):
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *words], capture_output=True, text=True, check=False
            )
            seconds.append(time.monotonic() - began)
            right += done.returncode == 0
            failed.update(_FAILED.findall(done.stdout))
            last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
            print(f"run {number + 1} of {asked.runs}: {last[0]}", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for name, times in failed.most_common():
        print(f"failed {times} of {asked.runs}: {name}")
    line = Line.of(f"runs without a failure beside {asked.load} busy processes", right, asked.runs, 1.0,
                   f"{sum(seconds) / len(seconds):.0f} s a run on {os.cpu_count()} cores")  # fmt: skip
    return print_table([line], f"Under load: {' '.join(words)}")


if __name__ == "__main__":
    raise SystemExit(main())
