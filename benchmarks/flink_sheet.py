"""A sheet for 1,000,000 GPUs in 2,000 jobs on Flink: partitions, slots, memory and MB/s, made of measured costs.

The largest job (131,072 ranks) whole, and one of a hundred of the others, go through the job's stages by hand
(``flink_stage_costs``), not live: every figure of the sheet is theirs, times how much more there is. What Flink adds to
the functions' own time is a factor that ``flink_throughput`` measures; without ``--factor`` the sheet is without it.
Run: ``python -m benchmarks.flink_sheet [--factor X] [--largest RANKS] [--seconds N]`` (3 GB; about an hour of a core).
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.flink_stage_costs import BEAT_MS, INTAKE, CostedStages, StageCost, Told, paced
from benchmarks.report import Report
from whichrank.evaluation.bench.cost import as_bytes
from whichrank.processors.flink.stage_elements import Stage
from whichrank.simulator.clock import START_UNIX_NS, ns
from whichrank.simulator.cluster_topology import ClusterShape, Topology
from whichrank.simulator.jobs import JobSpec
from whichrank.simulator.mesh import mesh_for
from whichrank.simulator.world import World
from whichrank.telemetry.topics import TOPIC_BLOCKS

GPUS, JOBS, LARGEST = 1_000_000, 2_000, 131_072
RANKS_PER_NODE = 8
#: One of a hundred of the others: 20 jobs of 8,704 ranks, as 1,999 jobs of the ranks that are left.
OTHERS = (2048, *(1024,) * 2, *(512,) * 4, *(256,) * 5, *(160,) * 8)
#: Of the largest job so many nodes have collectors: to simulate the looks of all takes hours; ``OTHERS`` have all.
SENSED_OF_LARGEST = 32
#: The groups of a stage's data parallelism stay below what an agent tells of members.
STAGES_OF_LARGEST = 8
#: By then jobs make steps.
WARM_S = 16.0
#: A slot is a core that is busy so much; a partition takes so much.
BUSY, PARTITION_BYTES_S = 0.6, 5e6
MEASURED_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesRun:
    """What so many ranks cost in so many seconds of life. wire_bytes: on the topic of blocks."""

    ranks: int
    nodes: int
    seconds: float
    costs: dict[str, StageCost]
    wire_bytes: int
    kept_bytes: dict[str, int]
    wall_s: float
    memory_bytes: int

    def cores(self, stage: str) -> float:
        """Busy cores of a stage where time goes as in life."""
        return self.costs[stage].cpu_s / self.seconds

    def us(self, stage: str) -> float:
        """CPU us per rank and second."""
        return 1e6 * self.cores(stage) / self.ranks

    def busiest_cores(self, stage: Stage) -> float:
        """Of the stage's shard that costs most."""
        return max(self.costs[stage.value].shard_cpu_s.values(), default=0.0) / self.seconds


