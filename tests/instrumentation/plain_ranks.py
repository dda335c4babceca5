"""Two ranks of a script without a launcher: torchrun would import torch once more and change nothing here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.instrumentation.jobs import clean_environment

TIMEOUT_S = 300
#: A rank that runs the script once per writer, in processes forked one after the other with torch imported once.
EACH_WRITER = """
import os, runpy, sys, torch, torch.distributed
script, directory, *writers = sys.argv[1:]
codes = set()
for writer in writers:
    pid = os.fork()
    if pid == 0:
        sys.argv = [script, os.path.join(directory, writer), writer]
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
sys.exit(codes.pop() if len(codes) == 1 else f"exit codes differ: {codes}")
"""


def run_with_each_writer(script: Path, directory: Path, *, expected: tuple[int, ...] = (0, 0)) -> list[str]:
    """Run ``script DIRECTORY/python python`` as two ranks, then ``script DIRECTORY/c c``; the output by rank."""
    writers = ("python", "c")
    for writer in writers:
        (directory / writer).mkdir()
    return run_ranks("-c", EACH_WRITER, str(script), str(directory), *writers, expected=expected)


def run_ranks(*arguments: str, ranks: int = 2, expected: tuple[int, ...] = (0, 0)) -> list[str]:
    """Run Python with these arguments as all ranks to their end; their output by rank. Asserts their exit codes.

    When one ends otherwise than expected, the others are killed: they would wait for it.
    """
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place) / f"rank-{rank}.txt" for rank in range(ranks)]
        processes = []
        for rank, file in enumerate(files):
            with file.open("w") as output:
                environment = clean_environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *arguments],
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        until = time.monotonic() + TIMEOUT_S
        try:
            while any(process.poll() is None for process in processes) and time.monotonic() < until:
                codes = [process.returncode for process in processes]
                if any(code not in (None, wanted) for code, wanted in zip(codes, expected, strict=True)):
                    break
                time.sleep(0.05)
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        outputs = [file.read_text(errors="replace") for file in files]
    codes = [process.returncode for process in processes]
    assert codes == list(expected), "\n".join(output[-3000:] for output in outputs)
    return outputs
