"""``make bench``: every benchmark after the other, and one line for each at the end. Exit status 1 if one was SHORT.

Each runs in a process of its own, so that none pays for what another one left in memory.
Run: ``python -m benchmarks [--quick] [NAME...]``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_TORCH = ROOT / ".venv-oldest" / "bin" / "python"

#: name -> (arguments, arguments instead with --quick).
BENCHMARKS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "overhead": (("--torch-python", str(OLDEST_TORCH)) if OLDEST_TORCH.exists() else (), ("--blocks", "11")),
    "agent_cost": ((), ("--quick",)),
    "job_operator": ((), ("--jobs", "16")),
    "people_telemetry": ((), ("--quick",)),
    "cost_sheet": ((), ("--quick",)),
    "detectors": ((), ("--jobs", "50")),
    "demo_draws": ((), ("--quick",)),
    "harmless": ((), ("--quick",)),
    "diagnose_speed": ((), ("--quick",)),
    "diagnose_job_log": ((), ("--quick",)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="short measurements: a look, not a result")
    options = parser.parse_args(arguments)
    if unknown := set(options.name) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {' or '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    lines = []
    failed = False
    for name in options.name or BENCHMARKS:
        given = BENCHMARKS[name][1 if options.quick else 0]
        began_s = time.monotonic()
        status = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *given], cwd=ROOT, check=False).returncode
        failed |= status != 0
        lines.append(f"{name}: {'ok' if status == 0 else 'SHORT'} in {time.monotonic() - began_s:.0f} s")
    print("\n" + "\n".join(lines), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
