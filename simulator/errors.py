"""What goes wrong in the code of ranks, and the words in which it is told: exceptions that nobody catches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..agents.base.user_frames import UserFrame
from .attempt_steps import AttemptSteps
from .clock import generator
from .jobs import JobSpec
from .rank_processes import Processes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SCRIPT = "/workspace/train.py"
_BAD_INDEX = ("IndexError", "index 50304 is out of bounds for dimension 0 with size 50304")
_BAD_ACCESS = ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered")
_NO_DEVICE_MEMORY = (
    "torch.OutOfMemoryError",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.31 GiB is "
    "free.",
)
_NO_SHARED_MEMORY = (
    "RuntimeError",
    "DataLoader worker (pid {pid}) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
)
_NO_SPACE = ("OSError", "[Errno 122] Disk quota exceeded: '/data/checkpoints/step-{step:08d}'")
_BAD_NORM = ("RuntimeError", "gradient norm is nan at step {step}: ending the run")
_NOT_MET = (
    "torch.distributed.DistStoreError",
    "Timed out after {seconds} seconds waiting for clients. {met}/{all} clients joined.",
)
#: A host hears of an error of a kernel that it has launched at a later call.
_HEARD_AFTER_S = 0.25
#: Workers of a node's loaders ask for their next piece of memory within so long; a write fails within so long.
_WORKERS_ASK_S, _WRITE_FAILS_S = 3.0, 0.4


class FailingAttempt(Protocol):
    """A launch, as far as what goes wrong in its code needs it (``simulated_attempt.SimulatedAttempt``)."""

    spec: JobSpec
    number: int
    steps_before: int
    processes: Processes
    steps: AttemptSteps
    #: A process's or kernel's word: time, rank, what, details.
    says: Callable[[float, int, str, dict[str, Any]], None]

    def raise_in(
        self,
        ranks: Ints,
        at_s: Floats,
        type_name: str,
        message: str,
        frames: tuple[UserFrame, ...],
        *,
        is_victim: bool = False,
    ) -> Ints:
        """Ranks raise an exception that nobody catches; returns those that really raise. at_s: by rank given; inf:
        never.

        is_victim: it is an error of communication.
        """
        ...


def user_frames(function: str, line: int) -> tuple[UserFrame, ...]:
    """Stack frames of the training script: ``main``, which called ``function`` at ``line``."""
    return (UserFrame(SCRIPT, 140, "main"), UserFrame(SCRIPT, line, function))


def at_next_device_call(attempt: FailingAttempt, ranks: Ints, after_s: float, type_name: str, message: str) -> None:
    """Lets ranks raise at their next call after ``after_s``, as the device that they ask does not work any more."""
    attempt.steps.extend(after_s, attempt.processes)
    when = attempt.steps.next_call_s(ranks, after_s)
    when = np.where(np.isinf(when), after_s, when) + 0.03  # it stands in a call that needs the device
    attempt.raise_in(ranks, when, type_name, message, user_frames("train_step", 88))


def at_next_line(attempt: FailingAttempt, ranks: Ints, after_s: float) -> None:
    """Lets each of these ranks raise an index out of bounds at its next call after ``after_s``."""
    attempt.steps.extend(after_s, attempt.processes)
    when = attempt.steps.next_call_s(ranks, after_s)
    attempt.raise_in(ranks, when, *_BAD_INDEX, user_frames("embed", 61))


def in_step(attempt: FailingAttempt, rank: int, step: int) -> None:
    """Lets the rank raise at its first call in this step (of the whole run), once the time of that is known."""
    attempt.raise_in(np.array([rank]), _first_call_s(attempt, rank, step), *_BAD_INDEX, user_frames("embed", 61))


def bad_access_in_step(attempt: FailingAttempt, rank: int, step: int) -> None:
    """Lets a kernel of the rank read where it may not in this step (of the whole run); its host raises a moment later.

    The driver says so at once.
    """
    when = _first_call_s(attempt, rank, step)
    raised = attempt.raise_in(np.array([rank]), when + _HEARD_AFTER_S, *_BAD_ACCESS, user_frames("train_step", 88))
    if raised.size:
        attempt.says(float(when[0]), rank, "bad_access", {"pid": int(attempt.processes.pid[rank])})


def without_device_memory(attempt: FailingAttempt, ranks: Ints, at_s: float) -> None:
    """Lets ranks raise that their GPU has no memory left, at their next call after ``at_s``."""
    attempt.steps.extend(at_s, attempt.processes)
    when = attempt.steps.next_call_s(ranks, at_s)
    attempt.raise_in(ranks, when, *_NO_DEVICE_MEMORY, user_frames("forward", 74))


def without_shared_memory(attempt: FailingAttempt, ranks: Ints, after_s: float) -> None:
    """Lets ranks raise that a loader's worker was killed for want of shared memory, at some call after ``after_s``."""
    random = generator(attempt.spec.name, attempt.number, "workers")
    attempt.steps.extend(after_s, attempt.processes)
    when = attempt.steps.next_call_s(ranks, after_s) + random.uniform(0.0, _WORKERS_ASK_S, ranks.size)
    type_name, message = _NO_SHARED_MEMORY
    for rank, at_s in zip(ranks.tolist(), when.tolist(), strict=True):
        words = message.format(pid=int(attempt.processes.pid[rank]) + 100_000)
        attempt.raise_in(np.array([rank]), np.array([at_s]), type_name, words, user_frames("next_batch", 52))


def without_space(attempt: FailingAttempt, since_s: float) -> None:
    """Lets every rank raise that the quota is exceeded which writes its part of a checkpoint from ``since_s`` on."""
    random = generator(attempt.spec.name, attempt.number, "writes")
    fails_s = random.uniform(0.05, _WRITE_FAILS_S, attempt.spec.mesh.world_size)
    type_name, message = _NO_SPACE
    for step, begins_s in attempt.steps.saves():
        ranks = np.flatnonzero(np.isfinite(begins_s) & (begins_s + fails_s >= since_s))
        words = message.format(step=attempt.steps_before + step)
        attempt.raise_in(ranks, begins_s[ranks] + fails_s[ranks], type_name, words, user_frames("save", 117))


def with_bad_norm(attempt: FailingAttempt) -> None:
    """Lets rank 0 raise at the end of a live step whose gradient norm is NaN; nothing where none is."""
    bad = next((live for live in attempt.steps.live if np.isnan(live.draws.norm[0])), None)
    if bad is not None:
        type_name, message = _BAD_NORM
        words = message.format(step=attempt.steps_before + bad.step)
        attempt.raise_in(np.array([0]), bad.times.host_s[:1].copy(), type_name, words, user_frames("check_norm", 101))


def not_met(attempt: FailingAttempt, joins: NDArray[np.bool_], at_s: float) -> None:
    """Lets ranks that have come to the meeting of all ranks give it up at ``at_s``. joins: by rank, whether it has
    come.
    """
    type_name, message = _NOT_MET
    words = message.format(seconds=int(attempt.spec.recipe.timeout_s), met=int(joins.sum()), all=joins.size)
    ranks = np.flatnonzero(joins)
    attempt.raise_in(ranks, np.full(ranks.size, at_s), type_name, words, user_frames("setup", 31), is_victim=True)


def _first_call_s(attempt: FailingAttempt, rank: int, step: int) -> Floats:
    return np.array([attempt.steps.first_call_s(rank, step - attempt.steps_before)])
