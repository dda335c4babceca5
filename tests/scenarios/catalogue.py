"""Every scenario, with its truth beside it. A new fault is one entry here and one function in workloads/faults.py."""

from __future__ import annotations

from dataclasses import replace

from .plan import Blame, Ending, Pace, Scenario, Truth

DDP = ("ddp_mlp", "ddp_transformer", "ddp_convnet")
STEPPING = (*DDP, "accumulate", "two_groups")
ANYWHERE = ("data", "forward", "backward", "metrics")
INSIDE = ("data", "forward", "backward")

NOT_ENTERED = Truth(
    bucket="communication_hang",
    kind="rank_not_entered",
    blame=Blame.GUILTY,
    scope="rank",
    pace=Pace.HANG,
    leaves_stack=True,
)
STOPPED = replace(NOT_ENTERED, kind="rank_stopped", pace=Pace.INSTANT)
DIED = Truth(bucket="immediate_crash", kind="rank_died", blame=Blame.GUILTY, scope="rank", pace=Pace.INSTANT)
RAISED = replace(DIED, kind="rank_raised", leaves_stack=True)
DIVERGED = Truth(
    bucket="communication_hang", kind="desync", blame=Blame.DIVERGING, scope="application", pace=Pace.INSTANT
)
DEADLOCK = replace(DIVERGED, kind="deadlock", blame=Blame.NOBODY, pace=Pace.HANG)
SLOW = Truth(
    bucket="speed_regression", kind="rank_slow", blame=Blame.GUILTY, scope="rank", phases=("forward",), pace=Pace.STEPS
)
NAN = Truth(bucket="numeric", kind="numeric_first_rank", blame=Blame.GUILTY, scope="rank")
PLANNED = Truth(bucket="planned", kind="planned_stop", blame=Blame.NOBODY)
NOTHING = Truth()

FAULTS = (
    Scenario(
        name="sleep in forward",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=(*STEPPING, "by_hand", "pipeline"),
        fault="sleep",
    ),
    Scenario(
        name="data loader blocked",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=DDP,
        fault="blocked_read",
        points=("data",),
        options={"loader_workers": (0, 1)},
    ),
    Scenario(
        name="Python busy loop",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=DDP,
        fault="busy_loop",
        points=INSIDE,
    ),
    Scenario(
        name="GIL held in C",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=DDP,
        fault="gil_held_in_c",
        points=INSIDE,
    ),
    Scenario(name="SIGSTOP", truth=STOPPED, ending=Ending.HANGS, workloads=DDP, fault="stop", points=ANYWHERE),
    Scenario(name="SIGKILL", truth=DIED, ending=Ending.CRASHES, workloads=DDP, fault="kill", points=ANYWHERE),
    Scenario(
        name="SIGSEGV",
        truth=replace(DIED, leaves_stack=True),
        ending=Ending.CRASHES,
        workloads=DDP,
        fault="segfault",
        points=ANYWHERE,
    ),
    Scenario(name="exit 0 in mid-run", truth=DIED, ending=Ending.EITHER, workloads=DDP, fault="leave", points=ANYWHERE),
    Scenario(
        name="exception",
        truth=RAISED,
        ending=Ending.CRASHES,
        workloads=(*DDP, "fsdp2"),
        fault="throw",
        points=INSIDE,
    ),
    Scenario(
        name="wrong op",
        truth=DIVERGED,
        ending=Ending.EITHER,
        workloads=DDP,
        fault="wrong_operation",
        points=("metrics",),
    ),
    Scenario(
        name="wrong size",
        truth=DIVERGED,
        ending=Ending.EITHER,
        workloads=DDP,
        fault="wrong_size",
        points=("metrics",),
    ),
    Scenario(
        name="skipped collective",
        truth=DIVERGED,
        ending=Ending.EITHER,
        workloads=DDP,
        fault="skip",
        points=("metrics",),
    ),
    Scenario(
        name="groups in opposite order",
        truth=DEADLOCK,
        ending=Ending.HANGS,
        workloads=("two_groups",),
        fault="other_order",
        points=("order",),
    ),
    Scenario(
        name="hang inside a TP group",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("tensor_parallel",),
        fault="sleep",
        points=("forward", "backward"),
        worlds=(4, 6),
    ),
    Scenario(
        name="compute straggler",
        truth=SLOW,
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        options={"slow_by": 0.3},
    ),
    Scenario(
        name="compute straggler, unpaced",
        truth=SLOW,
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        worlds=(2,),
        options={"slow_by": 0.3, "unpaced": 1},
    ),
    Scenario(
        name="data straggler",
        truth=replace(SLOW, phases=("data",)),
        ending=Ending.RUNS,
        workloads=DDP,
        fault="slow",
        points=("data",),
        options={"slow_by": 0.3},
    ),
    Scenario(
        name="NaN on one rank",
        truth=NAN,
        ending=Ending.RUNS,
        workloads=(*DDP, "fsdp2"),
        fault="not_a_number",
        points=("batch",),
    ),
    Scenario(
        name="FSDP2 hang",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        workloads=("fsdp2",),
        fault="sleep",
        points=("forward", "backward"),
    ),
    Scenario(
        name="SIGTERM to torchrun",
        truth=PLANNED,
        ending=Ending.TOLD,
        workloads=STEPPING,
        signal_to="launcher",
    ),
    Scenario(
        name="SIGTERM to whichrank run",
        truth=PLANNED,
        ending=Ending.TOLD,
        workloads=STEPPING,
        signal_to="run",
    ),
    Scenario(
        name="normal end",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=(*STEPPING, "fsdp2", "pipeline", "by_hand"),
        clean_s=8.0,
        alone=False,
    ),
)


def _clean(name: str, *workloads: str, **options: float | tuple[float, ...]) -> Scenario:
    """Ninety seconds of a healthy job, whatever its habits; any incident is a false alarm."""
    worlds = (4,) if "tensor_parallel" in workloads else (2, 3, 4)
    return Scenario(
        name=f"clean: {name}",
        truth=NOTHING,
        ending=Ending.RUNS,
        workloads=workloads,
        worlds=worlds,
        options=options,
        clean_s=95.0,
        alone=False,
        step_s=(0.05, 2.0),
    )


CLEAN = (
    _clean("perceptron", "ddp_mlp"),
    _clean("transformer with loader workers", "ddp_transformer", loader_workers=1),
    _clean("convnet with buffers", "ddp_convnet"),
    _clean("first step of 20 s", *DDP, first_step_s=20.0),
    _clean("rank 0 evaluates", *DDP, evaluate_every=20, evaluate_s=(2.0, 5.0)),
    _clean("rank 0 saves", *DDP, checkpoint_every=20, checkpoint_s=(2.0, 5.0)),
    _clean("steps vary 1:4 together", *DDP, vary_together=4.0),
    _clean("gradient accumulation", "accumulate"),
    _clean("FSDP2", "fsdp2"),
    _clean("TP x DP", "tensor_parallel"),
    _clean("loader hiccups", *DDP, hiccups=0.03),
    _clean("pipeline", "pipeline"),
    _clean("told by hand", "by_hand"),
)

SCENARIOS = (*FAULTS, *CLEAN)
#: What ``make test`` runs: one of each way to be wrong, and one short healthy run.
REPRESENTATIVE = ("sleep in forward", "SIGKILL", "wrong size", "NaN on one rank", "normal end")
