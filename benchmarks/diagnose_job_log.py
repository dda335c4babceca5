"""How fast job logs are read: the logs of eight ranks, in each mix of lines that ``job_log_lines`` has.

``python -m benchmarks.diagnose_job_log [--quick] [--megabytes N]`` writes them into a temporary folder, and reads them
in a process of its own: megabytes for a second of processor time, and the most memory it had. Asked: 150 MB/s, and no
more memory than for kernel logs.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job_log_lines import MIXES, lines
from benchmarks.report import Report

LEAST_MB_PER_S = 150.0
MOST_MEMORY_MB = 64
MEGABYTES = 512
QUICK_MEGABYTES = 64
RANKS = 8


@dataclass(frozen=True, slots=True)
class Measured:
    cpu_s: float
    lines: int
    #: Of the first rank's lines, those that hold a word of trouble: the others pass by unread.
    share_with_a_word: float
    statements: int
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MEGABYTES} MB: a look, not a result")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        read_logs(options.read)
        return 0
    megabytes = QUICK_MEGABYTES if options.quick else options.megabytes
    report = Report("Reading job logs", as_json=options.json)
    for mix in MIXES:
        name = mix.replace("_", " ")
        found = measure(mix, megabytes * 1_000_000)
        report.shown(f"{name}: lines with a word of trouble", f"{found.share_with_a_word:.1%} of {found.lines:,}")
        report.shown(f"{name}: different statements", f"{found.statements:,}")
        # Processor time: other work on this machine says nothing about a core of its own.
        report.at_least(f"{name}: MB/s of one core", LEAST_MB_PER_S, megabytes / found.cpu_s)
        report.at_most(f"{name}: memory, MB", MOST_MEMORY_MB, found.peak_mb)
    return report.finish()


def measure(mix: str, size_bytes: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        write_logs(Path(name), size_bytes, mix)
        command = [sys.executable, "-m", "benchmarks.diagnose_job_log", "--read", name]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Measured(float(answer[0]), int(answer[1]), float(answer[2]), int(answer[3]), int(answer[4]) / 1024)


def write_logs(folder: Path, size_bytes: int, mix: str) -> None:
    for rank in range(RANKS):
        with (folder / f"rank_{rank}.log").open("w") as file:
            file.writelines(lines(rank, size_bytes // RANKS, rank, mix))


def read_logs(folder: Path) -> None:
    """In the measured process: prints CPU seconds, lines, the share of them that has a word, statements, peak KiB."""
    from whichrank.diagnosis.job_log.job_log_reader import LogSource, read_job_logs, whose

    paths = sorted(folder.glob("*.log"))

    def sources() -> Iterator[LogSource]:
        for path in paths:
            with path.open("rb") as file:
                yield LogSource(name=path.name, file=file, rank=whose(path.name)[0])

    began_s = time.process_time()
    found = read_job_logs(sources())
    cpu_s = time.process_time() - began_s
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    statements = sum(len(episode.groups) for episode in found.episodes)
    print(cpu_s, found.lines, share_with_a_word(paths[0]), statements, peak_kib)


def share_with_a_word(path: Path) -> float:
    import numpy as np

    from whichrank.diagnosis.job_log.job_log_reader import gate
    from whichrank.diagnosis.job_log.log_scan import chunks

    count = with_a_word = 0
    with path.open("rb") as file:
        for chunk in chunks(file):
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            count += len(ends)
            with_a_word += len(np.unique(np.searchsorted(ends, gate().positions(chunk))))
    return with_a_word / count


if __name__ == "__main__":
    sys.exit(main())
