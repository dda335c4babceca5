"""The accounting against the simulator's ledger, bucket by bucket, over hours of a job's attempts: ``whichrank bench``.

The two sides share no code: the ledger books what its mechanisms did, the intervals come from records that were sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...diagnosis.goodput.account import RunAccount, account_of
from ...diagnosis.goodput.interval import Interval
from ...diagnosis.goodput.run_intervals import runs_of
from ...simulator.clock import generator
from ...simulator.cluster_topology import ClusterShape, Topology
from ...simulator.ground_truth import GroundTruth, TimeUse
from ...simulator.jobs import JobSpec, Launcher
from ...simulator.mesh import Mesh
from ...simulator.program import Recipe
from ...simulator.resources import ParameterChange
from ...simulator.scoring.summary import ScoreLine
from ...simulator.world import World
from ...telemetry.vocabulary import TimeBucket as B
from ..simulate.judge import Judge

JOB, RANKS_PER_NODE, NODES = "pretrain-a", 2, 2
#: Of ETTR, and of each bucket as a share of wall time; of what nobody can say.
LIMIT, UNKNOWN_LIMIT = 0.001, 0.01
#: Of all runs together, and of each: fewer say nothing.
FEWEST_HOURS, FEWEST_INTERRUPTIONS = 24.0, 3
#: What the ledger calls by its mechanism, and what the accounting makes of it: the same seconds.
SAME: Mapping[str, tuple[tuple[TimeUse, ...], tuple[B, ...]]] = {
    "queued": ((TimeUse.QUEUED,), (B.QUEUED,)),
    "starting": ((TimeUse.STARTING,), (B.STARTING,)),
    "productive": ((TimeUse.PRODUCTIVE,), (B.PRODUCTIVE,)),
    "rework": ((TimeUse.REWORK,), (B.REWORK,)),
    "checkpoint_save": ((TimeUse.SAVE,), (B.CHECKPOINT_SAVE,)),
    "checkpoint_restore": ((TimeUse.RESTORE,), (B.CHECKPOINT_RESTORE,)),
    "data_stall": ((TimeUse.DATA_STALL,), (B.DATA_STALL,)),
    "straggler_loss": ((TimeUse.STRAGGLER,), (B.STRAGGLER_LOSS,)),
    "fault": ((TimeUse.STALLED,), (B.FAULT_BEFORE_DETECTION, B.FAULT_AFTER_DETECTION)),
    "shutdown": ((TimeUse.SHUTDOWN,), (B.SHUTDOWN,)),
    "restarting": ((TimeUse.RESTARTING,), (B.RESTARTING,)),
    "planned": ((TimeUse.PLANNED, TimeUse.EVALUATION), (B.PLANNED,)),
    "spare": ((), (B.SPARE,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """name: of a bucket or a figure. asked, measured: in words. is_ok: whether it is within its limit."""

    name: str
    asked: str
    measured: str
    is_ok: bool


def compare(truth_ns: Mapping[TimeUse, int], wall_ns: int, found: RunAccount) -> list[ComparedFigure]:
    """Each bucket and figure of a run's account beside the ledger's, and whether it is within its limit.

    truth_ns: the ledger's sums; wall_ns: from the job's begin to its end, as the ledger has them.
    """
    rows = [
        ComparedFigure(
            name="the ledger's sum",
            asked="= wall time",
            measured=f"{sum(truth_ns.values()) - wall_ns} ns apart",
            is_ok=sum(truth_ns.values()) == wall_ns,
        ),
        ComparedFigure(
            name="sum of the buckets",
            asked="= wall time",
            measured=f"{sum(found.ns.values()) - (found.end_ns - found.begin_ns)} ns apart",
            is_ok=sum(found.ns.values()) == found.end_ns - found.begin_ns,
        ),
    ]
    for name, (ours, theirs) in SAME.items():
        true_ns, said_ns = sum(truth_ns.get(b, 0) for b in ours), sum(found.ns[b] for b in theirs)
        rows.append(
            ComparedFigure(
                name=name,
                asked=f"within {LIMIT:.1%} of wall time",
                measured=f"{said_ns / 1e9:.1f} s of {true_ns / 1e9:.1f} s, {(said_ns - true_ns) / wall_ns:+.3%}",
                is_ok=abs(said_ns - true_ns) <= LIMIT * wall_ns,
            )
        )
    unknown = found.unknown_share or 0.0
    rows.append(
        ComparedFigure(
            name="unknown", asked=f"< {UNKNOWN_LIMIT:.0%}", measured=f"{unknown:.3%}", is_ok=unknown < UNKNOWN_LIMIT
        )
    )
    true_ettr = truth_ns.get(TimeUse.PRODUCTIVE, 0) / (wall_ns - truth_ns.get(TimeUse.QUEUED, 0))
    ettr = found.ettr or 0.0
    rows.append(
        ComparedFigure(
            name="ETTR",
            asked="within 0.1 percentage points",
            measured=f"{ettr:.3%} of {true_ettr:.3%}, {ettr - true_ettr:+.3%}",
            is_ok=abs(ettr - true_ettr) <= LIMIT,
        )
    )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    ledger: GroundTruth
    intervals: tuple[Interval, ...]
    start_unix_ns: int
    found: RunAccount
    rows: tuple[ComparedFigure, ...]


def happenings(seed: int, end_s: float) -> tuple[ParameterChange, ...]:
    """The changes of a long run, by share of its time; they differ by up to some steps from seed to seed.

    A death, a slow GPU, a standstill, a stop as planned, a death after which the new start is not heard of, lost
    records, and loaders that starve.
    """
    random = generator(seed, "happenings")

    def at(share: float) -> float:
        return share * end_s + float(random.uniform(0.0, 120.0))

    def rank() -> int:
        return int(random.integers(0, NODES * RANKS_PER_NODE))

    changes: list[ParameterChange] = []

    def change(at_s: float, family: str, name: str, value: float, *places: int) -> None:
        job = JOB if family in ("process", "program") else ""
        changes.append(ParameterChange(at_s=at_s, family=family, name=name, value=value, places=places, job=job))

    change(at(0.10), "process", "alive", 0.0, rank())
    slow, since_s = rank(), at(0.18)
    change(since_s, "gpu", "speed", 0.75, slow)
    change(since_s + 0.08 * end_s, "gpu", "speed", 1.0, slow)
    change(at(0.34), "process", "input", 0.0, rank())
    asked_s = at(0.50)
    change(asked_s, "program", "granted", 0.0)
    change(asked_s + 0.03 * end_s, "program", "granted", 1.0)
    died_s = at(0.64)
    change(died_s, "process", "alive", 0.0, rank())
    change(died_s + 40.0, "agent", "loss", 1.0)  # it is gone by then, and begins 60 s later
    change(died_s + 72.0, "agent", "loss", 0.0)
    since_s = at(0.75)
    change(since_s, "agent", "loss", 0.1, 1)
    change(since_s + 0.05 * end_s, "agent", "loss", 0.0, 1)
    since_s = at(0.84)
    change(since_s, "host", "input", 0.019, 0)  # a batch takes longer than a step
    change(since_s + 0.04 * end_s, "host", "input", 1.0, 0)
    return tuple(sorted(changes, key=lambda each: each.at_s))


def long_world(seed: int, end_s: float) -> World:
    """A world with steps of 20 s on few ranks, so that an hour takes seconds. end_s: of the simulation."""
    recipe = Recipe(
        step_s=20.0,
        backend="gloo",
        timeout_s=300.0,
        saves_every=15,
        save_bytes_per_rank=4_000_000_000,
        evaluates_every=40,
        evaluation_s=60.0,
    )
    spec = JobSpec(
        name=JOB,
        mesh=Mesh(data=NODES * RANKS_PER_NODE),
        nodes=tuple(range(NODES)),
        ranks_per_node=RANKS_PER_NODE,
        recipe=recipe,
        launcher=Launcher(restart_s=60.0, most_restarts=10),
        steps=int(0.9 * end_s / 20.0),
    )
    topology = Topology(shape=ClusterShape(nodes=NODES, gpus_per_node=RANKS_PER_NODE))
    return World(topology, [spec], seed=seed, changes=happenings(seed, end_s))


def long_run(seed: int, hours: float) -> LongRun:
    """Simulates and judges a job for so many hours, and compares the accounting with the ledger.

    Raises RuntimeError where a record broke an operator.
    """
    end_s = hours * 3600.0
    world = long_world(seed, end_s)
    judge = Judge(start_unix_ns=world.start_unix_ns)
    for until_s, sent in world.run(1.25 * end_s):
        judge.take(until_s, sent)
    judge.close()
    if judge.runner.broken:
        raise RuntimeError(f"{judge.runner.broken} records broke an operator")
    return compared(world.settle(), judge.intervals)


def compared(ledger: GroundTruth, intervals: Sequence[Interval]) -> LongRun:
    """The account of the intervals compared with the ledger.

    intervals: as they were told, those that came again included.
    """
    ((run, whole),) = runs_of(intervals).items()
    found = account_of(run, whole)
    wall_ns = (ledger.reach_ns(JOB) or 0) - ledger.begin_ns(JOB)
    return LongRun(
        ledger=ledger,
        intervals=tuple(whole),
        start_unix_ns=ledger.start_unix_ns,
        found=found,
        rows=tuple(compare(ledger.sums_ns(JOB), wall_ns, found)),
    )


def accounting_lines(seeds: Sequence[int], hours: float) -> list[ScoreLine]:
    """How much was looked at, and a line for each of ``compare``'s rows, over a run of each seed.

    hours: of each, of which the job takes nine tenths; 8 take two to three minutes of CPU. Raises RuntimeError where a
    record broke an operator.
    """
    return lines_of([long_run(seed, hours) for seed in seeds])


def lines_of(runs: Sequence[LongRun]) -> list[ScoreLine]:
    """How much was looked at, and a line for each compared figure: ok where all runs are within its limit."""
    wall_h = sum(run.found.wall_ns for run in runs) / 3600e9
    fewest = min((len(run.found.interruptions) for run in runs), default=0)
    enough = sum(len(run.found.interruptions) >= FEWEST_INTERRUPTIONS for run in runs)
    return [
        ScoreLine(
            name="accounting: hours of jobs",
            asked=f">= {FEWEST_HOURS:g}",
            measured=f"{wall_h:.1f}",
            share=f"{len(runs)} runs",
            ok=wall_h >= FEWEST_HOURS,
        ),
        ScoreLine(
            name="accounting: interruptions in each run",
            asked=f">= {FEWEST_INTERRUPTIONS}, one without its start, one with lost records",
            measured=str(fewest),
            share=f"{enough} of {len(runs)}",
            ok=fewest >= FEWEST_INTERRUPTIONS,
        ),
        *(
            ScoreLine(
                name=f"accounting: {same[0].name}",
                asked=same[0].asked,
                measured="; ".join(row.measured for row in same),
                share=f"{sum(row.is_ok for row in same)} of {len(same)}",
                ok=all(row.is_ok for row in same),
            )
            for same in zip(*(run.rows for run in runs), strict=True)
        ),
    ]
