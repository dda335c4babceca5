"""JobOperator throughput on one core: collective records a second, on blocks recorded from real ranks.

Four real ranks run under ``whichrank run``; their capture is replicated to jobs of 32 ranks (four nodes of eight, each
with its own agent and clock) and to many such jobs, each shifted in time by its own amount and with its own jitter of
arrivals. In some of them a rank diverges, sleeps or becomes slow: each of those must be found, and nothing else.
Only the operator is timed, in CPU time: decoding and the runner are not in the figure.
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
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Report
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Timer
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Block, Event, Finding, Group, Record
from whichrank.telemetry.ring_layout import format_ranks, parse_ranks
from whichrank.telemetry.vocabulary import EventName, Op, Phase
from whichrank.transport.bus import TOPIC_BLOCKS
from whichrank.transport.embedded import EmbeddedBus

ASKED_RECORDS_PER_S = 1_000_000
STEPS = 200
FAULT_EVERY = 3  # every so manieth job has a fault


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--capture", type=Path, help="capture folder of an earlier run instead of recording one")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps to record")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        capture = options.capture or record(Path(folder), options.steps)
        messages = list(read_capture(capture))
    report = Report("JobOperator, blocks of 4 real ranks replicated to 32 per job")
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
    blocks = [len(rows) for b in jobs[0] for r in b for rows in _rows_of(r, EventName.BLOCK_COLLECTIVES)]
    report.shown("records in all, jobs", f"{records:,}, {len(jobs)}")
    report.shown("collectives in a block, mean", f"{np.mean(blocks):.0f}")
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
RECORDED_RANKS = 4
COPIES_PER_NODE = 2
NODES = 4
RANKS = RECORDED_RANKS * COPIES_PER_NODE * NODES
GUILTY = 13
SLOW_NS = 40_000_000
NODE_CLOCK_NS = 3_000_000_000  # clocks of nodes have nothing to do with each other
NODE_STAMP_NS = 7_000_000


def fault_of(number: int) -> tuple[str, tuple[int, ...]] | None:
    """Kind and suspects expected of the job with this number; None: sound."""
    if number % FAULT_EVERY:
        return None
    kinds = ("desync", "rank_not_entered", "rank_slow")
    return kinds[number // FAULT_EVERY % len(kinds)], (GUILTY,)


def replicate(messages: list[list[Record]], number: int) -> list[list[Record]]:
    """The recorded job as one of 32 ranks under another name, at another time, with other jitter, perhaps a fault."""
    chance = np.random.default_rng(number)
    fault = fault_of(number)
    newest = max(
        (int(rows["step"].max()) for b in messages for r in b for rows in _rows_of(r, EventName.BLOCK_STEPS)), default=0
    )
    scene = Scene(
        number=number,
        shift_ns=int(chance.integers(0, 3_600_000_000_000)),
        chance=chance,
        kind=fault[0] if fault else "",
        bad_step=newest // 2,
    )
    out: list[list[Record]] = []
    for batch in messages:
        for node in range(NODES):
            records = [replica for record in batch for replica in scene.replicas(record, node)]
            if records:
                out.append(records)
    return _cut_off(out, scene.bad_step) if scene.kind == "rank_not_entered" else out


def _rows_of(record: Record, name: EventName) -> Iterator[np.ndarray]:
    """The rows of a block of that name; nothing of any other record."""
    if isinstance(record.payload, Block) and record.payload.name is name:
        yield record.payload.rows


@dataclasses.dataclass(slots=True)
class Scene:
    """One replicated job: how its records differ from the recorded ones."""

    number: int
    shift_ns: int
    chance: np.random.Generator
    kind: str
    bad_step: int

    def replicas(self, record: Record, node: int) -> Iterator[Record]:
        payload = record.payload
        assert isinstance(payload, Block | Event)
        stamp_ns = record.stamp_ns + self.shift_ns + node * NODE_STAMP_NS
        identity = dataclasses.replace(
            payload.identity, job=f"job-{self.number}", attempt=f"attempt-{self.number}", node=f"node-{node}"
        )
        if isinstance(payload, Event):
            if payload.name is not EventName.RANK_STARTED:
                return  # the faults must be found in the running job
            for copy in range(COPIES_PER_NODE):
                rank = _rank(payload.identity.rank, node, copy)
                event = dataclasses.replace(
                    payload,
                    identity=dataclasses.replace(identity, rank=rank),
                    attributes={**payload.attributes, "world_size": RANKS},
                )
                yield dataclasses.replace(record, stamp_ns=stamp_ns, payload=event)
            return
        parts: list[np.ndarray] = []
        groups: dict[str, Group] = {}
        for copy in range(COPIES_PER_NODE):
            parts.append(self._rows(payload, node, copy, groups))
        block = dataclasses.replace(
            payload,
            identity=identity,
            rows=np.concatenate(parts),
            groups=tuple(groups.values()),
            time_ns=payload.time_ns + self.shift_ns + node * NODE_CLOCK_NS,
        )
        yield dataclasses.replace(record, stamp_ns=stamp_ns, payload=block)

    def _rows(self, block: Block, node: int, copy: int, groups: dict[str, Group]) -> np.ndarray:
        rows: np.ndarray = block.rows.copy()
        rows["rank"] = _rank(rows["rank"], node, copy)
        for column in ("enqueued_ns", "started_ns", "done_ns", "begin_ns", "end_ns", "read_ns"):
            if column in (rows.dtype.names or ()):
                rows[column] += (self.shift_ns + node * NODE_CLOCK_NS) * (rows[column] > 0)
        if "group" in (rows.dtype.names or ()):
            places = [self._place(group, node, copy, groups) for group in block.groups]
            rows["group"] = np.array(places, np.uint16)[rows["group"]]
        if block.name is EventName.BLOCK_COLLECTIVES:
            rows["enqueued_ns"] -= self.chance.integers(0, 20_000, len(rows))  # never past the end of its own call
            self._put_fault(rows)
        elif block.name is EventName.BLOCK_STEPS and self.kind == "rank_slow":
            rows["begin_ns"][rows["step"] >= self.bad_step] -= SLOW_NS
        return rows

    def _place(self, group: Group, node: int, copy: int, groups: dict[str, Group]) -> int:
        """Index in the block of what a recorded group has become: all 32 ranks, or the same pair in this copy."""
        if group.size == RECORDED_RANKS:
            uid, ranks = f"{self.number}-{group.uid}", list(range(RANKS))
        else:
            uid = f"{self.number}-{group.uid}-{node}-{copy}"
            ranks = [_rank(rank, node, copy) for rank in parse_ranks(group.ranks)]
        if uid not in groups:
            groups[uid] = dataclasses.replace(group, uid=uid, ranks=format_ranks(ranks), size=len(ranks))
        return list(groups).index(uid)

    def _put_fault(self, rows: np.ndarray) -> None:
        """What the fault's mechanism does to the collectives of a step."""
        guilty = rows["rank"] == GUILTY
        if self.kind == "desync":
            here = np.flatnonzero(guilty & (rows["step"] == self.bad_step) & (rows["op"] == int(Op.ALL_REDUCE)))
            if here.size:
                rows["bytes"][here[0]] += 4
        elif self.kind == "rank_slow":
            # The others wait for it in their first call of the step: they come that much earlier than it does.
            first = np.zeros(len(rows), bool)
            place = rows["rank"].astype(np.int64) * (1 << 32) + rows["step"]
            first[np.unique(place, return_index=True)[1]] = True
            rows["enqueued_ns"][first & (rows["step"] >= self.bad_step) & ~guilty] -= SLOW_NS


