"""The demo, as the README tells a newcomer to run it: is what it says right, and do its runs differ.

Two runs of plain ``whichrank demo``, whose fault, rank and step are drawn by chance, then one of each kind of fault.
The demo itself judges rank, kind and line, and says so with its exit status and its JSON.
Run: ``python -m benchmarks.demo_draws [--quick]``. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Report
from whichrank.commands.demo.command import SCENARIOS

DRAWN_RUNS = 2
TIMEOUT_S = 500


def run_demo(out: Path, scenario: str | None) -> tuple[int, dict[str, Any]]:
    """(exit status, what it printed as JSON, {} if nothing readable)."""
    command = [sys.executable, "-m", "whichrank.commands.main", "demo", "--json", "--out", str(out)]
    command += ["--scenario", scenario] if scenario else []
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
        return done.returncode, json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return -1, {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the drawn runs only")
    options = parser.parse_args()
    report = Report("whichrank demo: rank, kind and line of a fault that only the checker knows")
    kinds: list[str | None] = [None] * DRAWN_RUNS + ([] if options.quick else list(SCENARIOS))
    right, draws, delays_s = 0, [], []
    with tempfile.TemporaryDirectory(prefix="whichrank-demo-") as folder:
        for number, kind in enumerate(kinds):
            status, said = run_demo(Path(folder) / f"{number:02d}", kind)
            truth = said.get("truth") or {}
            ok = status == 0 and said.get("ok") is True
            right += ok
            seen_after_s = said.get("seen_after_s")
            delays_s += [seen_after_s] if seen_after_s is not None else []
            if kind is None:
                draws.append((said.get("scenario"), truth.get("rank"), truth.get("step")))
            what = f"{said.get('scenario', kind)} on rank {truth.get('rank')} at step {truth.get('step')}"
            told = f"seen after {seen_after_s:.2f} s" if seen_after_s is not None else "not seen"
            wrong = "; ".join(said.get("wrong") or ["no answer"])
            print(f"[{number + 1}/{len(kinds)}] {what}: {told}, {'right' if ok else wrong}", flush=True)
    report.all_of("runs with exit status 0: rank, kind and line right", right, len(kinds))
    report.all_of("drawn runs that differ from all others", len(set(draws)), DRAWN_RUNS)
    report.shown("seen after, longest, s", f"{max(delays_s):.2f}" if delays_s else "never")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
