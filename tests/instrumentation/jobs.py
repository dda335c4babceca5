"""Real torchrun jobs for tests: a script text, a number of ranks, and the rings they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import whichrank
from tests.instrumentation.ring_contents import RingContents, read_rings

BOOTSTRAP = Path(whichrank.__file__).parent / "instrumentation" / "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job left behind."""

    exit_code: int
    output: str
    rings: list[RingContents]
    directory: Path


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment with one thread per library and ``changes``."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **changes}


def run_python(
    source: str,
    directory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> JobResult:
    """Run a script in one plain process."""
    script = directory / "script.py"
    script.write_text(source)
    return _run([sys.executable, str(script), *arguments], directory, timeout_s, environment or {})


def run_job(
    source: str,
    directory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    ranks: int = 2,
    watched: bool = True,
    timeout_s: float = 180,
) -> JobResult:
    """Run a script under torchrun; ``watched`` starts the recording without the script's doing."""
    script = directory / "script.py"
    script.write_text(source)
    changes = dict(environment or {})
    if watched:
        changes = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(BOOTSTRAP), os.environ.get("PYTHONPATH", "")])),
            "WHICHRANK_AUTO": "1",
            **changes,
        }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return _run([*command, str(script), *arguments], directory, timeout_s, changes)


def _run(command: list[str], directory: Path, timeout_s: float, environment: Mapping[str, str]) -> JobResult:
    rings = directory / "rings"
    rings.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        command,
        cwd=directory,
        env=clean_environment(**{"WHICHRANK_DIR": str(rings), **environment}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return JobResult(exit_code=done.returncode, output=done.stdout, rings=read_rings(rings), directory=directory)
