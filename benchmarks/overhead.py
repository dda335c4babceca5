"""In-process overhead: what recording costs a training job, per collective and per step.

    python -m benchmarks.overhead [--torch-python PATH]... [--blocks N] [--json]

World size 1, gloo, pinned to one core: there a collective is as short as it gets and the cost is visible. Paired blocks
(off, on, off); the difference of the middle block to the mean of its neighbours, in microseconds, medians over blocks.
The A/A control is the same with "off" in the middle, and is subtracted. Every call measured "on" must afterwards be in
the ring with signature, bytes, start and, where completion is on, end; else the line is SHORT whatever it cost.
``--torch-python`` adds another interpreter (an older torch); ``--older`` makes one with torch 2.6 in a cache folder.
Each configuration runs in a process of its own (benchmarks/overhead_worker.py) under that interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Report

ROOT = Path(__file__).resolve().parents[1]
WORKER = ROOT / "benchmarks" / "overhead_worker.py"
OLDEST_TORCH = "2.6.0"

#: (writer, completion) -> microseconds over the A/A control that official hooks may cost per all_reduce.
ENTRY_BUDGET_US = {("c", False): 5.5, ("python", False): 10.0, ("c", True): 8.0, ("python", True): 14.0}
#: Times an empty BackendSelect hook, for torch without official hooks.
DISPATCH_BUDGET = {"c": 1.3, "python": 1.45}
STEP_BUDGET_US = 40.0
#: A step of 1 ms scatters by 5 % from block to block, as much as is to be measured: so many times the blocks.
STEP_BLOCKS = 2
TIMEOUT_S = 600


def run_worker(python: str, case: str, writer: str, completion: bool, blocks: int) -> dict[str, Any]:
    """Measure one case in a fresh process; the dict has "error" where it could not be measured."""
    with tempfile.TemporaryDirectory(prefix="whichrank-overhead-") as place:
        # The repository root is the package; any interpreter finds it under its name by this link.
        os.symlink(ROOT, Path(place) / "whichrank")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": place,
            "WHICHRANK_NATIVE": "1" if writer == "c" else "0",
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "WHICHRANK_LEVEL"):
            environment.pop(name, None)
        command = [python, str(WORKER), case, writer, "1" if completion else "0", str(blocks)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"error": str(error)[:200]}
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            return {"error": f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['no output'])[-1][:200]}"}
        result: dict[str, Any] = json.loads(lines[-1])
        return result


def spread(values: dict[str, float]) -> str:
    """Median with quartiles, for reading."""
    return f"{values['median']:.2f} [{values['low']:.2f}, {values['high']:.2f}]"


def report_tight(report: Report, python: str, label: str, blocks: int) -> bool:
    """Lines of the tight all_reduce loop; returns whether this torch has official hooks."""
    official = False
    for completion in (False, True):
        for writer in ("c", "python"):
            name = f"{label}: {'entry and completion' if completion else 'entry'}, {writer}"
            result = run_worker(python, "tight", writer, completion, blocks)
            if "error" in result:
                report.failed(name, result["error"])
                continue
            official = bool(result["official"])
            control = result["control"]["median"]
            cost = result["on"]["median"] - control
            if official:
                report.at_most(f"{name}, us per all_reduce", ENTRY_BUDGET_US[writer, completion], cost)
            elif not completion:
                empty = result["empty"]["median"] - control
                report.at_most(f"{name}, times an empty BackendSelect hook", DISPATCH_BUDGET[writer], cost / empty)
                report.shown("   empty BackendSelect hook, us", spread(result["empty"]))
            else:
                report.shown(f"{name}, us per all_reduce", f"{cost:.2f}")
            report.shown(
                "   on, control, base us", f"{spread(result['on'])}  {spread(result['control'])}  {result['base']:.1f}"
            )
            report.all_of("   calls in the ring, whole", result["found"], result["expected"])
    return official


def report_steps(report: Report, python: str, label: str, blocks: int) -> None:
    """Lines of steps and phases, and of real DDP and FSDP2 steps."""
    for writer in ("c", "python"):
        result = run_worker(python, "phases", writer, True, STEP_BLOCKS * blocks)
        name = f"{label}: steps and phases, {writer}, us per step"
        if "error" in result:
            report.failed(name, result["error"])
        else:
            report.at_most(name, STEP_BUDGET_US, result["on"]["median"] - result["control"]["median"])
            report.shown("   on, control us", f"{spread(result['on'])}  {spread(result['control'])}")
            report.all_of("   steps in the ring", result["found"], result["expected"])
    for case in ("ddp", "fsdp"):
        for writer in ("c", "python"):
            result = run_worker(python, case, writer, True, max(5, blocks // 2))
            name = f"{label}: {case.upper()} step, everything on, {writer}"
            if "unsupported" in result:
                report.shown(name, result["unsupported"])
            elif "error" in result:
                report.failed(name, result["error"])
            else:
                cost = result["on"]["median"] - result["control"]["median"]
                each = cost / max(1.0, result["collectives_per_step"])
                report.shown(
                    f"{name}, us per step",
                    f"{cost:.0f} of {result['base']:.0f} ({cost / result['base']:.1%}), {each:.1f} per collective "
                    f"of {result['collectives_per_step']:.0f}",
                )
                if result["collectives_per_step"]:
                    report.all_of("   calls in the ring, whole", result["found"], result["expected"])
                else:
                    report.shown("   calls in the ring", "none: with one rank this torch issues none here")


def make_older_python() -> str:
    """An interpreter with the oldest supported torch in a cache folder outside the repository; made once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "whichrank" / f"torch-{OLDEST_TORCH}"
    python = cache / "bin" / "python"
    if not (cache / ".complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(cache)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", f"torch=={OLDEST_TORCH}", "numpy<3"]
        subprocess.run(install, check=True)
        (cache / ".complete").touch()
    return str(python)


def find_older_python() -> str | None:
    """The environment that ``make test`` uses for the oldest torch, if it exists."""
    python = ROOT / ".venv-oldest" / "bin" / "python"
    return str(python) if python.exists() else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", action="append", default=[], help="another interpreter to measure as well")
    parser.add_argument("--older", action="store_true", help=f"make one with torch {OLDEST_TORCH} if there is none")
    parser.add_argument("--only", choices=("tight", "steps"), help="one part only")
    parser.add_argument("--blocks", type=int, default=41, help="paired blocks of each measurement")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    older = list(options.torch_python)
    if not older:
        found = find_older_python() or (make_older_python() if options.older else None)
        older = [found] if found else []
    report = Report("overhead in the training process, over the A/A control", as_json=options.json)
    for python in [sys.executable, *older]:
        version = subprocess.run(
            [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False
        ).stdout.strip()
        label = f"torch {version.partition('+')[0]}"
        if not version:
            report.failed(python, "has no torch")
            continue
        if options.only != "steps":
            report_tight(report, python, label, options.blocks)
        if options.only != "tight":
            report_steps(report, python, label, options.blocks)
    if not older:
        report.shown("torch without official hooks", "not measured: give --torch-python PATH or --older")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
