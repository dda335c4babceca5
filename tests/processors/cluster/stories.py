"""The ten failure types of large jobs, each with its neighbours: signals -> bucket, kind, scope, cause, what to do.

A story is what collectors and JobOperator tell of one failure. A control tells the signal of a cause that is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.processors.cluster.conftest import START_S
from tests.processors.cluster.stage import (
    BUS,
    CRASH,
    ECC,
    HANG,
    NUMERIC,
    PORT_UP,
    SHM,
    SUSPECT,
    Teller,
    driver,
    ended_by,
    event,
    kernel,
    later,
    measured,
    node_gone,
    numbers,
    only_victims,
    raised,
    said,
    slurm,
    slurm_node,
    stuck,
    xid,
)
from whichrank.telemetry.vocabulary import Action, Bucket, EventName, Kind, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """cause: the condition, "" none. device, entity: of the cause; device "" any."""

    name: str
    signals: tuple[Teller, ...]
    bucket: Bucket
    kind: Kind
    scope: Scope
    cause: str = ""
    device: str = ""
    entity: str = "n1"
    action: Action | None = None


_CUDA_ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
_ILLEGAL = "AcceleratorError: CUDA error: an illegal memory access was encountered"
_UNHANDLED = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error, NCCL version 2.21.5"
_REMOTE = (
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error"
)
_SYSTEM = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled system error, NCCL version 2.21.5"
_MMU = "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_3 faulted @ 0x7f21_e4000000."
_DBE = "DBE (double bit error) ECC Error: An uncorrectable double bit error (DBE) has been detected on GPU"
_CONTAINED = "Contained: SM (0x1). RST: No, D-RST: No"
_UNCONTAINED = "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
_CARD = "mlx5_core 0000:9f:00.0: poll_health:843:(pid 0): device's health compromised - reached miss count"
_PORT_DOWN = "mlx5_core 0000:9f:00.0 ens11f0np0: Link down"
_PORT_IS_UP = "mlx5_core 0000:9f:00.0 ens11f0np0: Link up"
_OFF = (
    xid(79, "GPU has fallen off the bus.", -0.8),
    kernel(f"NVRM: GPU {BUS}.0: GPU has fallen off the bus.", -0.8),
    driver("gpu_lost", -0.2),
)
_ON_CODE = Story(name="", signals=(), bucket=CRASH, kind=Kind.RANK_RAISED, scope=Scope.RANK)
_KILLED = replace(_ON_CODE, kind=Kind.RANK_DIED)
_HANGS = replace(_ON_CODE, bucket=HANG, kind=Kind.RANK_NOT_ENTERED)
_NODE_LOST = replace(_ON_CODE, kind=Kind.NODE_LOST, scope=Scope.NODE)
_NAN = replace(_ON_CODE, bucket=NUMERIC, kind=Kind.NUMERIC_FIRST_RANK)
_WITHOUT_NODE = Action.RESTART_WITHOUT_NODE
UB_WAITS = "[UB:kuserbuffers_pullrecv:812] pullrecv [grank dst:0 global src:{peer}]: expecting 5, observed 4"

STORIES: Mapping[str, tuple[Story, ...]] = {
    "user buffers of Transformer Engine time out": (
        Story(
            name="the peer that was waited for does not come",
            signals=(stuck(), said(0, UB_WAITS.format(peer=SUSPECT), 30.0)),
            bucket=HANG,
            kind=Kind.RANK_NOT_ENTERED,
            scope=Scope.RANK,
            cause="user_buffer_timeout",
            device="102",
            action=Action.RESTART,
        ),
        Story(
            name="the peer that was waited for has lost its GPU",
            signals=(*_OFF, stuck(), said(0, UB_WAITS.format(peer=SUSPECT), 30.0)),
            bucket=HANG,
            kind=Kind.RANK_NOT_ENTERED,
            scope=Scope.GPU,
            cause="xid_79",
            device="GPU-2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="a rank went on with what was in the buffer, and its numbers are wrong",
            signals=(said(SUSPECT, UB_WAITS.format(peer=0), -20.0), numbers(Kind.NUMERIC_FIRST_RANK, SUSPECT)),
            bucket=NUMERIC,
            kind=Kind.NUMERIC_FIRST_RANK,
            scope=Scope.RANK,
            cause="user_buffer_stale_data",
            device="102",
            action=Action.RESTART,
        ),
        replace(
            _HANGS,
            name="another peer was waited for",
            signals=(stuck(), said(0, UB_WAITS.format(peer=3), 3.0)),
        ),
        replace(
            _HANGS,
            name="the line names no peer",
            signals=(stuck(), said(0, "[rank0]: UB_TIMEOUT: SM 3 [1]:expecting 214 got 213", 3.0)),
        ),
        replace(
            _HANGS,
            name="it was waited for in a time-out minutes ago, and came",
            signals=(said(0, UB_WAITS.format(peer=SUSPECT), -300.0), stuck()),
        ),
    ),
    "GPU off the bus": (
        Story(
            name="GPU off the bus, the rank hangs",
            signals=(*_OFF, stuck()),
            bucket=HANG,
            kind=Kind.RANK_NOT_ENTERED,
            scope=Scope.GPU,
            cause="xid_79",
            device="GPU-2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="GPU off the bus, the rank fails",
            signals=(*_OFF, raised("RuntimeError: CUDA error: unspecified launch failure")),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.GPU,
            cause="xid_79",
            device="GPU-2",
            action=_WITHOUT_NODE,
        ),
        replace(
            _ON_CODE,
            name="GPU off the bus, of another rank's on another node",
            signals=(xid(79, "GPU has fallen off the bus.", -0.8, bus="0000:10:00", node="n2"), stuck()),
            bucket=HANG,
            kind=Kind.RANK_NOT_ENTERED,
        ),
        replace(
            _HANGS,
            name="GPU off the bus, of another rank on this node",
            signals=(xid(79, "GPU has fallen off the bus.", -0.8, bus="0000:0d:00", pid=103), stuck()),
        ),
        replace(
            _HANGS,
            name="GPU off the bus, long after the rank had stopped",
            signals=(stuck(), xid(79, "GPU has fallen off the bus.", 60.0)),
        ),
    ),
    "uncorrectable ECC": (
        Story(
            name="uncorrectable ECC",
            signals=(
                xid(48, _DBE, -0.5),
                xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate.", -0.4),
                xid(45, "Ch 00000008", 0.6),
                driver("ecc_uncorrected", -0.3),
                raised(_CUDA_ECC),
            ),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.GPU,
            cause="xid_48",
            device="GPU-2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="uncorrectable ECC, contained: the device goes on after a restart",
            signals=(
                xid(94, _CONTAINED, -0.5),
                driver("xid", -0.4, "94"),
                raised(_CUDA_ECC),
            ),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.GPU,
            cause="xid_94",
            device="GPU-2",
            action=Action.RESTART,
        ),
        replace(
            _ON_CODE,
            name="uncorrectable ECC, on the GPU of another rank",
            signals=(xid(48, _DBE, -0.5, bus="0000:0d:00", pid=103), raised(_ILLEGAL)),
        ),
        replace(
            _ON_CODE,
            name="ECC that was corrected, and a row that was set aside",
            signals=(
                kernel("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", -0.6),
                xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate.", -0.5),
                raised(_ILLEGAL),
            ),
        ),
        replace(
            _ON_CODE,
            name="uncorrectable ECC in the morning, and a mistake in the program now",
            signals=(measured(ECC, "GPU-2", 1.0, -50.0), later(raised("KeyError: 'input_ids'"), 3600.0)),
        ),
    ),
    "node failure, as Slurm sees it": (
        Story(
            name="node lost, its kernel panicked",
            signals=(kernel("Kernel panic - not syncing: Fatal hardware error!", -0.5, "n2"), node_gone()),
            bucket=CRASH,
            kind=Kind.NODE_LOST,
            scope=Scope.NODE,
            cause="kernel_panic",
            entity="n2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="node lost without a word",
            signals=(node_gone(),),
            bucket=CRASH,
            kind=Kind.NODE_LOST,
            scope=Scope.NODE,
            action=_WITHOUT_NODE,
        ),
        Story(
            name="node lost, and trouble on one that stays",
            signals=(xid(79, "GPU has fallen off the bus.", -0.5), node_gone()),
            bucket=CRASH,
            kind=Kind.NODE_LOST,
            scope=Scope.NODE,
            action=_WITHOUT_NODE,
        ),
        Story(
            name="Slurm gives the node up",
            signals=(node_gone(), *slurm_node("DOWN+NOT_RESPONDING", "Not responding", 330.0, since=300.0, node="n2")),
            bucket=CRASH,
            kind=Kind.NODE_LOST,
            scope=Scope.NODE,
            cause="node_down",
            entity="n2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="its kernel panicked, and Slurm gives it up later",
            signals=(
                kernel("Kernel panic - not syncing: Fatal hardware error!", -0.5, "n2"),
                node_gone(),
                *slurm_node("DOWN", "Not responding", 330.0, since=300.0, node="n2"),
            ),
            bucket=CRASH,
            kind=Kind.NODE_LOST,
            scope=Scope.NODE,
            cause="kernel_panic",
            entity="n2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="the node goes into maintenance that was planned",
            signals=(slurm("maintenance", -3600.0, "n2", name="fabric", start_s=START_S - 2.0), node_gone()),
            bucket=Bucket.PLANNED,
            kind=Kind.PLANNED_STOP,
            scope=Scope.NODE,
            cause="maintenance",
            entity="n2",
            action=Action.RESTART,
        ),
        replace(
            _NODE_LOST,
            name="maintenance is entered when the node is lost already",
            action=_WITHOUT_NODE,
            signals=(node_gone(), slurm("maintenance", 60.0, "n2", name="repair", start_s=START_S)),
        ),
        replace(
            _NODE_LOST,
            name="Slurm gives another node up",
            action=_WITHOUT_NODE,
            signals=(node_gone(), *slurm_node("DOWN", "Not responding", 330.0, since=300.0, node="n1")),
        ),
        replace(
            _KILLED,
            name="a rank is killed on a node that Slurm drains",
            signals=(*slurm_node("MIXED+DRAIN", "gpu check", -30.0, since=-30.0, node="n1"), ended_by("SIGKILL")),
        ),
    ),
    "bus error": (
        Story(
            name="bus error, the file system does not answer",
            signals=(
                kernel("nfs: server nas1 not responding, still trying", -20.0),
                event(EventName.PROBE_LATE, -1.0, mount="/data", operation="stat", age_s=18.0),
                ended_by("SIGBUS"),
            ),
            bucket=CRASH,
            kind=Kind.RANK_DIED,
            scope=Scope.STORAGE,
            cause="nfs_not_responding",
            device="nas1",
            action=Action.WAIT,
        ),
        Story(
            name="bus error, the host's memory is broken",
            signals=(
                kernel(
                    "Memory failure: 0x3f1a2: Sending SIGBUS to python3:102 due to hardware memory corruption", -0.1
                ),
                ended_by("SIGBUS"),
            ),
            bucket=CRASH,
            kind=Kind.RANK_DIED,
            scope=Scope.NODE,
            cause="memory_failure",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="bus error, /dev/shm is full",
            signals=(measured(SHM, "", 0.99, -4.0), ended_by("SIGBUS")),
            bucket=CRASH,
            kind=Kind.RANK_DIED,
            scope=Scope.NODE,
            cause="shared_memory_full",
            action=Action.RAISE_QUOTA,
        ),
        replace(_KILLED, name="bus error of the program", signals=(ended_by("SIGBUS"),)),
        replace(
            _KILLED,
            name="killed by a person while a file system does not answer",
            signals=(kernel("nfs: server nas1 not responding, still trying", -20.0), ended_by("SIGKILL")),
        ),
        replace(
            _KILLED,
            name="bus error, long after a file system did not answer",
            signals=(
                kernel("nfs: server nas1 not responding, still trying", -300.0),
                kernel("nfs: server nas1 OK", -290.0),
                ended_by("SIGBUS"),
            ),
        ),
        replace(
            _ON_CODE,
            name="a mistake in the program while /dev/shm is full",
            signals=(
                measured(SHM, "", 0.99, -4.0),
                raised("KeyError: 'input_ids'"),
            ),
        ),
    ),
    "unhandled CUDA error in NCCL": (
        Story(
            name="CUDA error in NCCL, the GPU's firmware does not answer",
            signals=(xid(119, "Timeout after 6s of waiting for RPC response from GPU2 GSP!", 2.0), raised(_UNHANDLED)),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.GPU,
            cause="xid_119",
            device="GPU-2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="CUDA error in NCCL, of the program",
            signals=(xid(31, _MMU, -0.2), xid(45, "Ch 00000011", 0.4), raised(_UNHANDLED)),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.APPLICATION,
            cause="xid_31",
            device="GPU-2",
            action=Action.FIX_CODE,
        ),
        replace(_ON_CODE, name="CUDA error in NCCL, of which nobody knows", signals=(raised(_UNHANDLED),)),
        replace(
            _ON_CODE,
            name="CUDA error in NCCL, while the GPU of another rank falls off the bus",
            signals=(xid(79, "GPU has fallen off the bus.", -0.5, bus="0000:0d:00", pid=103), raised(_UNHANDLED)),
        ),
    ),
    "network error in NCCL": (
        Story(
            name="network error in NCCL, its own port is down",
            signals=(kernel(_PORT_DOWN, -8.0), measured(PORT_UP, "mlx5_0/1", 0.0, -3.0), raised(_REMOTE)),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.LINK,
            cause="port_down",
            action=Action.REPLACE_LINK,
        ),
        Story(
            name="network error in NCCL on all ranks, the port of the other node is down",
            signals=(kernel(_PORT_DOWN, -8.0, "n2"), only_victims()),
            bucket=CRASH,
            kind=Kind.RANK_DIED,
            scope=Scope.LINK,
            cause="link_down",
            entity="n2",
            action=Action.REPLACE_LINK,
        ),
        replace(
            _ON_CODE,
            name="network error in NCCL, no port has told anything",
            signals=(raised(_REMOTE),),
        ),
        replace(
            _ON_CODE,
            name="network error in NCCL, its port has come back minutes before",
            signals=(kernel(_PORT_DOWN, -300.0), kernel(_PORT_IS_UP, -299.0), raised(_REMOTE)),
        ),
        replace(
            _ON_CODE,
            name="a mistake in the program while a port is down",
            signals=(kernel(_PORT_DOWN, -8.0), raised("KeyError: 'input_ids'")),
        ),
        replace(
            _ON_CODE,
            name="network error in NCCL, one of its ports is down since an hour",
            signals=(measured(PORT_UP, "mlx5_0/1", 0.0, -58.0), later(raised(_REMOTE), 3600.0)),
        ),
        replace(
            _ON_CODE,
            name="network error in NCCL, the port of a node that nobody suspects is down",
            signals=(kernel(_PORT_DOWN, -8.0, "n2"), raised(_REMOTE)),
        ),
        replace(
            _ON_CODE,
            name="network error in NCCL, its port was down for two seconds",
            signals=(kernel(_PORT_DOWN, -5.0), kernel(_PORT_IS_UP, -3.0), raised(_REMOTE)),
        ),
    ),
    "NCCL system error": (
        Story(
            name="NCCL system error, connections are not tracked any more",
            signals=(kernel("nf_conntrack: nf_conntrack: table full, dropping packet", -5.0), raised(_SYSTEM)),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.NODE,
            cause="conntrack_table_full",
            action=Action.RAISE_QUOTA,
        ),
        Story(
            name="NCCL system error, no file descriptors are left",
            signals=(kernel("VFS: file-max limit 1048576 reached", -1.0), raised(_SYSTEM)),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.NODE,
            cause="vfs_file_max_limit_reached",
            action=Action.RAISE_QUOTA,
        ),
        Story(
            name="NCCL system error, the card's firmware has died",
            signals=(
                kernel(
                    "mlx5_core 0000:9f:00.0: poll_health:843:(pid 0): device's health compromised - reached miss count",
                    -2,
                ),
                raised(_SYSTEM),
            ),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.LINK,
            cause="nic_health_compromised",
            action=_WITHOUT_NODE,
        ),
        replace(_ON_CODE, name="NCCL system error, of which nobody knows", signals=(raised(_SYSTEM),)),
        replace(
            _ON_CODE,
            name="NCCL system error, connections are not tracked any more on another node",
            signals=(kernel("nf_conntrack: nf_conntrack: table full, dropping packet", -5.0, "n2"), raised(_SYSTEM)),
        ),
        replace(
            _ON_CODE,
            name="NCCL system error, no file descriptors were left ten minutes ago",
            signals=(kernel("VFS: file-max limit 1048576 reached", -600.0), raised(_SYSTEM)),
        ),
        replace(
            _ON_CODE,
            name="a mistake in the program while connections are not tracked any more",
            signals=(kernel("nf_conntrack: nf_conntrack: table full, dropping packet", -5.0), raised("KeyError: 'x'")),
        ),
    ),
    "illegal memory access": (
        Story(
            name="illegal memory access",
            signals=(
                xid(31, _MMU, -0.2),
                xid(43, "Ch 00000010", -0.1),
                xid(45, "Ch 00000011", 0.5),
                driver("xid", -0.1, "31"),
                raised(_ILLEGAL),
            ),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.APPLICATION,
            cause="xid_31",
            device="GPU-2",
            action=Action.FIX_CODE,
        ),
        Story(
            name="illegal memory access, because of memory that is broken",
            signals=(xid(31, _MMU, -0.2), xid(94, _CONTAINED, -0.3), raised(_ILLEGAL)),
            bucket=CRASH,
            kind=Kind.RANK_RAISED,
            scope=Scope.GPU,
            cause="xid_94",
            device="GPU-2",
            action=Action.RESTART,
        ),
        replace(
            _ON_CODE,
            name="a mistake in the program, and the clean-up of its GPU",
            signals=(raised("KeyError: 'input_ids'"), xid(45, "Ch 00000011", 0.5)),
        ),
        replace(
            _ON_CODE,
            name="illegal memory access, reported of another rank's GPU",
            signals=(xid(31, _MMU, -0.2, bus="0000:0d:00", pid=103), raised(_ILLEGAL)),
        ),
        replace(
            _ON_CODE,
            name="illegal memory access, after the memory of another node's GPU has failed",
            signals=(xid(94, _CONTAINED, -0.3, bus="0000:10:00", node="n2", pid=106), raised(_ILLEGAL)),
        ),
    ),
    "NaN in gradients": (
        Story(
            name="NaN on one rank first, its GPU's memory has failed",
            signals=(measured(ECC, "GPU-2", 1.0, -4.0), numbers(Kind.NUMERIC_FIRST_RANK, SUSPECT)),
            bucket=NUMERIC,
            kind=Kind.NUMERIC_FIRST_RANK,
            scope=Scope.GPU,
            cause="gpu_memory_error",
            device="GPU-2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="NaN on one rank first, the kernel tells of its GPU's memory",
            signals=(
                xid(95, _UNCONTAINED, -2.0),
                numbers(Kind.NUMERIC_FIRST_RANK, 2),
            ),
            bucket=NUMERIC,
            kind=Kind.NUMERIC_FIRST_RANK,
            scope=Scope.GPU,
            cause="xid_95",
            device="GPU-2",
            action=_WITHOUT_NODE,
        ),
        Story(
            name="NaN on one rank first, another's GPU's memory has failed",
            signals=(
                xid(95, _UNCONTAINED, -2.0, bus="0000:0d:00", pid=103),
                numbers(Kind.NUMERIC_FIRST_RANK, SUSPECT),
            ),
            bucket=NUMERIC,
            kind=Kind.NUMERIC_FIRST_RANK,
            scope=Scope.RANK,
        ),
        Story(
            name="NaN on all ranks at once, all GPUs are well",
            signals=(numbers(Kind.NUMERIC_ALL, None), xid(31, _MMU, -1.0)),
            bucket=NUMERIC,
            kind=Kind.NUMERIC_ALL,
            scope=Scope.RANK,
        ),
        replace(
            _NAN,
            name="NaN on one rank first, its program has met an illegal address before",
            signals=(xid(31, _MMU, -1.0), numbers(Kind.NUMERIC_FIRST_RANK, SUSPECT)),
        ),
        replace(
            _NAN,
            name="NaN on one rank first, its GPU's memory had failed before the job began",
            signals=(measured(ECC, "GPU-2", 0.0, -50.0), numbers(Kind.NUMERIC_FIRST_RANK, SUSPECT)),
        ),
    ),
}
ALL = [story for stories in STORIES.values() for story in stories]
