"""One job on two nodes of this machine: what goes wrong on one of them, with one of them, or between them."""

from __future__ import annotations

from dataclasses import replace

from ..nodes import (
    blocked_judge,
    follower_says_nothing,
    missing,
    second_agent_goes,
    second_node_goes,
    two_nodes,
)
from ..plan import Blame, Ending, Pace, Scenario, Truth
from .truths import DDP, DIED, INSIDE, NOT_ENTERED, NOTHING, SLOW

NODE_LOST = Truth(
    bucket="immediate_crash", kind="node_lost", blame=Blame.GUILTY, scope="node", pace=Pace.WITHIN, within_s=5.0
)
AGENT_SILENT = Truth(bucket="telemetry", kind="agent_silent", blame=Blame.NOBODY, scope="node")

_BASE = Scenario(
    name="",
    truth=NOTHING,
    ending=Ending.RUNS,
    workloads=DDP,
    worlds=(2, 4),
    step_s=(0.05, 2.0),
    job=two_nodes,
    skip=missing,
    beside=follower_says_nothing,
)

NODES = (
    replace(
        _BASE,
        name="two nodes, sleep in forward",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        fault="sleep",
        points=INSIDE,
    ),
    replace(_BASE, name="two nodes, SIGKILL", truth=DIED, ending=Ending.CRASHES, fault="kill", points=INSIDE),
    replace(
        _BASE,
        name="two nodes, one of them gone",
        truth=NODE_LOST,
        ending=Ending.HANGS,
        fault="from_outside",
        worlds=(4,),
        guilty_among=(2, 3),
        guilty_count=2,
        beside=second_node_goes,
    ),
    replace(
        _BASE,
        name="two nodes, agent killed",
        truth=AGENT_SILENT,
        beside=second_agent_goes,
        after_s=20.0,
    ),
    replace(
        _BASE,
        name="two nodes, straggler on the second",
        truth=SLOW,
        fault="slow",
        worlds=(4,),
        guilty_among=(2, 3),
        options={"slow_by": 0.3},
    ),
    replace(
        _BASE,
        name="two nodes, judge out of reach",
        truth=NOT_ENTERED,
        ending=Ending.HANGS,
        fault="sleep",
        points=INSIDE,
        worlds=(4,),
        guilty_among=(0, 1),
        job=blocked_judge,
    ),
    replace(_BASE, name="two nodes, clean", clean_s=90.0, alone=False, step_s=(0.2, 2.0)),
)
