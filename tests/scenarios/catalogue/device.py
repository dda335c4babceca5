"""Jobs whose collectives a device does (the test process group, NCCL's manners), and calls that are waited for late."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Blame, Ending, Pace, Scenario
from .truths import DIED, DIVERGED, INSIDE, NOT_ENTERED, NOTHING, SLOW

_DDP = ("device_ddp",)
#: Where the host of the guilty rank stands says nothing of its device.
_KERNEL = replace(NOT_ENTERED, leaves_stack=False)
_STALLED = replace(NOT_ENTERED, kind="collective_stalled", blame=Blame.NOBODY, scope="link", leaves_stack=False)


def _clean(name: str, *workloads: str, **options: float) -> Scenario:
    return Scenario(
        name=f"clean: {name}",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=workloads,
        worlds=(2, 3, 4),
        options=options,
        clean_s=95.0,
        alone=False,
        step_s=(0.05, 2.0),
    )


DEVICE = (
    Scenario(
        name="device: sleep on the host",
        twin="sleep in forward",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=_DDP,
        fault="sleep",
        points=INSIDE,
    ),
    Scenario(
        name="device: Python busy loop",
        twin="Python busy loop",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=_DDP,
        fault="busy_loop",
        points=INSIDE,
    ),
    Scenario(
        name="device: kernel never ends",
        truth=_KERNEL,
        ending=Ending.HANGS,
        workloads=_DDP,
        fault="kernel_never_ends",
        points=("kernel",),
    ),
    Scenario(
        name="device: network swallows all",
        truth=_STALLED,
        ending=Ending.HANGS,
        workloads=_DDP,
        fault="swallow",
        points=("metrics",),
    ),
    Scenario(
        name="device: compute straggler",
        twin="compute straggler",
        truth=replace(SLOW, phases=()),
        ending=Ending.RUNS,
        workloads=_DDP,
        fault="slow",
        options={"slow_by": 0.3},
        tail_s=25.0,  # ten looks a second at steps of a tenth: there they tell only later than the bar has it
    ),
    # No ten steps of these hold ten looks of the recorder: what is reached is asked for, the bar is the one above.
    # Hosts run six steps ahead, and more ranks than that on a few cores wait for CPUs more than for one another.
    Scenario(
        name="device: short steps, compute straggler",
        truth=replace(SLOW, phases=(), pace=Pace.WITHIN, within_s=25.0, onset_within=6),
        ending=Ending.RUNS,
        workloads=_DDP,
        fault="slow",
        worlds=(2, 3, 4),
        step_s=(0.05, 0.3),
        options={"slow_by": 0.3},
        before_s=8.0,
        after_s=25.0,
    ),
    Scenario(
        name="device: skipped collective",
        twin="skipped collective",
        truth=DIVERGED,
        ending=Ending.EITHER,
        workloads=_DDP,
        fault="skip",
        points=("metrics",),
    ),
    Scenario(
        name="device: wrong op",
        twin="wrong op",
        truth=DIVERGED,
        ending=Ending.EITHER,
        workloads=_DDP,
        fault="wrong_operation",
        points=("metrics",),
    ),
    Scenario(
        name="device: SIGKILL",
        twin="SIGKILL",
        truth=DIED,
        ending=Ending.CRASHES,
        workloads=_DDP,
        fault="kill",
        points=(*INSIDE, "metrics"),
    ),
    Scenario(
        name="device: watchdog aborts after a hang",
        truth=replace(NOT_ENTERED, leaves_stack=False),
        ending=Ending.CRASHES,
        workloads=_DDP,
        fault="sleep",
        points=INSIDE,
        step_s=(0.05, 2.0),
        options={"timeout_s": 15},
    ),
    Scenario(
        name="device: asynchronous calls waited for late",
        twin="asynchronous calls waited for late",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("late_waits",),
        fault="sleep",
        points=INSIDE,
        options={"device": 1},
    ),
    Scenario(
        name="asynchronous calls waited for late",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("late_waits",),
        fault="sleep",
        points=INSIDE,
    ),
    Scenario(
        name="asynchronous straggler",
        truth=replace(SLOW, pace=Pace.STEPS),
        ending=Ending.RUNS,
        workloads=("late_waits",),
        fault="slow",
        options={"slow_by": 0.3},
    ),
    _clean("device, perceptron", "device_ddp"),
    _clean("device, graph replays", "device_ddp", replays=1),
    _clean("device, asynchronous calls waited for late", "late_waits", device=1),
    _clean("asynchronous calls waited for late", "late_waits"),
)
