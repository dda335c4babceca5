"""What reading a whole kernel log costs: 100 MB of real-shaped lines of which 1 % are faults, on one core.

Asked: at most 10 s, bounded memory, and every fault read.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Report
from tests.diagnosis.kernel_log.cases import cases
from tests.diagnosis.kernel_log.harmless import harmless_lines
from whichrank.diagnosis.kernel_log import KernelLogReader
from whichrank.diagnosis.kernel_log.blocks import read_log

LOG_BYTES = 100_000_000
QUICK_BYTES = 10_000_000
FAULT_SHARE = 0.01
MOST_S_PER_BYTE = 10 / LOG_BYTES
MOST_MEMORY_MB = 100
#: Lines apart from which the generator begins anew: making 100 MB of new lines would take longer than reading them.
DISTINCT = 50_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 MB: a look, not a result")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    size = QUICK_BYTES if options.quick else LOG_BYTES
    report = Report("Reading logs", as_json=options.json)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kern.log"
        faults, lines = write_log(path, size)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        with path.open("rb") as stream:
            found = sum(1 for _ in read_log(KernelLogReader(), stream))
        cpu_s, wall_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
        # Processor time: other work on this machine says nothing about a core of its own.
        report.at_most(
            f"kernel log of {path.stat().st_size / 1e6:.0f} MB, s of one core", MOST_S_PER_BYTE * size, cpu_s
        )
        report.shown("wall clock, s", f"{wall_s:.1f}")
        report.at_most("memory it takes, MB", MOST_MEMORY_MB, grown_mb)
        report.at_least("faults read", faults, found, k=min(found, faults), n=faults)
        report.shown("lines", f"{lines:,}, {faults:,} of them faults")
    return report.finish()


def write_log(path: Path, size: int) -> tuple[int, int]:
    """(faults, lines). The kinds that suppress repeats of their own are left out."""
    draw = random.Random(3)
    ordinary = list(harmless_lines(DISTINCT))
    single = [case.line for case in cases() if case.event not in ("kernel_panic", "gpu_off_the_bus", "kernel_oops")]
    faults = lines = written = 0
    with path.open("w") as log:
        while written < size:
            is_fault = draw.random() < FAULT_SHARE
            faults += is_fault
            text = draw.choice(single) if is_fault else ordinary[lines % DISTINCT]
            line = f"[{lines * 0.7:12.6f}] {text}\n"
            log.write(line)
            written += len(line)
            lines += 1
    return faults, lines


if __name__ == "__main__":
    sys.exit(main())
