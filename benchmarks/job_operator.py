"""JobOperator throughput on one core: collective records a second, on blocks recorded from real ranks.

Four real ranks run under ``whichrank run``; their capture is replicated to many jobs, each shifted in time by its own
amount and with its own jitter of arrivals; in some of them a rank diverges, sleeps or becomes slow, and every one of
those must be found and nothing else. Only the operator is timed: decoding and the runner are not in the figure.
Run: ``python -m benchmarks.job_operator [--capture DIR] [--jobs N]``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Report
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Block, Event, Finding, Group, Record
from whichrank.telemetry.vocabulary import EventFlag, EventName, Op
from whichrank.transport.bus import TOPIC_BLOCKS
from whichrank.transport.embedded import EmbeddedBus

ASKED_RECORDS_PER_S = 1_000_000
STEPS = 200
FAULT_EVERY = 8  # every so manieth job has a fault
GUILTY = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--capture", type=Path, help="capture folder of an earlier run instead of recording one")
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps to record")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        capture = options.capture or record(Path(folder), options.steps)
        messages = list(read_capture(capture))
    report = Report("JobOperator, blocks of 4 real ranks replicated")
    jobs = [replicate(messages, number) for number in range(options.jobs)]
    records = sum(
        len(record.payload.rows)
        for stream in jobs
        for batch in stream
        for record in batch
        if isinstance(record.payload, Block) and record.payload.name is EventName.BLOCK_COLLECTIVES
    )
    faulty = {f"job-{number}": fault_of(number) for number in range(options.jobs) if fault_of(number)}
    if options.profile:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.enable()
        feed(jobs)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        return 0
    best_s = min(feed(jobs)[0] for _ in range(3))
    _, found = feed(jobs)
    right = sum(found.get(job) == expected for job, expected in faulty.items())
    quiet = sum(f"job-{number}" not in found for number in range(options.jobs) if not fault_of(number))
    blocks = [len(r.payload.rows) for b in messages for r in b if isinstance(r.payload, Block)]
    report.shown("records in all, jobs", f"{records:,}, {len(jobs)}")
    report.shown("rows per recorded block, mean", f"{np.mean(blocks):.0f}")
    report.at_least("collective records a second on one core", ASKED_RECORDS_PER_S, records / best_s)
    report.all_of("faulty jobs found: kind and rank", right, len(faulty))
    report.all_of("sound jobs without a finding", quiet, len(jobs) - len(faulty))
    return report.finish()


def record(folder: Path, steps: int) -> Path:
    """Runs the workload under ``whichrank run`` and returns its capture folder."""
    workload = Path(__file__).with_name("job_operator_workload.py")
    whichrank = [sys.executable, "-m", "whichrank.commands.main", "run", "--out", str(folder / "run"), "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*whichrank, *torchrun, str(workload), str(steps)],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=300 + steps,
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


# --- many jobs out of one ---------------------------------------------------------------------------------------------
def fault_of(number: int) -> tuple[str, tuple[int, ...]] | None:
    """Kind and suspects expected of the job with this number; None: sound."""
    if number % FAULT_EVERY:
        return None
    kinds = ("desync", "rank_not_entered", "rank_slow")
    return kinds[number // FAULT_EVERY % len(kinds)], (GUILTY,)


def replicate(messages: list[list[Record]], number: int) -> list[list[Record]]:
    """The same job under another name, at another time, with other jitter, and perhaps with a fault."""
    chance = np.random.default_rng(number)
    shift_ns = int(chance.integers(0, 3_600_000_000_000))
    fault = fault_of(number)
    kind = fault[0] if fault else ""
    newest = max(
        (
            int(r.payload.rows["step"].max())
            for b in messages
            for r in b
            if isinstance(r.payload, Block) and r.payload.name is EventName.BLOCK_STEPS
        ),
        default=0,
    )
    bad_step = newest // 2
    out: list[list[Record]] = []
    for batch in messages:
        changed = [_replica(record, number, shift_ns, chance, kind, bad_step) for record in batch]
        out.append([record for record in changed if record is not None])
    if kind == "rank_not_entered":
        out = _cut_off(out, bad_step)
    return [batch for batch in out if batch]


def _is(record: Record, name: EventName) -> bool:
    return isinstance(record.payload, Block) and record.payload.name is name


def _replica(
    record: Record, number: int, shift_ns: int, chance: np.random.Generator, kind: str, bad_step: int
) -> Record | None:
    payload = record.payload
    assert isinstance(payload, Block | Event)
    identity = dataclasses.replace(payload.identity, job=f"job-{number}", attempt=f"attempt-{number}")
    stamp_ns = record.stamp_ns + shift_ns
    if isinstance(payload, Event):
        if payload.name in (EventName.JOB_FINISHED, EventName.RANK_EXIT):
            return None  # faults must be found in the running job
        mono_ns = payload.mono_ns + shift_ns if payload.mono_ns else 0
        event = dataclasses.replace(payload, identity=identity, time_ns=payload.time_ns + shift_ns, mono_ns=mono_ns)
        return dataclasses.replace(record, key=f"job-{number}", stamp_ns=stamp_ns, payload=event)
    rows = payload.rows.copy()
    for column in ("enqueued_ns", "started_ns", "done_ns", "begin_ns", "end_ns", "read_ns"):
        if column in (rows.dtype.names or ()):
            rows[column] += shift_ns * (rows[column] > 0)
    if payload.name is EventName.BLOCK_COLLECTIVES:
        # Arrivals move by some microseconds, never past the end of their own call.
        jitter = chance.integers(0, 20_000, len(rows))
        rows["enqueued_ns"] -= jitter
        rows = _with_fault(rows, kind, bad_step)
    elif payload.name is EventName.BLOCK_STEPS and kind == "rank_slow":
        rows = _longer_steps(rows, bad_step)
    groups = tuple(_renamed(group, number) for group in payload.groups)
    block = dataclasses.replace(
        payload, identity=identity, rows=rows, groups=groups, time_ns=payload.time_ns + shift_ns
    )
    return dataclasses.replace(record, key=f"job-{number}", stamp_ns=stamp_ns, payload=block)


def _renamed(group: Group, number: int) -> Group:
    return dataclasses.replace(group, uid=f"{number}-{group.uid}")


SLOW_NS = 40_000_000


def _with_fault(rows: np.ndarray, kind: str, bad_step: int) -> np.ndarray:
    """What the fault's mechanism does to the collectives of a step."""
    guilty = rows["rank"] == GUILTY
    if kind == "desync":
        here = np.flatnonzero(guilty & (rows["step"] == bad_step) & (rows["op"] == int(Op.ALL_REDUCE)))
        if here.size:
            rows["bytes"][here[0]] += 4
    elif kind == "rank_slow":
        # The others wait for it in the first call of the step: they come that much earlier than it does.
        slow = (rows["step"] >= bad_step) & ~guilty & ((rows["flags"] & int(EventFlag.P2P)) == 0)
        first = slow & _first_of_step(rows)
        rows["enqueued_ns"][first] -= SLOW_NS
    return rows


