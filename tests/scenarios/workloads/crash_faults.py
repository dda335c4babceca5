"""Ways for one rank to come to its end. Registered with ``faults``, which says what a fault is."""
# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from course import Course
from faults import fault

MIB = 1 << 20


@fault
def abort(course: Course, tensor: torch.Tensor | None) -> None:
    os.abort()


@fault
def tensor_too_large(course: Course, tensor: torch.Tensor | None) -> None:
    torch.empty(1 << 50, dtype=torch.uint8)


@fault
def bytes_too_many(course: Course, tensor: torch.Tensor | None) -> None:
    bytearray(1 << 50)


@fault
def address_space_full(course: Course, tensor: torch.Tensor | None) -> None:
    """Batches that are kept by mistake, until the limit that somebody set is reached."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 256 * MIB, used + 256 * MIB))
    kept = []
    while True:
        kept.append(torch.empty(64 * MIB, dtype=torch.uint8))


@fault
def leave_with_code(course: Course, tensor: torch.Tensor | None) -> None:
    os._exit(3)


@fault
def exit_with_code(course: Course, tensor: torch.Tensor | None) -> None:
    sys.exit(3)


@fault
def thread_throws_and_ends_all(course: Course, tensor: torch.Tensor | None) -> None:
    """A helper thread's uncaught exception takes the process along, as careful scripts have it."""
    printed = threading.excepthook

    def end_all(args: threading.ExceptHookArgs) -> None:
        printed(args)
        sys.stderr.flush()
        os._exit(1)

    def prefetch() -> None:
        raise KeyError("shard-00017")

    threading.excepthook = end_all
    threading.Thread(target=prefetch, name="prefetch").start()
    time.sleep(60.0)


@fault
def told_to_end(course: Course, tensor: torch.Tensor | None) -> None:
    """Somebody else sends SIGTERM to this rank alone."""
    subprocess.run(["kill", "-TERM", str(os.getpid())], check=True)
    time.sleep(60.0)


@fault
def kill_two(course: Course, tensor: torch.Tensor | None) -> None:
    """As the kernel does when a node's memory is full: two processes within a moment."""
    for rank in course.plan["guilty"]:
        if rank != course.rank:
            course.stamp(__file__, 0, 0, rank=rank)
            os.kill(course.pid_of(rank), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@fault
def kill_loader_worker(course: Course, tensor: torch.Tensor | None) -> None:
    """As the kernel does when memory is short: a helper of the loader is gone, the rank learns it at its next batch."""
    worker = multiprocessing.active_children()[0]
    os.kill(worker.pid or 0, signal.SIGKILL)


@fault
def abort_late(course: Course, tensor: torch.Tensor | None) -> None:
    """As CUDA does it: the error of the device comes back with the next call, and the process aborts."""
    time.sleep(0.15)
    os.abort()


@fault
def too_much_memory(course: Course, tensor: torch.Tensor | None) -> None:
    """A memory cgroup of its own, 64 MiB above what the rank has by now, and batches that are kept by mistake."""
    group = next(Path(folder) for folder in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup") if Path(folder).is_dir())
    group = group / f"whichrank-scenario-{os.getpid()}"
    group.mkdir()
    modern = (group / "memory.max").exists()
    used = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    limit = "memory.max" if modern else "memory.limit_in_bytes"
    (group / limit).write_text(str(64 * MIB if not modern else used + 64 * MIB))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 10) * (1 << 12)))
