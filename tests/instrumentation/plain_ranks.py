"""Two ranks of a script without a launcher: torchrun would import torch once more and change nothing here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.instrumentation.jobs import clean_environment


def run_ranks(script: Path, *arguments: str, ranks: int = 2, expected: tuple[int, ...] = (0, 0)) -> list[str]:
    """Run all ranks to their end; their output by rank. Asserts their exit codes; kills what does not end."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=clean_environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=600)[0])
    finally:
        for process in processes:
            process.kill()
    for process, output, code in zip(processes, outputs, expected, strict=True):
        assert process.returncode == code, output[-4000:]
    return outputs
