"""Ranks of a simulated node as its collectors know them, and which of them wait uninterruptibly in the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..agents.collectors.base.collector import Collected, NodeEvent, Timestamps
from ..agents.collectors.processes.blocked_ranks import CONFIRM_LOOKS, REPEAT_NS, disk_wait
from ..telemetry.records import Identity

_DRIVER_STACK = ("down_write", "os_acquire_rwlock_write", "rm_ioctl", "nvidia_unlocked_ioctl")
_NFS_STACK = ("rpc_wait_bit_killable", "__rpc_execute", "nfs4_call_sync_sequence", "nfs_read_folio")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHere:
    """A rank's process on this node. held_since_s: since when it waits in the kernel, inf it does not; in_driver: for a
    GPU.
    """

    pid: int
    identity: Identity
    gpu: int
    local_rank: int
    held_since_s: float = np.inf
    in_driver: bool = False


class HeldRanks:
    """The collector of processes that wait in the kernel. period_s: between two of its looks."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._held: dict[int, int] = {}  # looks in a row that found this pid held
        self._held_told_ns: dict[int, int] = {}

    def look(self, ranks: Mapping[int, RankHere], at_s: float, now: Timestamps) -> Collected:
        """An event for each rank that some looks in a row found waiting in the kernel, told again from time to time.

        ranks: by pid, as they are at ``at_s``. now: the node's clocks then.
        """
        happenings: list[NodeEvent] = []
        for pid, rank in ranks.items():
            if rank.held_since_s > at_s:
                self._held.pop(pid, None)
                continue
            self._held[pid] = self._held.get(pid, 0) + 1
            told_ns = self._held_told_ns.get(pid)
            if self._held[pid] < CONFIRM_LOOKS or (told_ns is not None and now.mono_ns - told_ns < REPEAT_NS):
                continue
            self._held_told_ns[pid] = now.mono_ns
            happenings.append(
                disk_wait(
                    pid,
                    now,
                    age_s=(self._held[pid] - 1) * self._period_s,
                    functions=_DRIVER_STACK if rank.in_driver else _NFS_STACK,
                    thread="python3",
                    threads=1,
                    process_pid=pid,
                    thread_id=pid,
                    moves=False,
                )
            )
        return Collected(happenings=happenings)
