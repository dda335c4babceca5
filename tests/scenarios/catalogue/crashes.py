"""Ways for a rank to come to its end, beside those of ``basics``."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Ending, Pace, Scenario
from .truths import ANYWHERE, DDP, DIED, INSIDE, RAISED

#: The script's own stack does not lie in the fault's function: a thread raised, or a worker's death interrupted it.
_ELSEWHERE = replace(RAISED, leaves_stack=False)

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
    Scenario(
        name="MemoryError",
        truth=replace(RAISED, words=("raised MemoryError",)),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="bytes_too_many",
        points=INSIDE,
    ),
    Scenario(
        name="address space full",
        truth=replace(RAISED, words=("you tried to allocate 67108864 bytes",)),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="address_space_full",
        points=INSIDE,
    ),
    Scenario(
        name="os._exit(3)",
        truth=replace(DIED, words=("exit code 3",)),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="leave_with_code",
        points=ANYWHERE,
    ),
    Scenario(
        name="sys.exit(3)",
        truth=replace(DIED, words=("exit code 3",), pace=Pace.UNTIMED),  # the interpreter takes seconds to end
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="exit_with_code",
        points=INSIDE,
    ),
    Scenario(
        name="exception in a thread ends the process",
        truth=replace(_ELSEWHERE, words=("shard-00017",)),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="thread_throws_and_ends_all",
        points=INSIDE,
    ),
    Scenario(
        name="SIGTERM to one rank",
        truth=replace(DIED, words=("SIGTERM",)),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="told_to_end",
        points=ANYWHERE,
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
