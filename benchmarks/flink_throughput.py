"""How much faster two slots are than one, each a TaskManager that a control group holds to 0.4 core.

128 jobs at the reference load, with all collectors; the topics are filled before the job is submitted. The rate is
that of the messages between two stamps, by the watermark of the last stage, after JVMs have warmed up. Beside it the
stages' own functions take the same messages without Flink: what a core of Flink does beside them is the factor of
``flink_sheet``. Needs root, for the groups.
Run: ``python -m benchmarks.flink_throughput [--jobs N] [--rounds N]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cpu_groups import CpuGroup
from benchmarks.flink_sheet import world_of
from benchmarks.flink_stage_costs import BEAT_MS, CostedStages, paced
from benchmarks.report import Report
from tests.stack.flink.fed_jobs import Feed, Sent
from tests.stack.flink.submitted import submit
from tests.stack.parts.flink import Flink
from tests.stack.parts.kafka import Kafka
from whichrank.commands.services.flink_cluster import FlinkCluster
from whichrank.commands.services.flink_process import LAST_STAGE
from whichrank.evaluation.bench.cost import as_bytes
from whichrank.simulator.clock import START_UNIX_NS, ns
from whichrank.transport.partition_keys import murmur2

SLOT_CORES = 0.4
ASKED_TIMES = 1.7
JOBS, RANKS = 128, 16
#: Of life: what is fed, from where on it counts, and how much of the end does not.
FED_S, WARM_S, LEFT_S = 70.0, 25.0, 5.0
#: Many times faster than anybody reads.
AT_ONCE = 1e9
PATIENCE_S = 1200.0
LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsRun:
    """messages, seconds: between the two stamps. cpu_s: of the TaskManagers meanwhile."""

    slots: int
    messages: int
    seconds: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def per_cpu_s(self) -> float:
        return self.messages / self.cpu_s

    @property
    def cores(self) -> float:
        """Busy, of each slot."""
        return self.cpu_s / self.seconds / self.slots


def load(jobs: int, partitions: dict[str, int]) -> list[Sent]:
    """Messages of so many jobs, in order."""
    found = []
    for _, sent in world_of((RANKS,) * jobs).run(FED_S):
        for message in as_bytes(sent):
            partition = (murmur2(message.key.encode()) & 0x7FFFFFFF) % partitions[message.topic]
            at_ms = (START_UNIX_NS + ns(message.at_s)) // 1_000_000
            found.append(Sent(at_ms, message.topic, partition, message.key.encode(), message.value))
    return sorted(found, key=lambda each: each.at_ms)


def run_slots(kafka: Kafka, folder: Path, messages: Sequence[Sent], slots: int, number: int) -> SlotsRun:
    """One cluster, filled topics, one job."""
    feed = Feed(kafka, f"slots{number}.")
    feed.run(messages, AT_ONCE)
    flink = Flink(folder / f"flink{number}", slots=1, metrics_ms=500)
    groups: list[CpuGroup] = []
    try:
        flink.start(slots)
        submit(flink, feed, parallelism=slots)
        for at, each in enumerate(flink.taskmanagers):
            groups.append(CpuGroup(f"whichrank-slot-{number}-{at}", SLOT_CORES))
            groups[-1].hold([each.pid, *(child.pid for child in psutil.Process(each.pid).children(recursive=True))])
        begin_ms = messages[0].at_ms + WARM_S * 1e3
        end_ms = messages[-1].at_ms - LEFT_S * 1e3
        first_s, first_ms, first_cpu_s = _passed(flink, begin_ms)
        last_s, last_ms, last_cpu_s = _passed(flink, end_ms)
    finally:
        flink.kill()
        for group in groups:
            group.close()
    return SlotsRun(
        slots=slots,
        messages=sum(first_ms < each.at_ms <= last_ms for each in messages),
        seconds=last_s - first_s,
        cpu_s=last_cpu_s - first_cpu_s,
    )


def _passed(flink: Flink, at_ms: float) -> tuple[float, int, float]:
    """When the last stage's time has passed a stamp: now, that time, and the TaskManagers' CPU s."""
    cluster, deadline_s = FlinkCluster(flink.rest), time.monotonic() + PATIENCE_S
    while True:
        try:
            watermark_ms = cluster.look(flink.job_id(), LAST_STAGE).watermark_ms
        except OSError:  # slow to answer, for once
            watermark_ms = None
        if watermark_ms is not None and watermark_ms >= at_ms:
            return time.monotonic(), watermark_ms, sum(_cpu_s(each.pid) for each in flink.taskmanagers)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the job's time is {watermark_ms}, not {at_ms:.0f}, after {PATIENCE_S:g} s")
        time.sleep(LOOK_S)


def _cpu_s(pid: int) -> float:
    found = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        times = process.cpu_times()
        found += times.user + times.system
    return found


def functions_per_cpu_s(messages: Sequence[Sent]) -> float:
    """Messages per CPU s of the stages' functions alone, between the same two stamps."""
    stages, counted = CostedStages(), 0
    begin_ms, end_ms = messages[0].at_ms + WARM_S * 1e3, messages[-1].at_ms - LEFT_S * 1e3
    until_ms, is_counting = messages[0].at_ms, False
    for group in paced((each.at_ms, each.topic, each.key.decode(), each.value) for each in messages):
        until_ms += BEAT_MS
        if until_ms > end_ms:
            break
        if not is_counting and until_ms > begin_ms:
            is_counting = True
            stages.begin_counting()
        counted += len(group) * is_counting
        for at_ms, topic, key, value in group:
            stages.send(topic, key, value, at_ms)
        stages.beat(until_ms)
        stages.pass_to(until_ms - 1)
    return counted / sum(cost.cpu_s for cost in stages.costs.values())


