"""Lines of job logs as they come in the field, for benchmarks: two mixes, endless, the same for the same seed.

``scattered``: one line in a hundred speaks of trouble, each alone between lines that do not. ``as_jobs_write``: what a
rank's log is made of: a start with NCCL's lines and a table of arguments (some of which have words of trouble), then
training with warnings in it, then a failure with tracebacks, watchdogs and the launcher's table, and the next attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

SHARE_OF_TROUBLE = 0.01
#: Lines of training between two failures: a job that fails every hour or so, and writes a line or two a second.
LINES_PER_ATTEMPT = 4000
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
START = (
    *("node-{r}:2211:2{y} [{r}] NCCL INFO Channel {y}/0 : {r}[{r}] -> 5[5] via P2P/CUMEM/read",) * 48,
    "node-{r}:2211:2211 [{r}] NCCL INFO Bootstrap : Using eth0:192.0.2.{y}<0>",
    "node-{r}:2211:2211 [{r}] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "node-{r}:2211:2211 [{r}] NCCL INFO comm 0x{x:x} rank {r} nranks 8 cudaDev {r} nvmlDev {r} busId 1b000 - Init",
    "[rank{r}]:[I304 11:{m:02d}:{s:02d}.{y} ProcessGroupNCCL.cpp:905] [PG ID 0 PG GUID 0 Rank {r}] ProcessGroupNCCL "
    "environments: NCCL version: 2.21.5, TORCH_NCCL_ASYNC_ERROR_HANDLING: 3, TORCH_NCCL_DUMP_ON_TIMEOUT: 1",
    *("{r}:   hidden_size_of_layer_{y} ........................ {x}",) * 48,
    "{r}:   check_for_nan_in_loss_and_grad .................. True",
    "{r}:   distributed_timeout_minutes ..................... 30",
    "{r}:   exit_signal_handler ............................. False",
    "{r}:   overlap_p2p_communication ....................... {y}",
    "{r}: /opt/env/lib/python3.11/site-packages/torch/amp/grad.py:{y}: FutureWarning: `torch.cuda.amp.autocast` "
    "is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead.",
    "{r}:   with torch.cuda.amp.autocast():",
)  # fmt: skip
WARNINGS = (
    "{r}: WARNING: could not read sample {x}, error 5, retrying in 2 s",
    "[W304 11:{m:02d}:{s:02d} TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd={y}): reset by peer {x}",
    "{r}: [2026-03-04 11:{m:02d}:{s:02d}] successfully saved checkpoint from iteration {n:7d} to /ckpt/run_{y}",
    "[rank{r}]: 2026-03-04 11:{m:02d}:{s:02d},{y} - WARNING - fetch of shard-{x:08d}.tar took {y} s; retrying",
    "{r}: Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to {y}.0",
    "wandb: Network error (ConnectTimeout), entering retry loop.",
)
#: Of the frames of a rank's traceback: it is some twenty lines.
FRAME = (
    '[rank{r}]:   File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line {y}, in _call_impl',
    "[rank{r}]:     return forward_call(*args, **kwargs)",
)
FAILURE = (
    "[rank{r}]: Traceback (most recent call last):",
    '[rank{r}]:   File "/code/train.py", line {y}, in <module>',
    "[rank{r}]:     main(parse())",
    *FRAME * 7,
    "[rank{r}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.{y} GiB. GPU {r} has a total capacity "
    "of 79.15 GiB of which 1.{y} GiB is free. Process {x} has 77.{y} GiB memory in use.",
    "[rank{r}]:[E304 11:{m:02d}:{s:02d}.{y} ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, NumelIn={x}, Timeout(ms)=600000) ran for 600{y} milliseconds",
    "W0304 11:{m:02d}:{s:02d}.{y} {x} torch/distributed/elastic/multiprocessing/api.py:897] Sending process {x} "
    "closing signal SIGTERM",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "============================================================",
    "/code/train.py FAILED",
    "------------------------------------------------------------",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-03-04_11:{m:02d}:{s:02d}",
    "  host      : node-{r}",
    "  rank      : {r} (local_rank: {r})",
    "  exitcode  : 1 (pid: {x})",
    "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    "============================================================",
)  # fmt: skip


def scattered(draw: random.Random, rank: int) -> Iterator[str]:
    counter = 0
    while True:
        counter += 1
        kinds = TROUBLE if draw.random() < SHARE_OF_TROUBLE else ORDINARY
        yield _line(draw.choice(kinds), draw, rank, counter)


def as_jobs_write(draw: random.Random, rank: int) -> Iterator[str]:
    counter = 0
    while True:
        # A job has one trainer and one way to log: some of the ordinary lines, not all of them by turns.
        ordinary = draw.sample(ORDINARY, 3)
        for form in START:
            yield _line(form, draw, rank, counter)
        for _ in range(LINES_PER_ATTEMPT):
            counter += 1
            kinds = WARNINGS if draw.random() < SHARE_OF_TROUBLE else ordinary
            yield _line(draw.choice(kinds), draw, rank, counter)
        for form in FAILURE:
            yield _line(form, draw, rank, counter)


#: By name.
MIXES: dict[str, Callable[[random.Random, int], Iterator[str]]] = {
    "scattered": scattered,
    "as_jobs_write": as_jobs_write,
}


def lines(rank: int, size_bytes: int, seed: int, mix: str = "scattered") -> Iterator[str]:
    """So many bytes of them, each with its end."""
    written = 0
    for line in MIXES[mix](random.Random(seed), rank):
        if written >= size_bytes:
            return
        written += len(line) + 1
        yield line + "\n"


def _line(form: str, draw: random.Random, rank: int, counter: int) -> str:
    return form.format(
        n=counter, r=rank, x=draw.randrange(10**8), y=draw.randrange(100, 999), m=counter // 60 % 60, s=counter % 60
    )
