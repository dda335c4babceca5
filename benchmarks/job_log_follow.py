"""What following ranks' logs costs: 16 logs of 200 lines a second each, of which 1 % speak of trouble, for a minute.

``python -m benchmarks.job_log_follow [--files N] [--rate N] [--seconds N]`` writes each second's lines, takes one look
as the agent does, and prints the CPU time of the looks as a share of one core. Nothing waits: seconds are simulated.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from benchmarks.job_log_lines import SHARE_OF_TROUBLE, lines
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.job_log_events import JobLogEvents
from whichrank.agents.collectors.logs.job_logs import JobLogsCollector
from whichrank.agents.collectors.processes.job_process import JobProcess

S = 1_000_000_000
#: Enough of the generator's lines for one file's second.
BYTES_PER_LINE = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rate", type=int, default=200, help="lines per second of each file")
    parser.add_argument("--seconds", type=int, default=60)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        looks_s, told, size = follow(Path(folder), asked.files, asked.rate, asked.seconds)
    print(
        f"{asked.files} logs, {asked.rate} lines/s each ({size / asked.seconds / 1e3:.0f} kB/s, {SHARE_OF_TROUBLE:.0%} "
        f"trouble): {sum(looks_s) / asked.seconds:.2%} of one core; longest look {max(looks_s) * 1e3:.0f} ms (one "
        f"compiles the rules), median {sorted(looks_s)[len(looks_s) // 2] * 1e3:.0f} ms; "
        f"{told / asked.files / asked.seconds * 60:.1f} events per rank and minute"
    )


def follow(folder: Path, files: int, rate: int, seconds: int) -> tuple[list[float], int, int]:
    """(CPU seconds of each look, events, bytes)."""
    ranks = [JobProcess(pid=1000 + rank, job="j", rank=rank) for rank in range(files)]
    paths = [folder / f"rank_{rank}.log" for rank in range(files)]
    for path in paths:
        path.touch()
    events = JobLogEvents(lambda: ranks)
    collector = JobLogsCollector(events, patterns=[f"{folder}/*.log"], flush=events.flush)
    wall_ns = time.time_ns()
    collector.collect(Timestamps(wall_ns=wall_ns, mono_ns=S))
    draw = random.Random(1)
    looks_s: list[float] = []
    told = size = 0
    for second in range(1, seconds + 1):
        for rank, path in enumerate(paths):
            written = list(lines(rank, rate * BYTES_PER_LINE, draw.randrange(1 << 30)))[:rate]
            with open(path, "a") as file:
                size += file.write("".join(written))
        begun_s = time.thread_time()
        seen = collector.collect(Timestamps(wall_ns=wall_ns + second * S, mono_ns=(second + 1) * S))
        looks_s.append(time.thread_time() - begun_s)
        told += len(seen.happenings)
    collector.close()
    return looks_s, told, size


if __name__ == "__main__":
    main()
