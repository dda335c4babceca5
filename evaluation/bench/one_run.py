"""One run of the bench, in a process of its own, which can be left when it takes too long or too much memory."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from ...commands.run_folder.run_description import RunDescription
from ...commands.run_folder.run_directory import RunDirectory
from ...commands.support.gc_tuning import search_seldom
from ...simulator.ground_truth import GroundTruth
from ...simulator.scenarios.grounds import ground_of
from ...simulator.scenarios.scenarios import SCENARIOS, Setting
from ...simulator.world import World
from ...telemetry.incident import canonical_line
from ..simulate.judge import CaptureBus, Judge
from .simple_detector import SimpleDetector

_END_S = 5.0
#: Of the runs of each scenario, those in which the collectors do not watch that would tell of the fault.
BLIND_SHARE = 0.45
#: Of a run's memory: before its ranks are counted, and for each of them.
_MEMORY_BYTES, _MEMORY_BYTES_PER_RANK = 2 << 30, 512 << 10


class Run(Protocol):
    """What can be run. keep: the folder where what the detectors may read is kept; None: nowhere. compares: whether the
    simple detector watches, too. seconds: of the simulation. most_memory_bytes: more, and it ends as one that could not
    be scored."""

    @property
    def keep(self) -> Path | None:
        """The folder where what the detectors may read is kept; None: nowhere."""
        ...

    @property
    def compares(self) -> bool:
        """Whether the simple detector watches, too."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds of the simulation."""
        ...

    @property
    def most_memory_bytes(self) -> int:
        """The most that the run's process may hold; with more it ends as one that could not be scored."""
        ...

    def build(self) -> World:
        """The world of the run. Raises ValueError for what cannot be laid out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """One run of a scenario. The seed says which ground it is on (``simulator.scenarios.grounds``).

    is_plain: no harmless anomalies stand beside the fault, and every collector watches.
    """

    scenario: str
    ranks: int
    seed: int
    is_plain: bool = False
    keep: Path | None = None

    @property
    def name(self) -> str:
        """The name under which ``KeptRuns`` has the run: scenario, ranks, seed."""
        return f"{self.scenario}-{self.ranks}-{self.seed}{'-plain' if self.is_plain else ''}"

    @property
    def compares(self) -> bool:
        """Always True: the simple detector watches as well."""
        return True

    @property
    def seconds(self) -> float:
        """Seconds of the simulation: as long as the scenario asks for."""
        return 60.0 * SCENARIOS[self.scenario].minutes

    @property
    def most_memory_bytes(self) -> int:
        """The most that the run's process may hold; it grows with the ranks."""
        return most_memory_bytes(self.ranks)

    def setting(self) -> Setting:
        """Where and when what happens in the run. Raises ValueError for what cannot be laid out."""
        return SCENARIOS[self.scenario].lay_out(
            self.ranks,
            self.seed,
            ground=ground_of(self.scenario, self.seed),
            company=not self.is_plain,
            blind_share=0.0 if self.is_plain else BLIND_SHARE,
        )

    def build(self) -> World:
        """The world of the run. Raises ValueError for what cannot be laid out."""
        return self.setting().world(self.seed, self.scenario)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """truth: None where it is not known yet. revisions, simple: what the operators and the simple detector concluded,
    JSON of an incident each, as a foreign detector writes it. cpu_s: of the operators; wall_s: of everything.
    problem: why there is nothing; one line. memory_bytes: the most that the process has held.
    """

    truth: GroundTruth | None
    revisions: Sequence[bytes] = ()
    simple: Sequence[bytes] = ()
    cpu_s: float = 0.0
    wall_s: float = 0.0
    rank_hours: float = 0.0
    memory_bytes: int = 0
    out_of_time: bool = False
    problem: str = ""


def most_memory_bytes(ranks: int) -> int:
    """The most that a run's process may hold: a fixed part, and so much for each rank."""
    return _MEMORY_BYTES + ranks * _MEMORY_BYTES_PER_RANK


def truth_before(asked: Run) -> GroundTruth:
    """What will be true of the run, without having run it. Raises ValueError for what cannot be laid out."""
    return asked.build().ledger


def run(asked: Run) -> MeasuredRun:
    """Runs it in this process, with its detectors. Raises OSError where nothing can be kept."""
    under_way = UnderWay(asked.build(), keep=asked.keep, compares=asked.compares)
    under_way.go_on(asked.seconds)
    return under_way.end()


class UnderWay:
    """A world that is judged while it goes on. keep, compares: as of ``Run``.

    Raises OSError where nothing can be kept.
    """

    def __init__(self, world: World, *, keep: Path | None = None, compares: bool = True) -> None:
        self.world, self._keep = world, keep
        bus = None
        if keep is not None:
            bus = CaptureBus(RunDirectory(keep).capture, start_unix_ns=world.start_unix_ns)
        self._judge = Judge(bus, start_unix_ns=world.start_unix_ns)
        self._simple = SimpleDetector(start_unix_ns=world.start_unix_ns) if compares else None
        self._wall_s = self._cpu_s = 0.0

    def go_on(self, until_s: float) -> None:
        """Simulates and judges on until ``until_s``, seconds of the simulation."""
        began_s = time.monotonic()
        for end_s, sent in self.world.run(until_s):
            since_s = time.process_time()
            self._judge.take(end_s, sent)
            self._cpu_s += time.process_time() - since_s
            if self._simple is not None:
                self._simple.take(end_s, sent)
        self._wall_s += time.monotonic() - began_s

    def end(self) -> MeasuredRun:
        """Ends the run, and gives what was concluded until now, with the truth.

        Raises OSError where it cannot be kept.
        """
        judge, world, seconds = self._judge, self.world, self.world.now_s
        judge.close()
        if self._keep is not None:
            # Neither the scenario nor the seed: whoever knows them knows the truth.
            started_s = world.start_unix_ns / 1e9
            description = RunDescription(
                command=("whichrank", "bench"),
                started=started_s,
                ended=started_s + seconds,
                listens=True,
                simulated=True,
            )
            RunDirectory(self._keep).write_run(description)
        return MeasuredRun(
            truth=world.settle(),
            revisions=[canonical_line(revision.document) for revision in judge.revisions],
            simple=self._simple.revisions if self._simple is not None else (),
            cpu_s=self._cpu_s,
            wall_s=self._wall_s,
            # Of jobs one after the other on the same nodes, as many run at a time as there are GPUs.
            rank_hours=min(sum(job.spec.mesh.world_size for job in world.jobs), world.topology.gpus) * seconds / 3600.0,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            problem=f"the operators failed {judge.runner.broken} times" if judge.runner.broken else "",
        )


def run_apart(asked: Run, *, limit_s: float) -> MeasuredRun:
    """Runs it with its detectors in a process of its own, for at most ``limit_s``.

    A process that is late or ends is a problem of the result. Raises ValueError for what cannot be laid out.
    """
    truth = truth_before(asked)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(asked, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            return MeasuredRun(truth=truth, out_of_time=True, problem=f"not done after {limit_s:.0f} s")
        measured = ours.recv()
    except EOFError:
        process.join(_END_S)
        return MeasuredRun(truth=truth, problem=f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join(_END_S)
        ours.close()
    if isinstance(measured, str):
        return MeasuredRun(truth=truth, problem=measured)
    assert isinstance(measured, MeasuredRun)
    return measured


def _work(asked: Run, result: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (asked.most_memory_bytes,) * 2)
    search_seldom()  # as a service does
    try:
        result.send(run(asked))
    except MemoryError:
        result.send(f"needs more than {asked.most_memory_bytes >> 20} MiB of memory")
    result.close()
