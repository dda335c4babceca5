"""The fault of each kind, made from the options of the command line; nothing is done yet."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from ..run_folder.run_directory import Unusable
from .fault import Fault, SignalFault, SlowRank
from .fault_kinds import FACTS, FaultKind
from .inside_fault import InsideRankFault
from .target_job import RankProcess, TargetJob

MOST_PERCENT = 1900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """seconds: of the whole. percent: by which a rank's work takes longer. path: a folder of the disk. line: of the
    kernel, with {pid} and {rank}. kernel_log: the played log. namespace, port: of the network.
    """

    seconds: float = 60.0
    percent: float = 100.0
    path: Path | None = None
    line: str = ""
    kernel_log: Path | None = None
    namespace: str = ""
    port: str = ""


def check_options(kind: FaultKind, options: FaultOptions) -> None:
    """Raises Unusable for an option that is missing, or out of its bounds."""
    missing = [name for name in FACTS[kind].needs if not getattr(options, name)]
    if missing:
        raise Unusable(f"{kind.value} needs {' and '.join('--' + name.replace('_', '-') for name in missing)}")
    if kind is FaultKind.slow and not 0 < options.percent <= MOST_PERCENT:
        raise Unusable(f"--percent {options.percent:g}: from 1 to {MOST_PERCENT:g}")


def make_fault(kind: FaultKind, job: TargetJob, rank: RankProcess, options: FaultOptions) -> tuple[Fault, str]:
    """The fault, and its target in words. Raises Unusable where it must not, or cannot, be done here."""
    who = f"rank {rank.rank}"
    if kind is FaultKind.stop:
        return SignalFault(rank, signal.SIGSTOP), who
    if kind is FaultKind.kill:
        return SignalFault(rank, signal.SIGKILL), who
    if kind is FaultKind.slow:
        return SlowRank(rank, options.percent), f"{who}, {options.percent:g} % slower"
    inside = FACTS[kind].inside
    if inside is not None:
        return InsideRankFault(job.rings, rank.rank, inside, options.seconds), who
    raise Unusable(f"{kind.value}: cannot be done here")
