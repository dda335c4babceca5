"""JobOperator throughput on one core: collective records a second, from bytes to findings, on blocks of real ranks.

Four real ranks run under ``whichrank run``; their capture is replicated to jobs of 32 ranks (four nodes of eight, each
with its own agent and clock) and to many such jobs, whose messages come in turn. In some of them a rank diverges,
sleeps or becomes slow: each of those must be found, and nothing else.
Timed in CPU time: decoding the messages and all the operator does with them, state rows included; the bus and the
state file are not in the figure.
Run: ``python -m benchmarks.job_operator [--capture DIR] [--jobs N]``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.job_operator_load import fault_of, replicate, rows_of
from benchmarks.report import Report
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Block, Broken, Event, Finding, Record
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.bus import TOPIC_BLOCKS
from whichrank.transport.embedded import EmbeddedBus

ASKED_RECORDS_PER_S = 1_000_000
#: A start is dear and a job runs for hours: 30 s leave it more weight than it has.
RECORDED_S = 30
#: Steps a second at the same 200 collectives a second: a large model, of which agents ship every 0.5 s, and a small
#: one, of which they ship every 0.25 s, in messages half as large.
PACES = (2, 10)
#: The load that the issue gives for the agent: 8 ranks a node, 200 collectives a second each.
RANKS_PER_NODE = 8
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--capture", type=Path, help="capture folder of an earlier run instead of recording one")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    report = Report("JobOperator from bytes to findings, blocks of 4 real ranks replicated to jobs of 32")
    for pace in PACES[:1] if options.capture else PACES:
        with tempfile.TemporaryDirectory() as folder:
            capture = options.capture or record(Path(folder), pace)
            recorded = list(read_capture(capture))
        load = Load.of(recorded, options.jobs, RANKS_PER_NODE)
        if options.profile:
            return profile(load)
        measure(report, "recorded" if options.capture else f"{pace} steps/s", load)
    return report.finish()


def measure(report: Report, where: str, load: Load) -> None:
    """Lines for one load."""
    rounds = [feed(load.jobs) for _ in range(ROUNDS)]
    found = rounds[-1].found
    jobs = len(load.jobs)
    faulty = {f"job-{number}": fault_of(number) for number in range(jobs) if fault_of(number)}
    right = sum(found.get(job) == expected for job, expected in faulty.items())
    quiet = sum(f"job-{number}" not in found for number in range(jobs) if not fault_of(number))
    report.shown(f"{where}: jobs, messages, collective records", f"{jobs}, {load.messages:,}, {load.records:,}")
    rows = f"{np.median(load.rows_per_block):.0f}, {load.records / load.messages:.0f}"
    report.shown(f"{where}: records in a block (median), a message (mean)", rows)
    rates = [load.records / round_.seconds for round_ in rounds]
    report.shown(f"{where}: records a second, each round", ", ".join(f"{rate / 1e6:.2f} M" for rate in rates))
    line = f"{where}: collective records a second on one core, best round"
    report.at_least(line, ASKED_RECORDS_PER_S, max(rates))
    report.all_of(f"{where}: faulty jobs found: kind and rank", right, len(faulty))
    report.all_of(f"{where}: sound jobs without a finding", quiet, jobs - len(faulty))
    told = Counter(kind for job, (kind, _) in found.items() if job not in faulty)
    if told:
        report.shown(f"{where}: what sound jobs were told to have", ", ".join(f"{n} {k}" for k, n in told.items()))


def profile(load: Load) -> int:
    """Where the time of one round goes."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.enable()
    feed(load.jobs)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """jobs: for each, its messages in order: arrival stamp and bytes as they lie on the bus."""

    jobs: list[list[tuple[int, bytes]]]
    records: int
    rows_per_block: list[int]
    ranks_per_node: int

    @property
    def messages(self) -> int:
        return sum(len(stream) for stream in self.jobs)

    @classmethod
    def of(cls, recorded: list[list[Record]], jobs: int, ranks_per_node: int) -> Load:
        streams: list[list[tuple[int, bytes]]] = []
        sizes: list[int] = []
        for number in range(jobs):
            stream = replicate(recorded, number, ranks_per_node)
            sizes += [len(rows) for batch in stream for r in batch for rows in rows_of(r, EventName.BLOCK_COLLECTIVES)]
            streams.append([(batch[-1].stamp_ns, _encode(batch)) for batch in stream])
        return cls(jobs=streams, records=sum(sizes), rows_per_block=sizes, ranks_per_node=ranks_per_node)


