"""What fails by chance: so many times an hour where a resource is weak, at whoever uses it just then.

A kernel that fails is an error of the process at its next call. A word of memory that goes bad shows as whatever it was
used for: a process that dies of a bad address, an instruction that is none, a batch that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .clock import generator
from .errors import at_next_device_call, user_frames
from .rank_processes import SIGILL, SIGSEGV
from .resources import Resources
from .running_job import RunningJob
from .simulated_attempt import SimulatedAttempt

_KERNEL = ("torch.AcceleratorError", "CUDA error: unspecified launch failure")
#: What a program says that reads a bad word of its own.
_UNREADABLE = (
    ("_pickle.UnpicklingError", "invalid load key, '\\x00'."),
    ("zlib.error", "Error -3 while decompressing data: incorrect data check"),
    ("UnicodeDecodeError", "'utf-8' codec can't decode byte 0x9c in position 3: invalid start byte"),
)
_RATES = (("gpu", "failures"), ("host", "memory_faults"))
_S_PER_HOUR = 3600.0


class Hazards:
    def __init__(self, resources: Resources, seed: int) -> None:
        self._resources, self._seed = resources, seed

    def strike(self, jobs: Sequence[RunningJob], begin_s: float, end_s: float) -> None:
        """Lets weak GPUs and memories fail by chance from ``begin_s`` to ``end_s``: ranks on them that are in steps
        raise or die.
        """
        hours = (end_s - begin_s) / _S_PER_HOUR
        random = generator(self._seed, "hazards", round(begin_s * 1e3))
        gpu_fails, memory_fails = (
            random.random(rate.size) < rate * hours if rate.any() else np.zeros(rate.size, bool)
            for rate in (self._resources.of(*parameter) for parameter in _RATES)
        )
        if not (gpu_fails.any() or memory_fails.any()):
            return
        for job in jobs:
            attempt = job.attempt
            if attempt is None or attempt.first_step_s > begin_s:
                continue
            at_s = float(random.uniform(begin_s, end_s))
            ranks = np.flatnonzero(gpu_fails[job.gpus] & attempt.processes.alive)
            if ranks.size:
                at_next_device_call(attempt, ranks, at_s, *_KERNEL)
            for node in np.unique(job.node_of_rank[memory_fails[job.node_of_rank]]).tolist():
                here = np.flatnonzero((job.node_of_rank == node) & attempt.processes.alive)
                if here.size:
                    _spoil(attempt, random.choice(here, 1), at_s, random)


def _spoil(attempt: SimulatedAttempt, rank: NDArray[np.int64], at_s: float, random: np.random.Generator) -> None:
    """A word under this rank's process is not what was written there."""
    used_for = int(random.integers(0, 2 + len(_UNREADABLE)))
    if used_for < 2:
        attempt.die(rank, np.array([at_s]), signal=(SIGSEGV, SIGILL)[used_for])
        return
    type_name, message = _UNREADABLE[used_for - 2]
    attempt.raise_in(rank, np.array([at_s]), type_name, message, user_frames("next_batch", 47), is_victim=False)
