"""What `whichrank diagnose kernel-log` costs: whole processes over logs of 100 MB, with few faults, with a fault in
every hundredth line, and of nothing but Xids.

Asked: 60 MB/s of processor time, beside the program's start, where there are few faults and where there is one again
and again; 64 MB of memory whatever the log; every fault read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.report import Report
from tests.diagnosis.kernel_log.cases import cases
from tests.diagnosis.kernel_log.harmless import harmless_lines
from whichrank.diagnosis.kernel_log.rules import event_rules

LOG_BYTES = 100_000_000
QUICK_BYTES = 10_000_000
LEAST_MB_PER_S = 60.0
#: Of a log in which every hundredth line is another fault.
LEAST_MB_PER_S_OF_FAULTS = 20.0
MOST_MEMORY_MB = 64
#: Lines apart from which the generator begins anew: making 100 MB of new lines would take longer than reading them.
DISTINCT = 50_000
#: The kinds that suppress repeats of their own, or wait for lines that do not come here, and those after which ordinary
#: lines tell of a recovery: so each fault is one event, and each event one of the faults.
LEFT_OUT = {
    *("kernel_panic", "gpu_off_the_bus", "kernel_oops", "hung_task", "nic_link_up", "oom_kill", "cgroup_oom_kill"),
    *(rule.after for rule in event_rules().values()),
}
#: The process in all of these lines; each fault is one of another process, for the end of one is told once.
PID = 4711


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 MB: a look, not a result")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    size = QUICK_BYTES if options.quick else LOG_BYTES
    report = Report("Reading kernel logs", as_json=options.json)
    logs: tuple[tuple[str, Callable[[], Iterator[tuple[str, bool]]], float], ...] = (
        ("few faults", lambda: with_faults(0.0002), LEAST_MB_PER_S),
        ("a fault in 100 lines", lambda: with_faults(0.01), LEAST_MB_PER_S_OF_FAULTS),
        ("nothing but Xids", xids, LEAST_MB_PER_S),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kern.log"
        path.write_text("")
        start_s = min(measure(path)[0] for _ in range(3))
        report.shown("start of the program, s of one core", f"{start_s:.2f}")
        for name, lines, least in logs:
            faults = write_log(path, size, lines())
            cpu_s, memory_mb, found = measure(path)
            # Processor time: other work on this machine says nothing about a core of its own.
            report.at_least(f"{name}: MB/s of one core", least, path.stat().st_size / 1e6 / (cpu_s - start_s))
            report.at_most(f"{name}: memory, MB", MOST_MEMORY_MB, memory_mb)
            report.at_least(f"{name}: faults read", faults, found, k=min(found, faults), n=faults)
    return report.finish()


def measure(path: Path) -> tuple[float, float, int]:
    """(processor seconds, peak memory in MB, events) of one process over the log."""
    command = [sys.executable, "-m", "whichrank.commands.main", "diagnose", "kernel-log", "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        document = json.load(process.stdout)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, document["events_read"]


def with_faults(share: float) -> Iterator[tuple[str, bool]]:
    """(line, whether it is a fault) without end."""
    draw = random.Random(3)
    ordinary = list(harmless_lines(DISTINCT))
    single = [case.line for case in cases() if case.event not in LEFT_OUT]
    number = faults = 0
    while True:
        is_fault = draw.random() < share
        faults += is_fault
        text = draw.choice(single).replace(str(PID), str(PID + faults)) if is_fault else ordinary[number % DISTINCT]
        yield f"[{number * 0.7:12.6f}] {text}\n", is_fault
        number += 1


def xids() -> Iterator[tuple[str, bool]]:
    """Eight GPUs that fail at once, some dozen lines a second."""
    draw = random.Random(4)
    at_s = 1000.0
    while True:
        at_s += draw.random() * 0.1
        bus, code = draw.randrange(8) * 16 + 0x1B, draw.choice((13, 31, 43, 45, 63, 79, 94))
        tail = f"pid={draw.randrange(8) + 4711}, name=python3, Ch {draw.randrange(4096):08x}, intr 00000000."
        yield f"[{at_s:12.6f}] NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, {tail}\n", True


def write_log(path: Path, size: int, lines: Iterator[tuple[str, bool]]) -> int:
    """How many faults there are in it."""
    faults = written = 0
    with path.open("w") as log:
        while written < size:
            line, is_fault = next(lines)
            faults += is_fault
            log.write(line)
            written += len(line)
    return faults


if __name__ == "__main__":
    sys.exit(main())
