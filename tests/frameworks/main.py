"""Runs every framework's job under ``whichrank run`` and prints what was seen of it: k of n, ok or SHORT.

    python tests/frameworks/run.py [NAME ...]

Each job trains on two ranks with gloo on the CPU and counts for itself, through the framework's own callbacks, what it
does (``jobs/truth.py``); whichrank's capture is compared with that. Exits with 1 when anything is short. Runs in the
environment with the frameworks (``make frameworks``); nothing is downloaded while the jobs run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .compare import COLUMNS, Comparison, Count, compare

JOBS = Path(__file__).parent / "jobs"
RANKS = 2
#: A job takes seconds; DeepSpeed builds an extension the first time.
PATIENCE_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    script: str
    arguments: tuple[str, ...] = ()


CATALOGUE = (
    Job(name="plain", script="torch_plain.py"),
    Job(name="turns", script="torch_gan.py"),
    Job(name="lightning-ddp", script="lightning_ddp.py"),
    Job(name="lightning-manual", script="lightning_manual.py"),
    Job(name="lightning-fsdp2", script="lightning_fsdp2.py"),
    Job(name="hf-trainer", script="hf_trainer.py"),
    Job(name="accelerate", script="accelerate_ddp.py"),
    Job(name="deepspeed-1", script="deepspeed_zero.py", arguments=("1",)),
    Job(name="deepspeed-2", script="deepspeed_zero.py", arguments=("2",)),
    Job(name="deepspeed-3", script="deepspeed_zero.py", arguments=("3",)),
    Job(name="megatron-dp", script="megatron_core.py", arguments=("dp",)),
    Job(name="megatron-pp", script="megatron_core.py", arguments=("pp",)),
    Job(name="torchtitan", script="torchtitan_fsdp2.py"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What whichrank sees of each framework, counted in real jobs.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only these: " + ", ".join(job.name for job in CATALOGUE)
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave runs and truths here")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    unknown = sorted(set(options.names) - {job.name for job in CATALOGUE})
    if unknown:
        parser.error(f"no such job: {', '.join(unknown)}")
    jobs = [job for job in CATALOGUE if not options.names or job.name in options.names]
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        results = [run(job, options.keep / job.name) for job in jobs]
    else:
        with tempfile.TemporaryDirectory(prefix="whichrank-frameworks-") as folder:
            results = [run(job, Path(folder) / job.name) for job in jobs]
    print_table(results)
    return 0 if all(result.ok for result in results) else 1


def run(job: Job, folder: Path) -> Comparison:
    """One job from its start to its comparison."""
    shutil.rmtree(folder, ignore_errors=True)
    truth, work, out = folder / "truth", folder / "work", folder / "out"
    truth.mkdir(parents=True)
    work.mkdir()
    programs = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")}
    environment |= {
        "FRAMEWORK_TRUTH": str(truth),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    began = time.monotonic()
    with (folder / "console.txt").open("wb") as console:
        process = subprocess.Popen(
            [
                *(str(programs / "whichrank"), "run", "--out", str(out), "--"),
                *(str(programs / "torchrun"), "--standalone", f"--nproc-per-node={RANKS}"),
                *(str(JOBS / job.script), *job.arguments),
            ],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:  # told to stop, too
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    comparison = compare(out, truth, RANKS)
    notes = list(comparison.notes)
    if code:
        last = (folder / "console.txt").read_text(errors="replace").strip().splitlines()[-12:]
        notes.append(f"exit code {code}: " + " / ".join(line.strip() for line in last))
    result = replace(comparison, framework=comparison.framework or job.name, notes=tuple(notes))
    print(f"{job.name}: {'ok' if result.ok else 'SHORT'} in {time.monotonic() - began:.0f} s", flush=True)
    for note in result.notes:
        print(f"  {note}", flush=True)
    return result


def print_table(results: list[Comparison]) -> None:
    """Both ranks' counts together, as a table for the README."""
    head = ["framework", "version", *COLUMNS, ""]
    rows = [
        [
            result.framework,
            result.versions.split(" ", 1)[-1],
            *(str(result.counts.get(column, Count())) for column in COLUMNS),
            "ok" if result.ok else "SHORT",
        ]
        for result in results
    ]
    print()
    for cells in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(cells) + " |")
    for result in results:
        if result.alone:
            print(
                f"{result.framework}: {result.alone} more collectives in groups of one rank, which are left out"
                " on purpose: nobody waits in them"
            )
    held = sum(result.ok for result in results)
    seen = sum(count.seen for result in results for count in result.counts.values())
    asked = sum(count.asked for result in results for count in result.counts.values())
    print(f"\n{held} of {len(results)} jobs ok; {seen} of {asked} things seen", flush=True)
