"""Which rank is on which GPU: what the driver says of its processes, and else what the ranks were started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....telemetry.vocabulary import EventName
from .driver import Gpu
from .gathering import GpuCollection, labels_of
from .maker import Maker, ProcessesUnknown
from .ranks import CERTAIN, DOUBTFUL, LIKELY, GpuRankProcesses, Placement, RankProcess
from .values import Value

#: More processes on one GPU than this: counted, and the rest not told apart.
_MAX_PROCESSES = 32
_CERTAINTIES = (DOUBTFUL, LIKELY, CERTAIN)


class RankPlacer:
    """Tells each rank's GPU once (``RANK_DEVICE``), and again when it is known better."""

    def __init__(self, maker: Maker, proc: Path) -> None:
        self._maker = maker
        self._ranks = GpuRankProcesses(proc)
        #: By pid, start, GPU and instance: how certain it was told.
        self._told: dict[tuple[int, int, str, str], int] = {}
        self._seen: set[tuple[int, int]] = set()

    def place(self, gpus: Sequence[Gpu], reachable: Sequence[Gpu], out: GpuCollection) -> None:
        """Adds a RANK_DEVICE event to ``out`` for each rank whose GPU is now known, or known better than it was told.

        gpus: all that are expected, by index: a rank counts those that are lost by now as well. reachable: the others.
        """
        ranks = self._ranks.look()
        by_environment = {pid: self._maker.place(rank, gpus) for pid, rank in ranks.items()}
        told_by_driver, complete = self._place_by_driver(reachable, ranks, by_environment, out)
        for pid, rank in ranks.items():
            key = (pid, rank.start_ticks)
            guess = by_environment[pid]
            # The driver names a rank as soon as it has a context: only if it still does not, its environment speaks.
            if guess is None or pid in told_by_driver or (complete and key not in self._seen):
                continue
            if complete and guess.method == "local_rank":
                why = "; ".join(filter(None, (guess.why, "the driver knows of no process of it")))
                guess = replace(guess, certainty=DOUBTFUL, why=why)
            self._report_place(rank, guess, {}, out)
        self._seen = {(pid, rank.start_ticks) for pid, rank in ranks.items()}
        self._told = {key: value for key, value in self._told.items() if key[:2] in self._seen}

    def _place_by_driver(
        self,
        reachable: Sequence[Gpu],
        ranks: Mapping[int, RankProcess],
        guesses: Mapping[int, Placement | None],
        out: GpuCollection,
    ) -> tuple[set[int], bool]:
        """Pids that the driver named; and whether every GPU named its processes."""
        named: set[int] = set()
        complete = True
        for gpu in reachable:
            try:
                processes = self._maker.processes(gpu)
            except ProcessesUnknown as error:
                if str(error):  # else it is lost, which the next look tells
                    complete = False
                    out.problem(f"GPU: no processes: {error}; ranks are placed by their environment")
                continue
            out.add(labels_of(gpu), (Value("whichrank.gpu.processes", float(len(processes))),))
            for process in processes[:_MAX_PROCESSES]:
                memory_bytes = process.memory_bytes
                if memory_bytes is not None:
                    labels = {"process.pid": str(process.pid)}
                    out.add(labels_of(gpu), (Value("whichrank.gpu.process.memory", float(memory_bytes), labels),))
                rank = ranks.get(process.pid)
                if rank is None:
                    continue
                named.add(rank.pid)
                method = f"{self._maker.source}_processes"
                place = Placement(gpu=gpu, mig=process.mig, method=method, certainty=CERTAIN)
                guess = guesses[rank.pid]
                more: dict[str, Any] = {"gpu_memory_bytes": memory_bytes} if memory_bytes is not None else {}
                if guess is not None and guess.certainty == LIKELY:
                    more["expected"] = guess.gpu.uuid == gpu.uuid
                self._report_place(rank, place, more, out)
        return named, complete

    def _report_place(self, rank: RankProcess, place: Placement, more: Mapping[str, Any], out: GpuCollection) -> None:
        """Once per rank and GPU, and again when it is more certain."""
        key = (rank.pid, rank.start_ticks, place.gpu.uuid, place.mig)
        certainty = _CERTAINTIES.index(place.certainty)
        if certainty <= self._told.get(key, -1):
            return
        self._told[key] = certainty
        attributes: dict[str, Any] = {
            "pid": rank.pid,
            "local_rank": rank.local_rank,
            "gpu_uuid": place.gpu.uuid,
            "gpu_index": place.gpu.index,
            "pci_bus": place.gpu.pci_bus,
            "mig": place.mig,
            "method": place.method,
            "certainty": place.certainty,
            **more,
        }
        if rank.rank >= 0:
            attributes["rank"] = rank.rank
        if place.why:
            attributes["why"] = place.why
        out.tell(EventName.RANK_DEVICE, attributes, pid=rank.pid)
