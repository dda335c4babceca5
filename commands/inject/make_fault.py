"""The fault of each kind, made from the options of the command line; nothing is done yet."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from ..run_folder.run_directory import Unusable
from .disk_faults import FullDisk, SlowDisk
from .injected_kinds import FACTS, InjectedKind
from .inside_fault import InsideRankFault
from .node_faults import OUT_OF_MEMORY, PlayedKernelLine, PortDown
from .signal_faults import Injection, SignalFault, SlowRank
from .target_job import TargetJob, TargetRank

MOST_PERCENT = 1900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """seconds: of the whole. percent: by which a rank's work takes longer. path: a folder of the disk. line: of the
    kernel, with {pid} and {rank}. kernel_log: the played log. namespace, port: of the network.
    """

    seconds: float = 60.0
    percent: float = 100.0
    path: Path | None = None
    line: str = OUT_OF_MEMORY
    kernel_log: Path | None = None
    namespace: str = ""
    port: str = ""


def check_options(kind: InjectedKind, options: FaultOptions) -> None:
    """Raises Unusable for an option that is missing, or out of its bounds."""
    missing = [name for name in FACTS[kind].needs if not getattr(options, name)]
    if missing:
        raise Unusable(f"{kind.value} needs {' and '.join('--' + name.replace('_', '-') for name in missing)}")
    if kind is InjectedKind.slow and not 0 < options.percent <= MOST_PERCENT:
        raise Unusable(f"--percent {options.percent:g}: from 1 to {MOST_PERCENT:g}")


def make_fault(kind: InjectedKind, job: TargetJob, rank: TargetRank, options: FaultOptions) -> tuple[Injection, str]:
    """The fault, and its target in words. Raises Unusable where it must not, or cannot, be done here."""
    who = f"rank {rank.rank}"
    if kind is InjectedKind.stop:
        return SignalFault(rank, signal.SIGSTOP), who
    if kind is InjectedKind.kill:
        return SignalFault(rank, signal.SIGKILL), who
    if kind is InjectedKind.slow:
        return SlowRank(rank, options.percent), f"{who}, {options.percent:g} % slower"
    inside = FACTS[kind].inside
    if inside is not None:
        return InsideRankFault(job.rings, rank.rank, inside, options.seconds), who
    return _of_node(kind, job, rank, options)


def _of_node(kind: InjectedKind, job: TargetJob, rank: TargetRank, options: FaultOptions) -> tuple[Injection, str]:
    path, log = options.path, options.kernel_log
    if kind is InjectedKind.full_disk and path is not None:
        return FullDisk(path, spared=(job.rings, job.run)), f"disk of {path}"
    if kind is InjectedKind.slow_disk and path is not None:
        return SlowDisk(path, spared=(job.rings, job.run)), f"disk of {path}"
    if kind is InjectedKind.kernel_line and log is not None:
        return PlayedKernelLine(rank, log, options.line), f"rank {rank.rank}, in {log}"
    assert kind is InjectedKind.port_down, kind
    return PortDown(options.namespace, options.port), f"port {options.port} of {options.namespace}"