def measure(report: Report, kafka: Kafka, folder: Path, jobs: int, rounds: int) -> None:
    """Adds the rows. Raises TimeoutError where a job does not get on, OSError where no group can be made."""
    partitions = Feed(kafka, "slots.").partitions
    messages = load(jobs, partitions)
    report.shown("load", f"{jobs} jobs of {RANKS} ranks, {len(messages):,} messages in {FED_S:g} s of life")
    rates: dict[int, list[SlotsRun]] = {1: [], 2: []}
    for number in range(2 * rounds):
        slots = (1, 2)[number % 2]
        run = run_slots(kafka, folder, messages, slots, number)
        rates[slots].append(run)
        report.shown(
            f"round {number // 2 + 1}: {slots} of {SLOT_CORES} core",
            f"{run.per_s:,.0f} messages/s over {run.seconds:.0f} s; {run.cores:.2f} core busy each, "
            f"{run.per_cpu_s:,.0f} messages per CPU s",
        )
    times = [two.per_s / one.per_s for one, two in zip(rates[1], rates[2], strict=True)]
    alone = functions_per_cpu_s(messages)
    of_flink = sum(run.messages for run in rates[1]) / sum(run.cpu_s for run in rates[1])
    report.shown("the stages' functions alone", f"{alone:,.0f} messages per CPU s")
    report.shown("factor: CPU of Flink / CPU of the functions", f"{alone / of_flink:.2f}")
    report.at_least(
        "two slots / one slot",
        ASKED_TIMES,
        sorted(times)[len(times) // 2],
        k=sum(t >= ASKED_TIMES for t in times),
        n=len(times),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 ok, 1 SHORT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flink_throughput", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=1, help="of one slot, then two; the median counts")
    options = parser.parse_args(arguments)
    report = Report("Flink: one and two slots")
    with tempfile.TemporaryDirectory(prefix="flink-slots-") as folder:
        kafka = Kafka(Path(folder) / "kafka", is_quick=False)
        kafka.start()
        try:
            measure(report, kafka, Path(folder), options.jobs, options.rounds)
        finally:
            kafka.kill()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
