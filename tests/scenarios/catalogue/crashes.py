"""Ways for a rank to come to its end, beside those of ``basics``."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Ending, Pace, Scenario
from .truths import ANYWHERE, DDP, DIED, INSIDE, RAISED

#: The script's own stack does not lie in the fault's function: a thread raised, or a worker's death interrupted it.
_ELSEWHERE = replace(RAISED, leaves_stack=False)

#: Name, what is true, fault, where it may bite; each ends the job by error, in any DDP workload.
_ENDED_BY = (
    ("MemoryError", replace(RAISED, words=("raised MemoryError",)), "bytes_too_many", INSIDE),
    (
        "address space full",
        replace(RAISED, words=("you tried to allocate 67108864 bytes",)),
        "address_space_full",
        INSIDE,
    ),
    ("os._exit(3)", replace(DIED, words=("exit code 3",)), "leave_with_code", ANYWHERE),
    # The interpreter takes seconds to end.
    ("sys.exit(3)", replace(DIED, words=("exit code 3",), pace=Pace.UNTIMED), "exit_with_code", INSIDE),
    (
        "exception in a thread ends the process",
        replace(_ELSEWHERE, words=("shard-00017",)),
        "thread_throws_and_ends_all",
        INSIDE,
    ),
    ("SIGTERM to one rank", replace(DIED, words=("SIGTERM",)), "told_to_end", ANYWHERE),
)

CRASHES = (
    Scenario(
        name="abort",
        truth=replace(DIED, words=("aborted itself (SIGABRT)",), leaves_stack=True),
        ending=Ending.EITHER,
        workloads=DDP,
        fault="abort",
        points=ANYWHERE,
    ),
    Scenario(
        name="tensor too large for memory",
        truth=replace(RAISED, words=("you tried to allocate 1125899906842624 bytes",)),
        ending=Ending.CRASHES,
        workloads=(*DDP, "fsdp2"),
        fault="tensor_too_large",
        points=INSIDE,
    ),
    *(
        Scenario(name=name, truth=truth, ending=Ending.CRASHES, workloads=DDP, fault=fault, points=points)
        for name, truth, fault, points in _ENDED_BY
    ),
    Scenario(
        name="SIGKILL of two ranks at once",
        truth=DIED,
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="kill_two",
        points=ANYWHERE,
        worlds=(3, 4, 5, 6),
        guilty_count=2,
    ),
    Scenario(
        name="loader worker killed",
        truth=replace(_ELSEWHERE, words=("DataLoader worker (pid",)),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="kill_loader_worker",
        points=("forward", "backward", "metrics"),
        options={"loader_workers": (1, 2)},
    ),
)