def _first_of_step(rows: np.ndarray) -> np.ndarray:
    """Rows that are their rank's first of a step (rows of a rank come in order)."""
    first = np.zeros(len(rows), bool)
    place = rows["rank"].astype(np.int64) * (1 << 32) + rows["step"]
    first[np.unique(place, return_index=True)[1]] = True
    return first


def _longer_steps(rows: np.ndarray, bad_step: int) -> np.ndarray:
    """Steps of all ranks begin earlier by what the guilty one takes longer."""
    rows["begin_ns"][rows["step"] >= bad_step] -= SLOW_NS
    return rows


def _cut_off(batches: list[list[Record]], bad_step: int) -> list[list[Record]]:
    """The guilty rank sleeps from the first call of the step on; nothing but progress rows comes after that."""
    out: list[list[Record]] = []
    frozen: dict[EventName, Record] = {}
    stopped_ns = 0
    for batch in batches:
        kept: list[Record] = []
        for record in batch:
            block = record.payload
            if not isinstance(block, Block):
                kept.append(record)
                continue
            if "step" in (block.rows.dtype.names or ()) and block.name is not EventName.BLOCK_PROGRESS:
                rows = block.rows[block.rows["step"] < bad_step]
                if len(rows) < len(block.rows) and not stopped_ns:
                    stopped_ns = record.stamp_ns
                if len(rows):
                    kept.append(dataclasses.replace(record, payload=dataclasses.replace(block, rows=rows)))
            elif not stopped_ns:
                frozen[block.name] = record
                kept.append(record)
            elif len(frozen) == 2:
                kept.append(_still(frozen[block.name], record, record.stamp_ns - stopped_ns, bad_step))
        out.append(kept)
    return out


def _still(last: Record, now: Record, age_ns: int, bad_step: int) -> Record:
    """The last progress rows before the fault, aged: all but the guilty rank wait in their next call."""
    block, present = last.payload, now.payload
    assert isinstance(block, Block)
    assert isinstance(present, Block)
    rows = block.rows.copy()
    if block.name is EventName.BLOCK_GROUP_PROGRESS:
        world = np.array([group.is_default for group in block.groups])[rows["group"]]
        waits = world & (rows["rank"] != GUILTY)
        level = rows["enqueued"][world].max()
        rows["enqueued"][world], rows["completed"][world] = level, level
        rows["enqueued"][waits] += 1
        rows["open"][waits], rows["open_age_ns"][waits] = 1, age_ns
    else:
        rows["step"], rows["phase_age_ns"] = bad_step, age_ns
        rows["read_ns"] = now.payload.time_ns - block.clock_offset_ns  # type: ignore[union-attr]
    return dataclasses.replace(now, payload=dataclasses.replace(block, rows=rows, time_ns=present.time_ns))


# --- a runner without a disk ------------------------------------------------------------------------------------------
class Table(dict[str, bytes]):
    """State rows in memory."""

    def put(self, row: str, value: bytes) -> None:
        self[row] = value

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
        if isinstance(record.payload, Finding) and not record.payload.cleared:
            self.found.setdefault(record.payload.key, record.payload)

    def set_timer(self, name: str, at_ns: int) -> None:
        self.timers[name] = at_ns

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)


def feed(jobs: list[list[list[Record]]]) -> tuple[float, dict[str, tuple[str, tuple[int, ...]]]]:
    """Seconds of the operator for all jobs, message by message in turn, and the findings by job."""
    operator = JobOperator()
    contexts = [Context(f"job-{number}") for number in range(len(jobs))]
    began = time.perf_counter()
    for place in range(max(len(stream) for stream in jobs)):
        for context, stream in zip(contexts, jobs, strict=True):
            if place < len(stream):
                batch = stream[place]
                for name, due_ns in sorted(context.timers.items()):
                    if due_ns <= batch[0].stamp_ns:
                        del context.timers[name]
                        context.now = due_ns
                        operator.on_timer(Timer(name, due_ns), context)
                context.now = batch[-1].stamp_ns
                operator.process(batch, context)
    seconds = time.perf_counter() - began
    found = {}
    for context in contexts:
        for finding in context.found.values():
            suspects = tuple(item["rank"] for item in finding.body["suspects"])
            # More than one finding in a job is wrong whatever they are.
            found[context.key] = ("several", ()) if context.key in found else (finding.body["kind"], suspects)
    return seconds, found


if __name__ == "__main__":
    sys.exit(main())