def _rank(rank: Any, node: int, copy: int) -> Any:
    return rank + (node * COPIES_PER_NODE + copy) * RECORDED_RANKS


def _cut_off(batches: list[list[Record]], bad_step: int) -> list[list[Record]]:
    """The guilty rank sleeps from the first call of the step on; nothing but progress rows comes after that."""
    out: list[list[Record]] = []
    frozen: dict[tuple[EventName, str], Record] = {}
    stopped_ns = 0
    for batch in batches:
        kept: list[Record] = []
        for record in batch:
            block = record.payload
            if not isinstance(block, Block):
                kept.append(record)
                continue
            place = (block.name, block.identity.node)
            if "step" in (block.rows.dtype.names or ()) and block.name is not EventName.BLOCK_PROGRESS:
                rows = block.rows[block.rows["step"] < bad_step]
                if len(rows) < len(block.rows) and not stopped_ns:
                    stopped_ns = record.stamp_ns
                if len(rows):
                    kept.append(dataclasses.replace(record, payload=dataclasses.replace(block, rows=rows)))
            elif not stopped_ns:
                frozen[place] = record
                kept.append(record)
            elif place in frozen:
                kept.append(_still(frozen[place], record, record.stamp_ns - stopped_ns, bad_step))
        if kept:
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
        rows["enqueued"][world], rows["completed"][world] = 1_000_000, 1_000_000
        rows["enqueued"][waits] += 1
        rows["open"] = 0
        rows["open"][waits], rows["open_age_ns"][waits] = 1, age_ns
    else:
        rows["step"], rows["phase"], rows["phase_age_ns"] = bad_step, int(Phase.FORWARD), age_ns
        rows["read_ns"] = present.time_ns - block.clock_offset_ns
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
    began = time.process_time()
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
    seconds = time.process_time() - began
    found = {}
    for context in contexts:
        for finding in context.found.values():
            suspects = tuple(item["rank"] for item in finding.body["suspects"])
            # More than one finding in a job is wrong whatever they are.
            found[context.key] = ("several", ()) if context.key in found else (finding.body["kind"], suspects)
    return seconds, found


if __name__ == "__main__":
    sys.exit(main())
