"""The Flink engine against the embedded one: the same incidents, each revision once, whatever is killed in between.

A real cluster of one JobManager and two TaskManagers, a real broker, simulated jobs with the simulation's stamps. Each
row is run some times, disturbed at a random moment. Asked of each run: every revision is the twin's, none is told
twice, none is missing, no silence is told that was none.
Speed is measured by ``flink_throughput``, the sheet for a million GPUs made by ``flink_sheet``.
Run: ``make setup-flink``, then ``python -m benchmarks.flink_matrix [--only ROW,ROW] [--runs N] [--seed N]``.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.flink_latency import CHECKPOINT_S, measure_latency
from tests.same_incidents.facts import first_difference
from tests.stack.flink.fed_jobs import FedJob, Feed, Sent, by_id, difference, messages_of, repeated, twin_of
from tests.stack.flink.poison import poisoned
from tests.stack.flink.submitted import submit
from tests.stack.parts.flink import Flink
from tests.stack.parts.kafka import Kafka
from whichrank.telemetry.topics import TOPIC_DLQ
from whichrank.transport.kafka_client import KafkaTrouble

#: Kinds that say that nothing was heard: more of them than the twin has are false.
ABSENCES = frozenset({"agent_silent", "node_lost", "input_silent"})
#: After the last message everything is told within so long, JVMs that start anew on a busy machine included.
PATIENCE_S = 600.0
SETTLED_S = 4.0
STOP_TRIES = 6
#: The row that runs at the pace of life.
LATENCY = "latency"
SCENARIOS = (
    "process_killed",
    "never_enters",
    "slow_gpu",
    "other_branch",
    "exception",
    "gpu_off_the_bus",
    "process_stopped",
    "bad_numbers",
)


@dataclass(slots=True, kw_only=True)
class Arena:
    """What runs, and what a row may do to it."""

    kafka: Kafka
    flink: Flink
    chance: random.Random
    feed: Feed
    #: What was done, for the line of the run.
    done: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """asked: in words. disturb: called once, at a random moment of the feed. speed: times the pace of life."""

    name: str
    asked: str
    jobs: Sequence[FedJob]
    disturb: Callable[[Arena], None] | None = None
    runs: int = 5
    speed: float = 6.0
    parallelism: int = 2
    with_poison: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRun:
    """What one run came to. difference: where it parts from the twin, "" nowhere. is_whole: it came to its end."""

    difference: str
    twice: int
    missing: int
    absences: int
    seconds: float
    done: str
    is_whole: bool = True

    @property
    def is_ok(self) -> bool:
        return not (self.difference or self.twice or self.missing or self.absences)


def few_jobs() -> list[FedJob]:
    """Six worlds of small jobs: a crash, a hang, a slow rank, a desync, an exception, a lost device."""
    return [
        FedJob(scenario=name, ranks=16, number=number + 1, after_s=2.7 * number)
        for number, name in enumerate(SCENARIOS[:6])
    ]


def many_jobs() -> list[FedJob]:
    """60 worlds: 64 ranks, some of 256, one of 1,024; jobs that share a cause, jobs that come again."""
    jobs = [
        FedJob(scenario=SCENARIOS[number % len(SCENARIOS)], ranks=64, number=number + 1, after_s=1.7 * (number % 31))
        for number in range(54)
    ]
    jobs += [FedJob(scenario="never_enters", ranks=256, number=70 + number) for number in range(2)]
    jobs += [FedJob(scenario="process_killed", ranks=1024, number=80)]
    jobs += [FedJob(scenario="requeued_again", ranks=64, number=81 + number) for number in range(2)]
    return [*jobs, FedJob(scenario="metadata_storm", ranks=64, number=90)]


def kill_taskmanager(arena: Arena) -> None:
    alive = [each for each in arena.flink.taskmanagers if each.running]
    arena.chance.choice(alive).kill()
    arena.flink.add_taskmanager()
    arena.done.append("a TaskManager killed")


def kill_jobmanager(arena: Arena) -> None:
    arena.flink.jobmanager.kill()
    arena.flink.jobmanager.start()
    arena.done.append("the JobManager killed")


def kill_broker(arena: Arena) -> None:
    arena.kafka.kill()
    time.sleep(arena.chance.uniform(0.5, 6.0))
    arena.kafka.start()
    arena.done.append("the broker killed")


def _savepoint(flink: Flink) -> str:
    """Its path. A job whose tasks do not all run yet is asked again, as a person would."""
    for _ in range(STOP_TRIES - 1):
        flink.wait_for_state("RUNNING")
        with contextlib.suppress(AssertionError):
            return _stopped(flink)
        time.sleep(5.0)
    return _stopped(flink)


def _stopped(flink: Flink) -> str:
    found = re.search(r"Path: (\S+)", flink.command("stop", flink.job_id()))
    assert found, "flink stop names no savepoint"
    return found[1]


def rescale(arena: Arena) -> None:
    """A savepoint, new TaskManagers as after an upgrade, and four instances in place of one."""
    savepoint = _savepoint(arena.flink)
    for each in arena.flink.taskmanagers:
        each.kill()
    for _ in range(2):
        arena.flink.add_taskmanager()
    submit(arena.flink, arena.feed, parallelism=4, savepoint=savepoint)
    arena.done.append("savepoint, new TaskManagers, 1 to 4")


def rows() -> dict[str, MatrixRow]:
    few = few_jobs()
    told = [
        MatrixRow(name="same", asked=">= 60 jobs: every revision is the twin's", jobs=many_jobs(), runs=1, speed=1.0),
        MatrixRow(name="taskmanager", asked="kill -9 of a TaskManager", jobs=few, disturb=kill_taskmanager),
        MatrixRow(name="jobmanager", asked="kill -9 of the JobManager (ZooKeeper)", jobs=few, disturb=kill_jobmanager),
        MatrixRow(name="broker", asked="kill -9 of the broker", jobs=few, disturb=kill_broker),
        MatrixRow(name="rescale", asked="savepoint, upgrade, 1 to 4", jobs=few, disturb=rescale, parallelism=1),
        MatrixRow(name="poison", asked="poison of every kind", jobs=few, with_poison=True),
    ]
    return {row.name: row for row in told}


class Matrix:
    """Runs rows on one broker and one cluster, which are started once."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance, self._folder = random.Random(seed), folder
        self._kafka = Kafka(folder / "kafka", is_quick=False)
        self._flink = Flink(folder / "flink", with_zookeeper=True)
        self._twins: dict[str, list[dict[str, object]]] = {}
        self._number = 0

    def __enter__(self) -> Matrix:
        self._kafka.start()
        self._flink.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._flink.kill()
        self._kafka.kill()

    def run(self, row: MatrixRow) -> MatrixRun:
        """A run that does not come to its end is a run that is not ok; the next one has a cluster of its own."""
        self._number += 1
        began_s = time.monotonic()
        try:
            return self._run(row, began_s)
        except (AssertionError, OSError, KafkaTrouble, subprocess.TimeoutExpired) as error:
            self._flink.kill()
            self._flink = Flink(self._folder / f"flink{self._number}", with_zookeeper=True)
            self._flink.start()
            why = f"did not come to its end: {str(error)[-1500:]}"
            seconds = time.monotonic() - began_s
            return MatrixRun(difference=why, twice=0, missing=0, absences=0, seconds=seconds, done="", is_whole=False)

    def _run(self, row: MatrixRow, began_s: float) -> MatrixRun:
        feed = Feed(self._kafka, f"matrix{self._number}.")
        messages = messages_of(row.jobs, feed.partitions)
        if row.with_poison:
            messages = poisoned(messages, feed.partitions, self._chance)
        if row.with_poison or row.name not in self._twins:
            self._twins[row.name] = twin_of(messages)
        twin = self._twins[row.name]
        if not self._flink.jobmanager.running:  # it ends itself where ZooKeeper starves
            self._flink.jobmanager.start()
        arena = Arena(kafka=self._kafka, flink=self._flink, chance=self._chance, feed=feed)
        submit(self._flink, feed, parallelism=row.parallelism)
        feeding = threading.Thread(target=feed.run, args=(messages, row.speed), daemon=True)
        feeding.start()
        if row.disturb is not None:
            self._disturb(row, arena, messages)
        feeding.join()
        told = self._all_incidents(feed, len(twin))
        letters = feed.count(TOPIC_DLQ)
        self._flink.command("cancel", self._flink.job_id())
        if row.with_poison:
            arena.done.append(f"{letters} dead letters")
        return self._judged(twin, told, time.monotonic() - began_s, arena.done)

    def latency_line(self, folder: Path) -> tuple[str, bool]:
        """The line of the row that runs at the pace of life, and whether it is ok."""
        self._number += 1
        run = measure_latency(self._kafka, self._flink, few_jobs(), f"matrix{self._number}.", folder)
        asked = f"first told <= {CHECKPOINT_S + 1:g} s after embedded, p95"
        measured = f"{len(run.later_s)} incidents; p95 {run.p95_s:.2f} s, {len(run.only_one)} of one engine alone"
        print(f"{LATENCY}: {', '.join(run.only_one) or 'nothing of one engine alone'}", flush=True)
        return _row_of(asked, measured, int(run.is_ok), 1), run.is_ok

    def _disturb(self, row: MatrixRow, arena: Arena, messages: Sequence[Sent]) -> None:
        assert row.disturb is not None
        length_s = (messages[-1].at_ms - messages[0].at_ms) / 1e3 / row.speed
        at_s = self._chance.uniform(0.15, 0.85) * length_s
        while not arena.feed.began_s:
            time.sleep(0.05)
        time.sleep(max(0.0, arena.feed.began_s + at_s - time.monotonic()))
        row.disturb(arena)
        arena.done.append(f"{at_s:.1f} s of {length_s:.0f} s in")

    def _all_incidents(self, feed: Feed, count: int) -> list[dict[str, object]]:
        """All revisions, when as many as the twin's are there and nothing more comes."""
        until_s = time.monotonic() + PATIENCE_S
        told = feed.incidents()
        while len(told) < count and time.monotonic() < until_s:
            time.sleep(1.0)
            told = feed.incidents()
        time.sleep(SETTLED_S)
        return feed.incidents()

    @staticmethod
    def _judged(
        twin: Sequence[Mapping[str, object]], told: Sequence[Mapping[str, object]], seconds: float, done: Sequence[str]
    ) -> MatrixRun:
        twins, tolds = by_id(twin), by_id(told)
        expected = {f"{each['id']}/{each['revision']}" for each in twin}
        found = {f"{each['id']}/{each['revision']}" for each in told}
        absences = {name for name, revisions in tolds.items() if revisions[-1]["kind"] in ABSENCES} - set(twins)
        return MatrixRun(
            difference=difference(twin, told) or first_difference(twins, tolds),
            twice=len(repeated(told)),
            missing=len(expected - found),
            absences=len(absences),
            seconds=seconds,
            done=", ".join(done),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 all rows ok, 1 some SHORT."""
    known = rows()
    choices = [*known, LATENCY]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flink_matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="ROW,ROW", help=", ".join(choices))
    parser.add_argument("--runs", type=int, default=0, help="of each row; default: the row's own")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments")
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name] or choices
    if unknown := set(names) - set(choices):
        parser.error(f"no row is called {' or '.join(sorted(unknown))}; there are {', '.join(choices)}")
    lines, short = [], 0
    with tempfile.TemporaryDirectory(prefix="flink-matrix-") as folder, Matrix(Path(folder), options.seed) as matrix:
        for name in names:
            if name == LATENCY:
                line, is_ok = matrix.latency_line(Path(folder))
                lines.append(line)
                short += not is_ok
                continue
            runs = [_print_run(name, matrix.run(known[name])) for _ in range(options.runs or known[name].runs)]
            lines.append(_line(known[name], runs))
            short += not all(run.is_ok for run in runs)
    print(f"\nFlink beside the embedded engine, seed {options.seed}")
    print("\n".join(lines))
    print(f"{len(lines) - short} of {len(lines)} lines ok, {short} SHORT", flush=True)
    return int(short > 0)


def _print_run(name: str, run: MatrixRun) -> MatrixRun:
    state = "ok" if run.is_ok else f"SHORT: {run.difference[:1500]}"
    counts = f"{run.missing} missing, {run.twice} twice, {run.absences} false absences"
    print(f"{name}: {run.seconds:.0f} s, {run.done or 'undisturbed'}, {counts}: {state}", flush=True)
    return run


def _line(row: MatrixRow, runs: Sequence[MatrixRun]) -> str:
    good = sum(run.is_ok for run in runs)
    missing, twice, absences = (sum(getattr(run, what) for run in runs) for what in ("missing", "twice", "absences"))
    measured = f"{len(row.jobs)} worlds; {missing} missing, {twice} twice, {absences} false absences"
    if broken := sum(not run.is_whole for run in runs):
        measured += f"; {broken} did not end"
    return _row_of(row.asked, measured, good, len(runs))


def _row_of(asked: str, measured: str, good: int, of: int) -> str:
    return f"{asked:<42} | {measured:<58} | {good} of {of} | {'ok' if good == of else 'SHORT'}"


if __name__ == "__main__":
    sys.exit(main())
