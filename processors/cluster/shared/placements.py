"""Which attempts of jobs were on which nodes, and when: the exposure of every node and of everything nodes share.

A row per attempt, kept for 28 days after its end, bounded. What contradicts what was told before replaces it, and is
counted. Hours of nodes are summed when an attempt ends (``sums``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ....telemetry.told_ranks import read_ranks
from ...doubts import MOVED, NO_END, TWO_NODES, Doubt
from ...operator import Table
from ...placement_document import PlacementReport

DAY_S = 86_400.0
KEPT_S = 28 * DAY_S
MAX_ATTEMPTS = 8_192
#: Over all attempts; the oldest that have ended go first.
MAX_PLACES = 1_000_000
#: Ended attempts that are looked at beside those that run.
MAX_LATELY_ENDED = 1_024
#: An attempt of which no end was told runs no longer than this.
LONGEST_S = 60 * DAY_S

Value = tuple[str, str]  # attribute, value


@dataclass(slots=True, kw_only=True)
class Attempt:
    job: str
    attempt: str
    run: str
    name: str
    owner: str
    world_size: int
    begin: float
    end: float | None
    nodes: dict[str, str]
    #: How many of its nodes have each value; made when asked, for one state of the labels.
    counts: dict[Value, int] = field(default_factory=dict)
    counted: int = -1

    @property
    def key(self) -> str:
        """The name of its row: job and attempt, with a tab between."""
        return f"{self.job}\t{self.attempt}"

    def ran_at(self, time: float) -> bool:
        """Whether it ran at this time (Unix seconds); without a known end it still runs."""
        return self.begin <= time and (self.end is None or time <= self.end)

    def pack(self) -> bytes:
        """The attempt as a row; what is counted of its nodes is left out."""
        names = ("job", "attempt", "run", "name", "owner", "world_size", "begin", "end", "nodes")
        return json.dumps({name: getattr(self, name) for name in names}, separators=(",", ":")).encode()


class Placements:
    """Attempts of jobs and the nodes that they were on: a working copy of the table. Not thread-safe."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.attempts: dict[str, Attempt] = {}
        self.by_node: dict[str, dict[str, None]] = {}
        self.by_job: dict[str, list[str]] = {}
        self.running: dict[str, Attempt] = {}
        #: What contradicted itself, since somebody last asked.
        self.doubts: list[Doubt] = []
        self._ended: dict[str, None] = {}
        self._places = 0
        for _, row in table.rows():
            self._add(Attempt(**json.loads(row)))
        self.doubts.clear()  # it was told when it came

    def take(self, report: PlacementReport) -> Attempt | None:
        """Keeps what is reported of an attempt; returns the attempt as it was known before, None for a new one.

        What contradicts itself is added to ``doubts``. Raises ValueError for ranks that are no ranges.
        """
        self._check(report.job, report.nodes)
        if (moved := report.moved) is not None:
            words = f"rank {moved.rank} of job {report.job} is told of by {moved.before} and by {moved.now}"
            self.doubts.append(Doubt(what=MOVED, entity=report.job, words=words))
        fresh = Attempt(
            job=report.job,
            attempt=report.attempt,
            run=report.run,
            name=report.name,
            owner=report.owner,
            world_size=report.world_size,
            begin=report.begin,
            end=report.end,
            nodes=report.nodes,
        )
        before = self.attempts.get(fresh.key)
        if before is not None:
            self._drop(before)
        self._add(fresh)
        self.table.put(fresh.key, fresh.pack())
        self._forget(fresh.end if fresh.end is not None else fresh.begin)
        return before

    def at(self, node: str, time: float) -> Iterator[Attempt]:
        """Attempts that ran on the node at ``time`` (Unix seconds)."""
        for key in self.by_node.get(node, ()):
            attempt = self.attempts[key]
            if attempt.ran_at(time):
                yield attempt

    def of(self, job: str, attempt: str) -> Attempt | None:
        """The attempt; where it is not known by its name, the job's newest; None for an unknown job."""
        known = self.attempts.get(f"{job}\t{attempt}")
        if known is None and (keys := self.by_job.get(job)):
            known = max((self.attempts[key] for key in keys), key=lambda a: a.begin)
        return known

    def program_of(self, job: str) -> str:
        """A name that is the same for jobs that one owner started under one name; the job itself where no name is
        known.
        """
        attempt = self.of(job, "")
        return f"{attempt.owner}\t{attempt.name}" if attempt is not None and attempt.name else job

    def running_at(self, time: float) -> Iterator[Attempt]:
        """Attempts that ran at ``time`` (Unix seconds), of those that still run and those that ended last."""
        ended = [self.attempts[key] for key in self._ended if key in self.attempts]
        for attempt in [*self.running.values(), *ended]:
            if attempt.ran_at(time) and time - attempt.begin < LONGEST_S:
                yield attempt

    def _check(self, job: str, nodes: Mapping[str, str]) -> None:
        """A rank on two nodes is a contradiction: it is said, and what was told last holds."""
        seen: dict[int, str] = {}
        for node, ranks in nodes.items():
            these = read_ranks(ranks)
            if ranks and not these:
                raise ValueError(f"{ranks[:40]!r} of node {node} are no ranks")
            twice = next((rank for rank in these if rank in seen), None)
            if twice is not None:
                words = f"rank {twice} of job {job} is told to run on {seen[twice]} and on {node}"
                self.doubts.append(Doubt(what=TWO_NODES, entity=job, words=words))
            seen |= dict.fromkeys(these, node)

    def _add(self, attempt: Attempt) -> None:
        self.attempts[attempt.key] = attempt
        self._places += len(attempt.nodes)
        for node in attempt.nodes:
            self.by_node.setdefault(node, {})[attempt.key] = None
        self.by_job.setdefault(attempt.job, []).append(attempt.key)
        if attempt.end is None:
            for key in self.by_job[attempt.job][:-1]:
                # Another attempt of the job runs: an end of the one before was lost. Worlds run side by side.
                other = self.attempts[key]
                if other.end is None and not set(other.nodes).isdisjoint(attempt.nodes) and other.begin < attempt.begin:
                    words = (
                        f"of attempt {other.attempt} of job {other.job} no end was told, and the next one runs there"
                    )
                    self.doubts.append(Doubt(what=NO_END, entity=other.job, words=words))
                    other.end = attempt.begin
                    self.running.pop(key, None)
                    self._note_end(key)
                    self.table.put(other.key, other.pack())
            self.running[attempt.key] = attempt
        else:
            self._note_end(attempt.key)

    def _note_end(self, key: str) -> None:
        self._ended.pop(key, None)
        self._ended[key] = None
        if len(self._ended) > MAX_LATELY_ENDED:
            del self._ended[next(iter(self._ended))]

    def _drop(self, attempt: Attempt) -> None:
        self.attempts.pop(attempt.key, None)
        self.running.pop(attempt.key, None)
        self._ended.pop(attempt.key, None)
        self._places -= len(attempt.nodes)
        for node in attempt.nodes:
            keys = self.by_node.get(node, {})
            keys.pop(attempt.key, None)
            if not keys:
                self.by_node.pop(node, None)
        keys_of_job = self.by_job.get(attempt.job, [])
        if attempt.key in keys_of_job:
            keys_of_job.remove(attempt.key)
        if not keys_of_job:
            self.by_job.pop(attempt.job, None)

    def _forget(self, now: float) -> None:
        while self.attempts:
            ended = (attempt for attempt in self.attempts.values() if attempt.end is not None)
            oldest = next(ended, None) or next(iter(self.attempts.values()))
            old = oldest.end is not None and oldest.end < now - KEPT_S
            full = len(self.attempts) > MAX_ATTEMPTS or self._places > MAX_PLACES
            if not old and not full:
                return
            self._drop(oldest)
            self.table.delete(oldest.key)