def _encode(batch: Sequence[Record]) -> bytes:
    return encode_payloads([r.payload for r in batch if isinstance(r.payload, Block | Event)])


def record(folder: Path, pace: int) -> Path:
    """Runs the workload under ``whichrank run`` and returns its capture folder."""
    workload = Path(__file__).with_name("job_operator_workload.py")
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(folder / "run"), "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*whichrank, *torchrun, str(workload), str(RECORDED_S * pace), str(pace)],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=300 + RECORDED_S,
    )
    return folder / "run" / "capture"


def read_capture(capture: Path) -> Iterator[list[Record]]:
    """The records of each message on the blocks topic, as the runner hands them to the operator."""
    bus = EmbeddedBus(capture, read_only=True)
    after = 0
    while messages := bus.read(after, 512):
        for message in messages:
            after = message.position
            if message.topic != TOPIC_BLOCKS:
                continue
            payloads = [p for p in decode_logs(message.topic, message.value) if isinstance(p, Block | Event)]
            batch = [Record(topic=message.topic, key="", stamp_ns=message.stamp_ns, payload=p) for p in payloads]
            if batch:
                yield batch


# --- a runner without a disk ------------------------------------------------------------------------------------------
class Table(dict[str, bytes]):
    """State rows in memory."""

    def put(self, row: str, value: bytes) -> None:
        self[row] = value

    def put_later(self, row: str, make: Callable[[], bytes]) -> None:
        self.put(row, make())

    def delete(self, row: str) -> None:
        self.pop(row, None)

    def rows(self) -> Iterator[tuple[str, bytes]]:
        return iter(sorted(self.items()))


class Context:
    def __init__(self, key: str) -> None:
        self.key = key
        self.now = 0
        self.state = self
        self.tables: dict[str, Table] = {}
        self.timers: dict[str, int] = {}
        self.found: dict[str, Finding] = {}

    def table(self, name: str) -> Table:
        return self.tables.setdefault(name, Table())

    def emit(self, record: Record) -> None:
        if isinstance(record.payload, Finding) and not record.payload.cleared and "kind" in record.payload.body:
            self.found.setdefault(record.payload.key, record.payload)

    def set_timer(self, name: str, at_ns: int) -> None:
        self.timers[name] = at_ns

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)

    def owner_of(self, job: str) -> str:
        return ""

    def attempt(self, act: Callable[[], None], about: Record | str) -> bool:
        act()
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """seconds: CPU time; found: kind and suspects by job."""

    seconds: float
    found: dict[str, tuple[str, tuple[int, ...]]]


def feed(jobs: list[list[tuple[int, bytes]]]) -> Round:
    """All jobs through one operator, message by message in turn."""
    operator = JobOperator()
    contexts = [Context(f"job-{number}") for number in range(len(jobs))]
    began = time.process_time()
    for place in range(max(len(stream) for stream in jobs)):
        for context, stream in zip(contexts, jobs, strict=True):
            if place < len(stream):
                _feed_message(operator, context, *stream[place])
    seconds = time.process_time() - began
    found = {}
    for context in contexts:
        for finding in context.found.values():
            suspects = tuple(item["rank"] for item in finding.body["suspects"])
            # More than one finding in a job is wrong whatever they are.
            found[context.key] = ("several", ()) if context.key in found else (finding.body["kind"], suspects)
    return Round(seconds=seconds, found=found)


def _feed_message(operator: JobOperator, context: Context, stamp_ns: int, value: bytes) -> None:
    for name, due_ns in sorted(context.timers.items()):
        if due_ns <= stamp_ns:
            del context.timers[name]
            context.now = due_ns
            operator.on_timer(Timer(name, due_ns), context)
    batch = []
    for payload in decode_logs(TOPIC_BLOCKS, value):
        if isinstance(payload, Broken):
            raise ValueError(payload.reason)
        batch.append(Record(topic=TOPIC_BLOCKS, key=context.key, stamp_ns=stamp_ns, payload=payload))
    context.now = stamp_ns
    operator.process(batch, context)


if __name__ == "__main__":
    sys.exit(main())
