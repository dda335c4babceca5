"""Two ranks of a script without a launcher: torchrun would import torch once more and change nothing here."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.instrumentation.jobs import clean_environment

TIMEOUT_S = 300


def run_ranks(script: Path, *arguments: str, ranks: int = 2, expected: tuple[int, ...] = (0, 0)) -> list[str]:
    """Run all ranks to their end; their output by rank. Asserts their exit codes.

    When one ends otherwise than expected, the others are killed: they would wait for it.
    """
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place) / f"rank-{rank}.txt" for rank in range(ranks)]
        processes = []
        for rank, file in enumerate(files):
            with file.open("w") as output:
                environment = clean_environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
                command = [sys.executable, str(script), *arguments]
                processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
        until = time.monotonic() + TIMEOUT_S
        try:
            while any(process.poll() is None for process in processes) and time.monotonic() < until:
                codes = [process.returncode for process in processes]
                if any(code not in (None, wanted) for code, wanted in zip(codes, expected, strict=True)):
                    break
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        outputs = [file.read_text(errors="replace") for file in files]
    codes = [process.returncode for process in processes]
    assert codes == list(expected), "\n".join(output[-3000:] for output in outputs)
    return outputs
