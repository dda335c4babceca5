"""How fast job logs are read: 1 GB of lines in the shapes of the field, of which 1 % speak of trouble, on one core.

``python -m benchmarks.diagnose_job_log [--quick] [--megabytes N]`` writes the logs of several ranks into a temporary
folder, reads them in a process of its own, and prints seconds, rate, and that process's peak of memory.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ASKED_S_PER_GB = 60.0
SHARE_OF_TROUBLE = 0.01
RANKS = 8
#: {n} a counter, {r} a rank, {x} and {y} random numbers.
ORDINARY = (
    "{r}: [2026-03-04 11:{m:02d}:{s:02d}] iteration {n:8d}/ 1000000 | consumed samples: {x:12d} | elapsed time per "
    "iteration (ms): {y}.1 | learning rate: 1.5E-04 | global batch size: 512 | lm loss: 2.{y}E+00 | loss scale: 1.0 | "
    "grad norm: 0.{y} | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "[rank{r}]:[titan] 2026-03-04 11:{m:02d}:{s:02d},{y} - root - INFO - step: {n}  loss: 2.{y}  memory: 61.2GiB(76%)  "
    "tps: {x}  mfu: 41.2%",
    "node-{r}:2211:2{y} [{r}] NCCL INFO Channel {y}/0 : {r}[{r}] -> 5[5] [send] via NET/IB/3/GDRDMA",
    "{{'loss': 1.{y}, 'grad_norm': 0.{y}, 'learning_rate': 1e-05, 'epoch': 0.{y}}}",
    " 45%|####      | {n}/1000000 [00:{m:02d}<00:{s:02d}, 4.{y}it/s, v_num={y}]",
    "(RayWorkerWrapper pid={x}) INFO 03-04 11:{m:02d}:{s:02d} model_runner.py:1024] Graph capturing batch size {y}",
    "2026-03-04T11:{m:02d}:{s:02d}.{y}Z stdout F time={n} level=info msg=\"prefetched shard {x}\" queue={y}",
    "11:{m:02d}:{s:02d}.{y} | DEBUG | data.loader:fetch:{y} - shard-{x:08d}.tar: 4096 samples, 12 workers, epoch {y}",
)  # fmt: skip
TROUBLE = (
    "[rank{r}]:[E304 11:{m:02d}:{s:02d}.{y} ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, NumelIn={x}, Timeout(ms)=600000) ran for 600{y} milliseconds",
    "[rank{r}]: RuntimeError: CUDA error: an illegal memory access was encountered at {x}",
    "{r}: WARNING: could not read sample {x}, error 5, retrying in 2 s",
    "[W304 11:{m:02d}:{s:02d} TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd={y}): reset by peer {x}",
    "2026-03-04 11:{m:02d}:{s:02d} ERROR checkpoint.writer: shard {x} could not be written: timed out",
    "slurmstepd: error: Detected {y} oom_kill events in StepId={x}.0. Some of the step tasks have been OOM Killed.",
)


def lines(rank: int, size_bytes: int, seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    written = 0
    counter = 0
    while written < size_bytes:
        counter += 1
        kinds = TROUBLE if draw.random() < SHARE_OF_TROUBLE else ORDINARY
        line = draw.choice(kinds).format(
            n=counter, r=rank, x=draw.randrange(10**8), y=draw.randrange(100, 999), m=counter // 60 % 60, s=counter % 60
        )
        written += len(line) + 1
        yield line + "\n"


def write_logs(folder: Path, size_bytes: int) -> None:
    for rank in range(RANKS):
        with (folder / f"rank_{rank}.log").open("w") as file:
            file.writelines(lines(rank, size_bytes // RANKS, rank))


def read_logs(folder: Path) -> None:
    """In the measured process: prints seconds, CPU seconds, lines, groups, peak KiB."""
    from whichrank.diagnosis.job_log.reader import Source, read_job_logs, whose

    began, began_cpu = time.perf_counter(), time.process_time()
    paths = sorted(folder.glob("*.log"))

    def sources() -> Iterator[Source]:
        for path in paths:
            with path.open("rb") as file:
                yield Source(name=path.name, file=file, rank=whose(path.name)[0])

    found = read_job_logs(sources())
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    groups = sum(len(episode.groups) for episode in found.episodes)
    print(took_s, cpu_s, found.lines, groups, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="64 MB: a look, not a result")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        read_logs(options.read)
        return 0
    megabytes = 64 if options.quick else options.megabytes
    with tempfile.TemporaryDirectory() as name:
        write_logs(Path(name), megabytes * 1_000_000)
        command = [sys.executable, "-m", "benchmarks.diagnose_job_log", "--read", name]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    took_s, cpu_s = float(answer[0]), float(answer[1])
    count, groups, peak_kib = (int(word) for word in answer[2:])
    per_gb_s = took_s * 1000 / megabytes
    print(
        f"job logs: {megabytes} MB, {count} lines, {took_s:.1f} s ({cpu_s:.1f} s of CPU), {per_gb_s:.1f} s/GB "
        f"(<= {ASKED_S_PER_GB:.0f}), {groups} statements, peak {peak_kib / 1024:.0f} MiB"
    )
    return 0 if per_gb_s <= ASKED_S_PER_GB else 1


if __name__ == "__main__":
    sys.exit(main())
