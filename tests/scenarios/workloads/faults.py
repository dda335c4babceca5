"""The faults themselves: each function is what goes wrong on the guilty rank, and stamps its onset right before.

A fault gets the course and, at some points, the tensor at hand; it returns True when it took the place of the
operation that would follow. A new fault is a function here and an entry in ``catalogue/``.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from course import Course  # type: ignore[import-not-found]

Fault = Callable[[Course, torch.Tensor | None], bool | None]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """Registers a fault; wrapped so that the onset is stamped immediately before the function's first line."""
    lines, first = inspect.getsourcelines(function)

    def strike(course: Course, tensor: torch.Tensor | None) -> bool | None:
        if not (course.plan["point"] == "data" and course.options.get("loader_workers")):  # stamped by its rank
            course.stamp(inspect.getfile(function), first, first + len(lines))
        return function(course, tensor)

    FAULTS[function.__name__] = strike
    return function


@fault
def from_outside(course: Course, tensor: torch.Tensor | None) -> None:
    """The rank itself does nothing wrong: who waits for the stamp does the rest."""


@fault
def sleep(course: Course, tensor: torch.Tensor | None) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(60)


@fault
def blocked_read(course: Course, tensor: torch.Tensor | None) -> None:
    reader, _writer = os.pipe()
    parent = os.getppid()
    while os.getppid() == parent:  # else a loader worker would outlive its rank for ever
        select.select([reader], [], [], 60)


@fault
def busy_loop(course: Course, tensor: torch.Tensor | None) -> None:
    count = 0
    while True:
        count += 1


@fault
def gil_held_in_c(course: Course, tensor: torch.Tensor | None) -> None:
    libc = ctypes.PyDLL(None)  # PyDLL keeps the GIL during the call, as a careless extension does
    while True:
        libc.sleep(3600)


@fault
def stop(course: Course, tensor: torch.Tensor | None) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@fault
def pause(course: Course, tensor: torch.Tensor | None) -> None:
    """Somebody stops the process, and lets it go on some seconds later."""
    seconds = course.options["pause_s"]
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    course.stamp_end()


@fault
def linger(course: Course, tensor: torch.Tensor | None) -> None:
    """What it does here takes much longer than before."""
    time.sleep(course.options["linger_s"])
    course.stamp_end()


@fault
def kill(course: Course, tensor: torch.Tensor | None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@fault
def segfault(course: Course, tensor: torch.Tensor | None) -> None:
    ctypes.string_at(1)


@fault
def leave(course: Course, tensor: torch.Tensor | None) -> None:
    os._exit(0)


@fault
def throw(course: Course, tensor: torch.Tensor | None) -> None:
    raise ValueError("sample 4711 has an unknown label")


@fault
def wrong_operation(course: Course, tensor: torch.Tensor | None) -> bool:
    assert tensor is not None
    dist.broadcast(tensor, src=course.rank)
    return True


@fault
def wrong_size(course: Course, tensor: torch.Tensor | None) -> bool:
    dist.all_reduce(torch.zeros(1000))
    return True


@fault
def skip(course: Course, tensor: torch.Tensor | None) -> bool:
    return True


@fault
def not_a_number(course: Course, tensor: torch.Tensor | None) -> None:
    assert tensor is not None
    tensor.mul_(float("nan"))


@fault
def other_order(course: Course, tensor: torch.Tensor | None) -> bool:
    return True


@fault
def explode(course: Course, tensor: torch.Tensor | None) -> None:
    """From here on this rank's loss, and all its gradients, are a thousand times too large: a weight was mixed up."""
    assert tensor is not None
    tensor.mul_(1000.0)
    course.again = lambda later: later.mul_(1000.0)


@fault
def spike(course: Course, tensor: torch.Tensor | None) -> None:
    """One odd batch, and everything is as before."""
    assert tensor is not None
    tensor.mul_(30.0)


@fault
def kernel_never_ends(course: Course, tensor: torch.Tensor | None) -> bool:
    from tests.device_backend import stream

    step = course.step

    def kernel() -> None:
        course.stamp_step(step, __file__, 0, 10**9)
        while True:
            time.sleep(60)

    stream().launch(kernel)
    return True


@fault
def swallow(course: Course, tensor: torch.Tensor | None) -> None:
    """From the next collective that the device comes to, what this rank sends is lost."""
    from tests.device_backend.group import groups

    step = course.step
    for group in groups():
        group.swallows = lambda: course.stamp_step(step, __file__, 0, 10**9)


@fault
def read_of_a_mount(course: Course, tensor: torch.Tensor | None) -> None:
    """The next batch lies on a file server that has just stopped answering."""
    stalled = Path(course.plan["truth"]) / "stalled"
    while not stalled.exists():
        time.sleep(0.005)
    with open(Path(stalled.read_text()) / "batch-17.bin", "rb") as batch:
        batch.read()