def run_stages(world: World, seconds: float, warm_s: float = WARM_S) -> StagesRun:
    """The world's messages through the stages; counted after ``warm_s``."""
    stages, is_counting, wire_bytes, began_s = CostedStages(), False, 0, 0.0
    begin_ms = START_UNIX_NS // 1_000_000
    until_ms = begin_ms
    for group in paced(_told(world, warm_s + seconds)):
        until_ms += BEAT_MS
        if not is_counting and until_ms >= begin_ms + warm_s * 1e3:
            is_counting, began_s = True, time.monotonic()
            stages.begin_counting()
        for at_ms, topic, key, value in group:
            stages.send(topic, key, value, at_ms)
            wire_bytes += len(value) * (is_counting and topic == TOPIC_BLOCKS)
        stages.beat(until_ms)
        stages.pass_to(until_ms - 1)
    stages.close_counting()
    return StagesRun(
        ranks=sum(job.spec.mesh.world_size for job in world.jobs),
        nodes=world.topology.nodes,
        seconds=seconds,
        costs=stages.costs,
        wire_bytes=wire_bytes,
        kept_bytes={stage.value: stages.kept_bytes(stage) for stage in Stage},
        wall_s=time.monotonic() - began_s,
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _told(world: World, seconds: float) -> Iterator[Told]:
    for _, sent in world.run(seconds):
        for message in as_bytes(sent):
            yield (START_UNIX_NS + ns(message.at_s)) // 1_000_000, message.topic, message.key, message.value


def world_of(sizes: Sequence[int], *, pipeline: int = 1, senses: bool | int = True) -> World:
    """Jobs of so many ranks side by side. senses: whether nodes have collectors, or how many of them."""
    specs, first = [], 0
    for number, ranks in enumerate(sizes):
        places = tuple(range(first, first + ranks // RANKS_PER_NODE))
        first += len(places)
        specs.append(JobSpec(name=f"job-{number}", mesh=mesh_for(ranks, pipeline=pipeline), nodes=places))
    nodes = senses if isinstance(senses, bool) else range(0, first, max(1, first // senses))
    return World(Topology(shape=ClusterShape(nodes=first)), specs, seed=1, senses=nodes)


def print_run(report: Report, name: str, run: StagesRun) -> None:
    """What was measured."""
    cpu_s = sum(cost.cpu_s for cost in run.costs.values()) / run.seconds
    report.shown(f"{name}: CPU s per simulated second, all stages", f"{cpu_s:.2f}")
    report.shown(f"{name}: wall s per simulated second, simulation included", f"{run.wall_s / run.seconds:.1f}")
    per_stage = ", ".join(f"{stage} {run.us(stage):.1f}" for stage in run.costs)
    report.shown(f"{name}: CPU us per rank and second", per_stage)
    handed = run.costs[Stage.JOBS.value].taken_bytes
    report.shown(
        f"{name}: bytes per rank and second into stage one, on to jobs",
        f"{run.costs[INTAKE].taken_bytes / run.ranks / run.seconds:,.0f}, {handed / run.ranks / run.seconds:,.0f}",
    )
    written = sum(cost.written_bytes for cost in run.costs.values())
    report.shown(
        f"{name}: state, bytes per rank; written per rank and second",
        f"{sum(run.kept_bytes.values()) / run.ranks:,.0f}; {written / run.ranks / run.seconds:,.0f}",
    )
    report.shown(f"{name}: memory of the process, simulation included", f"{run.memory_bytes / 2**30:.2f} GiB")


def print_sheet(report: Report, largest: StagesRun, others: StagesRun, factor: float) -> None:
    """The sheet. factor: what a core of Flink does beside the functions, times their time."""
    times = (GPUS - largest.ranks) / others.ranks
    node_times = (GPUS - largest.ranks) / RANKS_PER_NODE / others.nodes
    # The largest job's nodes cost what others' do: few of them had collectors.
    entity_times = GPUS / RANKS_PER_NODE / others.nodes
    # Metrics and logs of nodes are in the intake of the others, blocks are the largest job's own.
    intake = largest.cores(INTAKE) + times * others.cores(INTAKE)
    parts = {
        INTAKE: intake + largest.nodes / others.nodes * _metrics_cores(others),
        Stage.RANGES.value: largest.cores(Stage.RANGES.value) + times * others.cores(Stage.RANGES.value),
        Stage.JOBS.value: largest.cores(Stage.JOBS.value) + times * others.cores(Stage.JOBS.value),
        Stage.ENTITIES.value: entity_times * others.cores(Stage.ENTITIES.value),
        Stage.CLUSTERS.value: largest.cores(Stage.CLUSTERS.value) + times * others.cores(Stage.CLUSTERS.value),
    }
    blocks = largest.wire_bytes / largest.seconds + times * others.wire_bytes / others.seconds
    of_nodes = (others.costs[INTAKE].taken_bytes - others.wire_bytes) / others.seconds
    whole = blocks + of_nodes * (node_times + largest.nodes / others.nodes)
    report.shown("on Kafka, before compression", f"{whole / 1e6:,.0f} MB/s, of it {blocks / 1e6:,.0f} in blocks")
    report.shown(
        f"partitions at {PARTITION_BYTES_S / 1e6:g} MB/s: blocks, others",
        f"{math.ceil(blocks / PARTITION_BYTES_S)}, {math.ceil((whole - blocks) / PARTITION_BYTES_S)};"
        f" the largest job's one partition takes {largest.wire_bytes / largest.seconds / 1e6:.1f} MB/s",
    )
    for stage, cores in parts.items():
        slots = math.ceil(factor * cores / BUSY)
        report.shown(f"{stage}: cores; slots that are {BUSY:.0%} busy", f"{factor * cores:,.1f}; {slots:,}")
    report.shown("slots, all stages", f"{math.ceil(factor * sum(parts.values()) / BUSY):,}")
    state = sum(largest.kept_bytes.values()) + times * sum(others.kept_bytes.values())
    written = sum(c.written_bytes for c in largest.costs.values()) / largest.seconds
    written += times * sum(c.written_bytes for c in others.costs.values()) / others.seconds
    report.shown("state in keyed state; written", f"{state / 2**30:,.1f} GiB; {written / 1e6:,.0f} MB/s")
    # A working copy of arrays beside the rows, and the elements that wait for their time.
    report.shown("memory: rows, working copies, JVM at 0.6 GiB a slot", _memory(state, parts, factor))
    for of in (Stage.RANGES, Stage.JOBS):
        busiest = factor * largest.busiest_cores(of)
        report.at_most(f"cores of the busiest shard of {of.value} (one thread)", 1.0, busiest)


def _metrics_cores(others: StagesRun) -> float:
    """Of the intake, what is no block: by bytes."""
    taken = others.costs[INTAKE].taken_bytes
    return others.cores(INTAKE) * (taken - others.wire_bytes) / max(1, taken)


def _memory(state: float, parts: dict[str, float], factor: float) -> str:
    slots = math.ceil(factor * sum(parts.values()) / BUSY)
    return f"{2 * state / 2**30 + 0.6 * slots:,.0f} GiB"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 all lines ok, 1 some SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flink_sheet", description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=1.0, help="a core of Flink, in cores of the functions alone")
    parser.add_argument("--largest", type=int, default=LARGEST, help="ranks of the largest job")
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="of life that are measured")
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds of life before that")
    options = parser.parse_args(arguments)
    report = Report(f"{GPUS:,} GPUs in {JOBS:,} jobs on Flink, from measured costs")
    others = run_stages(world_of(OTHERS), options.seconds, options.warm)
    print_run(report, f"{len(OTHERS)} jobs of {others.ranks:,} ranks", others)
    world = world_of([options.largest], pipeline=STAGES_OF_LARGEST, senses=SENSED_OF_LARGEST)
    largest = run_stages(world, options.seconds, options.warm)
    print_run(report, f"one job of {largest.ranks:,} ranks", largest)
    print_sheet(report, largest, others, options.factor)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
