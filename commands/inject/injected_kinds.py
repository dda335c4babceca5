"""Every kind of fault: what an incident of it may be called, what it needs, and what becomes of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ...telemetry.injection_words import InsideFault
from ...telemetry.vocabulary import Kind


class InjectedKind(str, Enum):
    """The words of the command line."""

    stop = "stop"
    slow = "slow"
    kill = "kill"
    raise_ = "raise"
    skip_collective = "skip-collective"
    add_collective = "add-collective"
    nan = "nan"
    slow_disk = "slow-disk"
    full_disk = "full-disk"
    kernel_line = "kernel-line"
    port_down = "port-down"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFacts:
    """kinds: of incidents, any of which is right. undone: in words, what is put back; "" nothing can be.

    inside: the rank does it itself. of_rank: one rank is at fault, and the one incident has to name it; else several
    incidents may be right. needs: options.
    """

    kinds: frozenset[Kind]
    undone: str = ""
    inside: InsideFault | None = None
    of_rank: bool = True
    needs: tuple[str, ...] = ()


_DISK = frozenset({Kind.RANK_RAISED, Kind.CHECKPOINT_FAILED, Kind.CHECKPOINT_UNFINISHED, Kind.STORAGE_FULL})
_SLOW_DISK = frozenset(
    {Kind.CHECKPOINT_UNFINISHED, Kind.RANK_SLOW, Kind.SLOW_TOGETHER, Kind.STORAGE_OVERLOAD, Kind.RANK_NOT_ENTERED}
)
_CUT_OFF = frozenset(
    {
        Kind.NODE_LOST,
        Kind.COLLECTIVE_STALLED,
        Kind.RANK_RAISED,
        Kind.RANK_DIED,
        Kind.RANK_NOT_ENTERED,
    }
)
FACTS: Mapping[InjectedKind, FaultFacts] = {
    InjectedKind.stop: FaultFacts(kinds=frozenset({Kind.RANK_STOPPED}), undone="the rank goes on (SIGCONT)"),
    InjectedKind.slow: FaultFacts(kinds=frozenset({Kind.RANK_SLOW}), undone="the rank goes at its own pace (SIGCONT)"),
    InjectedKind.kill: FaultFacts(kinds=frozenset({Kind.RANK_DIED})),
    InjectedKind.raise_: FaultFacts(kinds=frozenset({Kind.RANK_RAISED}), inside=InsideFault.RAISE),
    InjectedKind.skip_collective: FaultFacts(kinds=frozenset({Kind.DESYNC}), inside=InsideFault.SKIP_COLLECTIVE),
    InjectedKind.add_collective: FaultFacts(kinds=frozenset({Kind.DESYNC}), inside=InsideFault.ADD_COLLECTIVE),
    InjectedKind.nan: FaultFacts(kinds=frozenset({Kind.NUMERIC_FIRST_RANK}), inside=InsideFault.NAN),
    InjectedKind.slow_disk: FaultFacts(
        kinds=_SLOW_DISK, undone="the file system is thawed", of_rank=False, needs=("path",)
    ),
    InjectedKind.full_disk: FaultFacts(kinds=_DISK, undone="the space is given back", of_rank=False, needs=("path",)),
    InjectedKind.kernel_line: FaultFacts(kinds=frozenset({Kind.RANK_DIED}), needs=("kernel_log",)),
    InjectedKind.port_down: FaultFacts(
        kinds=_CUT_OFF, undone="the port is up again", of_rank=False, needs=("namespace", "port")
    ),
}
