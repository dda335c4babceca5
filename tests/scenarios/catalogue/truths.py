"""What is true of each way a job breaks, by the table in docs/verdicts.md, and names that scenarios share."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Blame, Pace, Truth

DDP = ("ddp_mlp", "ddp_transformer", "ddp_convnet")
STEPPING = (*DDP, "accumulate", "two_groups")
ANYWHERE = ("data", "forward", "backward", "metrics")
INSIDE = ("data", "forward", "backward")

#: Nothing stands in the way of a stack but that its process must be known, which it is from its import of torch on.
NEVER_JOINED = Truth(
    bucket="communication_hang",
    kind="rank_never_joined",
    blame=Blame.GUILTY,
    scope="rank",
    pace=Pace.WITHIN,
    within_s=30.0,
)
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
