"""Real hangs, deaths and stragglers with a node's own trouble beside them; and controls, where it only looks so."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Ending, Pace, Scenario
from ..played_node import (
    after_the_hang,
    another_ranks_gpu,
    application_errors,
    contained_memory_error,
    corrected_memory,
    link_drops,
    long_ago,
    missing,
    missing_cgroup,
    missing_fuse,
    missing_two_nodes,
    mount_stalls,
    nothing_else,
    off_the_bus,
    other_nodes_gpu,
    own_gpu_of_two_nodes,
    played_node,
    played_nodes,
    port_flaps,
    port_goes,
    throttle,
)
from .truths import DDP, DIED, INSIDE, NOT_ENTERED, SLOW

#: Of a GPU the driver may say that it is gone before the kernel's line is read, or the other way round.
_GONE = ("xid_79", "gpu_lost", "gpu_off_the_bus")
_HANG = Scenario(
    name="",
    truth=NOT_ENTERED,
    ending=Ending.HANGS,
    workloads=DDP,
    fault="sleep",
    points=INSIDE,
    worlds=(3, 4),
    step_s=(0.1, 1.0),
    job=played_node,
    skip=missing,
)
#: Until it would have been told that it is of the program.
_CONTROL = replace(_HANG, tail_s=28.0)

CAUSES = (
    replace(
        _HANG,
        name="hang, its GPU off the bus",
        truth=replace(NOT_ENTERED, scope="gpu", causes=_GONE),
        beside=off_the_bus,
    ),
    replace(
        _HANG,
        name="hang, an NVLink of its GPU down",
        truth=replace(NOT_ENTERED, scope="link", causes=("nvlink_down",)),
        beside=link_drops,
    ),
    replace(
        _HANG,
        name="hang, the node's port down",
        truth=replace(NOT_ENTERED, scope="link", causes=("link_down",)),
        beside=port_goes,
    ),
    replace(
        _HANG,
        name="abort after a memory error",
        truth=replace(DIED, scope="gpu", causes=("xid_94",), pace=Pace.INSTANT),
        ending=Ending.CRASHES,
        fault="abort_late",
        beside=contained_memory_error,
    ),
    replace(
        _HANG,
        name="straggler, its GPU too hot",
        truth=replace(SLOW, scope="gpu", causes=("gpu_throttled",), pace=Pace.UNTIMED),
        ending=Ending.RUNS,
        fault="slow",
        points=("forward",),
        options={"slow_by": 1.0},
        after_s=45.0,
        beside=throttle,
    ),
    replace(
        _HANG,
        name="hang in a read, the mount stalls",
        truth=replace(NOT_ENTERED, scope="storage", causes=("mount_stalls",), leaves_stack=False),
        fault="read_of_a_mount",
        beside=mount_stalls,
        skip=lambda: missing() or missing_fuse(),
    ),
    replace(
        _HANG,
        name="killed by the kernel for its memory",
        truth=replace(
            DIED,
            scope="application",
            causes=("cgroup_oom_kill",),
            pace=Pace.INSTANT,
            words=("oom-kill",),
        ),
        ending=Ending.CRASHES,
        fault="too_much_memory",
        job=None,
        beside=None,
        skip=missing_cgroup,
    ),
    replace(
        _HANG,
        name="two nodes, hang, its GPU off the bus",
        truth=replace(NOT_ENTERED, scope="gpu", causes=_GONE),
        worlds=(4,),
        job=played_nodes,
        beside=own_gpu_of_two_nodes,
        skip=missing_two_nodes,
    ),
    # --- controls: the same hang, and something that did not do it ---
    replace(
        _CONTROL,
        name="control: no fault of the node",
        truth=replace(NOT_ENTERED, scope="application", causes=("no_node_fault",)),
        beside=nothing_else,
    ),
    replace(_CONTROL, name="control: another rank's GPU off the bus", beside=another_ranks_gpu),
    replace(_CONTROL, name="control: its GPU off the bus ten minutes ago", beside=long_ago),
    replace(_CONTROL, name="control: its GPU off the bus after the hang", beside=after_the_hang),
    replace(_CONTROL, name="control: Xid 13, 31, 43, 45 of the application", beside=application_errors),
    replace(_CONTROL, name="control: a link that came back", beside=port_flaps),
    replace(_CONTROL, name="control: memory that was corrected", beside=corrected_memory),
    replace(
        _CONTROL,
        name="control: two nodes, the other node's GPU off the bus",
        worlds=(4,),
        job=played_nodes,
        beside=other_nodes_gpu,
        skip=missing_two_nodes,
    ),
)
