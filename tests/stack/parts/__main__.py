"""Makes every part of the stack that is not there yet, one after the other, so that `make stack` finds them.

Where one cannot be made it says why and goes on. Exit status 1 then, unless only its tools are missing.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.stack.parts.go_programs import (
    ALERTMANAGER,
    COMPOSE,
    JAEGER,
    NFPM,
    NODE_EXPORTER,
    PROMETHEUS,
    SNMP_EXPORTER,
    VICTORIALOGS,
    GoProgram,
    built,
    built_collector,
)
from tests.stack.parts.kafka import kafka_classes
from tests.stack.parts.promtool import PROMTOOL

#: In the order in which tests need them: what the whole stack is made of first.
_PROGRAMS: tuple[GoProgram, ...] = (
    VICTORIALOGS,
    JAEGER,
    PROMETHEUS,
    PROMTOOL,
    COMPOSE,
    NODE_EXPORTER,
    SNMP_EXPORTER,
    ALERTMANAGER,
    NFPM,
)
PARTS: Mapping[str, Callable[[], Path]] = {
    "kafka": kafka_classes,
    "otelcol": built_collector,
    **{program.name: partial(built, program) for program in _PROGRAMS},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.parts", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"only these of {', '.join(PARTS)}")
    wanted = parser.parse_args().parts
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"{', '.join(unknown)}: no such part; there are {', '.join(PARTS)}")
    failed = 0
    for name in wanted or PARTS:
        make = PARTS[name]
        began_s, began_cpu_s = time.monotonic(), _cpu_s()
        try:
            make()
            took = f"{time.monotonic() - began_s:.0f} s, {_cpu_s() - began_cpu_s:.0f} s of CPU"
            print(f"{name}: there after {took}", flush=True)
        except pytest.skip.Exception as why:
            print(f"{name}: {why}", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError) as why:
            failed += 1
            print(f"{name}: {why}", flush=True)
    return min(failed, 1)


def _cpu_s() -> float:
    """Of all programs that were started here and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    sys.exit(main())
