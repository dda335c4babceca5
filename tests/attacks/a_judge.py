"""A judge for attacks: the real decoder, runner and operators over an embedded bus, with a job whose rank has died."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from tests.attacks.register import Act, Outcome
from tests.attacks.users import own_memory_limited
from whichrank.commands.embedded.embedded_operators import INPUT_TOPICS, wanted_metrics
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Operator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.otlp import Encodable, encode_payloads
from whichrank.telemetry.records import Event, Identity, Incident, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_DLQ, TOPIC_LOGS, TOPIC_WORDS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.embedded import EmbeddedBus

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
CLUSTER, VICTIM = "c1", "victim"


#: What docs and compose give to a processor.
JUDGE_BYTES = 2 << 30


def in_judges_memory(act: Act) -> Act:
    """The attack in a control group with the memory that a processor is given, and what it took of that."""

    def limited(folder: Path) -> Outcome:
        with own_memory_limited(JUDGE_BYTES) as words:
            outcome = act(folder)
            return replace(outcome, measured=f"{outcome.measured}; {words()}")

    return wraps(act)(limited)


class Judge:
    """As `whichrank process` reads: blocks, logs, metrics and words. Time passes when it is told to."""

    def __init__(self, folder: Path, keeps: Collection[str] | None = None) -> None:
        """keeps: jobs of whose incidents the outputs are kept, as a bus drops what it has sent; None: all outputs."""
        self.ns = 0
        self.folder = folder
        self.outputs: list[Record] = []
        self._keeps = keeps
        self._letters = 0
        self.said: list[str] = []
        self.bus = EmbeddedBus(folder / "bus", start_wall_ns=START_NS, monotonic_ns=lambda: self.ns)
        self.runner = self._start()

    def _start(self) -> EmbeddedRunner:
        operators: list[Operator] = [JobOperator(listens=True), EntityOperator(), ClusterOperator(asks_for_files=True)]
        return EmbeddedRunner(
            self.bus,
            self.folder / "state.sqlite",
            operators,
            self._take,
            live=True,
            report=self.said.append,
            input_topics=INPUT_TOPICS | {TOPIC_LOGS, TOPIC_WORDS},
            metrics=wanted_metrics(),
        )

    def _take(self, record: Record) -> None:
        self._letters += record.topic == TOPIC_DLQ
        if self._keeps is None or (
            isinstance(record.payload, Incident) and record.payload.document.get("job", {}).get("id") in self._keeps
        ):
            self.outputs.append(record)

    def start_again(self) -> None:
        self.runner.close()
        self.runner = self._start()

    @property
    def now_ns(self) -> int:
        return START_NS + self.ns

    def put(self, *payloads: Encodable, topic: str = TOPIC_BLOCKS, key: str = "k", pass_s: float = 0.01) -> None:
        self.put_bytes(encode_payloads(payloads), topic=topic, key=key, pass_s=pass_s)

    def put_bytes(self, value: bytes, *, topic: str = TOPIC_BLOCKS, key: str = "k", pass_s: float = 0.01) -> None:
        self.bus.append(topic, key, value)
        self.runner.drain()
        self.ns += round(pass_s * SECOND)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.ns += SECOND // 2
            self.runner.drain()

    def of_rank(self, name: EventName, rank: int, job: str = VICTIM, **attributes: Any) -> Event:
        identity = Identity(cluster=CLUSTER, job=job, attempt=f"{job}-1", node=f"node-{job}", rank=rank)
        return Event(name=name, identity=identity, time_ns=self.now_ns, mono_ns=self.ns + 1, attributes=attributes)

    def start_job(self, job: str = VICTIM, ranks: int = 4) -> None:
        for rank in range(ranks):
            self.put(self.of_rank(EventName.RANK_STARTED, rank, job, pid=100 + rank, world_size=ranks))
        self.pass_time(3)

    def kill_rank(self, job: str = VICTIM, rank: int = 1) -> None:
        """Its death is told within seconds where the judge is well."""
        self.put(self.of_rank(EventName.RANK_EXIT, rank, job, signal=9, pid=100 + rank, exit_state=2))
        self.pass_time(8)

    def incidents(self, job: str | None = VICTIM) -> dict[str, dict[str, Any]]:
        """The newest revisions by id; None: of all jobs."""
        found = [dict(record.payload.document) for record in self.outputs if isinstance(record.payload, Incident)]
        return {each["id"]: each for each in found if job is None or each.get("job", {}).get("id") == job}

    def told_kinds(self, job: str = VICTIM) -> list[str]:
        return [each["kind"] for each in self.incidents(job).values()]

    @property
    def letters(self) -> int:
        return self._letters

    def lives(self) -> bool:
        """Whether the death of a rank of another job is still told, after a restart as well."""
        for job in ("well-before", "well-after"):
            self.start_job(job)
            self.kill_rank(job)
            if not self.told_kinds(job):
                return False
            self.start_again()
        return True


@contextlib.contextmanager
def memory_bound(more_bytes: int) -> Iterator[None]:
    """So much more address space than is used now, and a MemoryError beyond it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def peak_mb() -> int:
    """The largest that this process has been since ``forget_peak``."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def steps_of(values: Sequence[int], *, job: str, judge: Judge, rank: int = 0) -> list[Encodable]:
    """A block of step rows, and calls of the same steps."""
    import numpy as np

    from whichrank.telemetry.records import Block, Group
    from whichrank.telemetry.tables import COLLECTIVES, STEPS

    identity = Identity(cluster=CLUSTER, job=job, attempt=f"{job}-1", node=f"node-{job}")
    rows = np.zeros(len(values), STEPS)
    rows["rank"], rows["step"] = rank, values
    rows["begin_ns"] = judge.ns + 1 + np.arange(len(values)) * SECOND
    rows["end_ns"] = rows["begin_ns"] + SECOND // 2
    calls = np.zeros(len(values), COLLECTIVES)
    calls["rank"], calls["step"], calls["seq"], calls["op"] = rank, values, np.arange(len(values)) + 1, 1
    calls["enqueued_ns"], calls["done_ns"] = rows["begin_ns"], rows["end_ns"]
    group = Group(uid="g", name="0", ranks="0-1", size=2, backend="gloo", is_default=True)
    offset = START_NS
    return [
        Block(name=EventName.BLOCK_COLLECTIVES, identity=identity, rows=calls, groups=(group,), clock_offset_ns=offset,
              time_ns=judge.now_ns),
        Block(name=EventName.BLOCK_STEPS, identity=identity, rows=rows, clock_offset_ns=offset, time_ns=judge.now_ns),
    ]  # fmt: skip
