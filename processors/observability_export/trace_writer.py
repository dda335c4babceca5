"""Spans of the steps around an incident, for the suspects and the members of their groups: made from blocks.

Agents tell people every step of a small job and a sample of a large one; the step in which something broke should be
there in any case when someone looks. Keeps the newest blocks in bounded memory, and writes from them when an incident
is told, and on while the next steps come. What agents told already has the same ids. No thread, no I/O, no clock of its
own; a single phase is not in blocks, so the step's span says how long each took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...telemetry import attributes as names
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_events import SpanPlace
from ...telemetry.otlp_wire import RequestBuilder
from ...telemetry.packed_flush import is_reference
from ...telemetry.records import Block, Event, Group, Payload
from ...telemetry.spans import TraceScope, collective_spans, rank_resource, step_spans
from ...telemetry.told_ranks import read_ranks
from ...telemetry.trace_identity import attempt_word, group_word, step_span_id, step_trace_id
from ...telemetry.vocabulary import EventFlag, EventName

_SECOND_NS = 1_000_000_000
_KEPT_BLOCKS = frozenset({EventName.BLOCK_COLLECTIVES, EventName.BLOCK_STEPS})
_P2P = int(EventFlag.P2P)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWriterSettings:
    """Bounds. A job of 64 ranks at 20 operations a step makes 6,700 spans of five steps."""

    steps_before: int = 2
    steps_after: int = 2
    #: Ranks told of one incident: the suspects, their small groups, and a few of their large ones.
    ranks: int = 64
    #: Steps that come after the incident are waited for so long.
    follow_s: float = 60.0
    kept_bytes: int = 64 << 20
    kept_s: float = 120.0
    spans_per_s: float = 1000.0
    burst_spans: int = 20_000
    jobs: int = 1024
    #: Launches of one job that are remembered, one per node and restart.
    launches: int = 16_384
    request_bytes: int = 600_000


@dataclass(slots=True)
class _Launch:
    #: As its agent has it (``attempt_word``); "" until it has said so.
    word: str = ""
    token: str = ""
    restart_count: int = 0
    world_size: int = 0
    #: pid and local rank of each rank.
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    name: str = ""
    launches: dict[str, _Launch] = field(default_factory=dict)
    blocks: deque[Block] = field(default_factory=deque)
    #: By incident: what is told of it.
    told: dict[str, _Window] = field(default_factory=dict)

    def word(self, launch: str) -> str:
        # An attempt with which a launch began its second life has a number behind it (``Attempts.name``).
        known = self.launches.get(launch) or self.launches.get(launch.rpartition(".")[0])
        if known is None:
            return launch
        return known.word or attempt_word(launch=launch, token=known.token, restart_count=known.restart_count)

    def holds(self, launch: str, attempt: str, ranks: frozenset[int]) -> bool:
        """Whether a launch is of this attempt, and may hold one of the ranks (none given: any)."""
        if self.word(launch) != attempt:
            return False
        known = self.launches.get(launch)
        return not ranks or known is None or not known.ranks or not ranks.isdisjoint(known.ranks)

    def blocks_of(self, attempt: str, ranks: frozenset[int]) -> list[Block]:
        """What is kept of the launches that ``holds`` says: few of a large job's blocks speak of few ranks."""
        held: dict[str, bool] = {}
        chosen = []
        for block in self.blocks:
            launch = block.identity.attempt
            if launch not in held:
                held[launch] = self.holds(launch, attempt, ranks)
            if held[launch]:
                chosen.append(block)
        return chosen

    def ranks_of(self, attempt: str) -> list[int]:
        """All that are known, in order."""
        ranks = {
            rank for launch, known in self.launches.items() if self.word(launch) == attempt for rank in known.ranks
        }
        return sorted(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Steps first to last of these ranks, of one attempt (``attempt_word``), until a time."""

    attempt: str
    ranks: frozenset[int]
    first: int
    last: int
    until_ns: int


class TraceWriter:
    """Spans of steps around incidents. Call ``see`` for each record, ``incident`` for each revision, publish what
    ``take`` returns.
    """

    def __init__(self, settings: TraceWriterSettings | None = None) -> None:
        self._settings = settings or TraceWriterSettings()
        self._jobs: dict[str, _Job] = {}
        self._order: deque[tuple[int, str, int]] = deque()  # stamp, job and bytes of each kept block, the oldest first
        self._kept_bytes = 0
        self._builder = RequestBuilder(names.SCOPE_NAME, self._settings.request_bytes)
        self._saved = float(self._settings.burst_spans)
        self._saved_ns = 0
        #: Spans that were written, and those that were not because there were too many.
        self.spans = 0
        self.dropped = 0

    def see(self, payload: Payload, now_ns: int) -> None:
        """Keeps a block of calls or steps, or what an event tells of ranks and groups. now_ns: its arrival stamp."""
        if isinstance(payload, Block):
            if payload.name in _KEPT_BLOCKS and len(payload.rows):
                self._see_block(payload, now_ns)
        elif isinstance(payload, Event):
            self._see_event(payload)

    def incident(self, incident: IncidentDocument, now_ns: int) -> SpanPlace | None:
        """Queues spans of the steps around an incident, as far as their blocks are kept, and of those that come next.

        The suspect's span of the first bad step; None where that is not known.
        """
        job_id = incident.job.id or ""
        job = self._jobs.get(job_id)
        if job is None:
            return None
        attempt = job.word(incident.job.attempt or "")
        suspects = _suspect_ranks(incident)
        step = incident.first_bad.step
        if step is None or step < 0:
            step = self._step_at(job, attempt, suspects, incident.times.onset_s)
        if step is None:
            return None
        self._report(job_id, job, incident.id, suspects, attempt, step, now_ns)
        if not suspects or not _is_reached(job.blocks_of(attempt, frozenset()), step):
            return None  # nobody's spans are in such a trace
        trace_id = step_trace_id(job_id, attempt, step)
        return SpanPlace(trace_id=trace_id, span_id=step_span_id(trace_id, suspects[0]))

    def take(self) -> list[bytes]:
        """Removes and returns serialized requests for the topic of spans."""
        return self._builder.take()

    # --- what is kept -------------------------------------------------------------------------------------------------
    def _job(self, job_id: str) -> _Job:
        job = self._jobs.pop(job_id, None)
        if job is None:
            job = _Job()
            if len(self._jobs) >= self._settings.jobs:
                self._forget_job(next(iter(self._jobs)))
        self._jobs[job_id] = job  # the most recent ones last
        return job

    def _forget_job(self, job_id: str) -> None:
        del self._jobs[job_id]
        self._kept_bytes -= sum(size for _, owner, size in self._order if owner == job_id)
        self._order = deque(entry for entry in self._order if entry[1] != job_id)

    def _see_block(self, block: Block, now_ns: int) -> None:
        job_id = block.identity.job
        job = self._job(job_id)
        for incident, window in list(job.told.items()):
            if now_ns > window.until_ns:
                del job.told[incident]
            elif job.holds(block.identity.attempt, window.attempt, window.ranks):
                self._write(job_id, job, block, window, now_ns)
        job.blocks.append(block)
        self._order.append((now_ns, job_id, block.rows.nbytes))
        self._kept_bytes += block.rows.nbytes
        oldest_ns = now_ns - int(self._settings.kept_s * _SECOND_NS)
        while self._order and (self._kept_bytes > self._settings.kept_bytes or self._order[0][0] < oldest_ns):
            _, owner, size = self._order.popleft()
            self._kept_bytes -= size
            self._jobs[owner].blocks.popleft()

    def _see_event(self, event: Event) -> None:
        identity, attributes = event.identity, event.attributes
        if event.name is EventName.JOB_STARTED:
            job = self._job(identity.job)
            job.name = str(attributes.get("job_name") or "") or job.name
        if event.name is EventName.AGENT_HEALTH:  # again and again: we may have come later than the ranks
            for line in _lines(attributes.get("attempt_words")):
                name, _, word = line.partition(" ")
                self._launch(identity.job, name).word = word
        if event.name not in (EventName.RANK_STARTED, EventName.LAUNCH_MET) or not identity.attempt:
            return
        launch = self._launch(identity.job, identity.attempt)
        if event.name is EventName.LAUNCH_MET:
            launch.token = str(attributes.get("token") or "")
            return
        if name := str(attributes.get("job_name") or ""):
            self._job(identity.job).name = name
        launch.restart_count = max(0, int(attributes.get("restart_count") or 0))
        launch.world_size = int(attributes.get("world_size") or 0)
        launch.ranks[identity.rank] = (int(attributes.get("pid") or 0), int(attributes.get("local_rank") or 0))

    def _launch(self, job_id: str, name: str) -> _Launch:
        launches = self._job(job_id).launches
        launch = launches.get(name)
        if launch is None:
            if len(launches) >= self._settings.launches:
                del launches[next(iter(launches))]
            launch = launches[name] = _Launch()
        return launch

    # --- what is told -------------------------------------------------------------------------------------------------
    def _step_at(self, job: _Job, attempt: str, suspects: Sequence[int], onset_s: float) -> int | None:
        """The step that the suspects, or anybody, were in at the onset; their newest where it is not known (0)."""
        found: int | None = None
        for block in job.blocks_of(attempt, frozenset(suspects)):
            if block.name is not EventName.BLOCK_STEPS:
                continue
            rows = block.rows if not suspects else block.rows[np.isin(block.rows["rank"], suspects)]
            if onset_s:
                rows = rows[rows["begin_ns"] + block.clock_offset_ns <= int(onset_s * _SECOND_NS)]
            if not len(rows):
                continue
            newest = int(rows["step"].max())
            if onset_s and int(rows["end_ns"].max()) + block.clock_offset_ns < int(onset_s * _SECOND_NS):
                newest += 1  # it had ended: they were in the next one
            found = newest if found is None else max(found, newest)
        return found

    def _report(
        self, job_id: str, job: _Job, incident: str, suspects: Sequence[int], attempt: str, step: int, now_ns: int
    ) -> None:
        settings = self._settings
        first, last = max(0, step - settings.steps_before), step + settings.steps_after
        before = job.told.get(incident)
        if before is not None and (before.attempt, before.first, before.last) != (attempt, first, last):
            before = None
        if before is not None and (not suspects or before.ranks.issuperset(suspects)):
            return
        ranks = frozenset(_ranks_to_tell(suspects, job, attempt, settings.ranks))
        window = _Window(
            attempt=attempt,
            ranks=ranks | before.ranks if before is not None else ranks,
            first=first,
            last=last,
            until_ns=now_ns + int(settings.follow_s * _SECOND_NS),
        )
        job.told[incident] = window
        fresh = window if before is None else replace(window, ranks=ranks - before.ranks)
        blocks = job.blocks_of(attempt, fresh.ranks)
        for block in blocks:
            self._write(job_id, job, block, fresh, now_ns)
        self._write_open(job_id, job, blocks, fresh, now_ns)

    def _write(self, job_id: str, job: _Job, block: Block, window: _Window, now_ns: int) -> None:
        """What has ended, of one block."""
        rows = _within(block.rows, window)
        if block.name is EventName.BLOCK_COLLECTIVES:
            rows = rows[rows["done_ns"] != 0]
        self._encode(job_id, job, block, rows, now_ns)

    def _write_open(self, job_id: str, job: _Job, blocks: Sequence[Block], window: _Window, now_ns: int) -> None:
        """What has not ended, as far as the blocks know; each operation as of the newest word of its node."""
        open_rows: dict[tuple[int, ...], tuple[Block, NDArray[np.void]]] = {}
        until_ns: dict[str, int] = {}
        for block in blocks:
            launch = block.identity.attempt
            until_ns[launch] = max(until_ns.get(launch, 0), block.time_ns)
            if block.name is not EventName.BLOCK_COLLECTIVES:
                continue
            for row in _within(block.rows, window):
                group = group_word(block.groups[row["group"]].uid)
                key = (int(row["rank"]), group, int(row["flags"]) & _P2P, int(row["seq"]))
                if row["done_ns"]:
                    open_rows.pop(key, None)
                else:
                    open_rows[key] = (block, row)
        for block, row in open_rows.values():
            rows = np.array([row], block.rows.dtype)
            self._encode(job_id, job, block, rows, now_ns, open_until_ns=until_ns[block.identity.attempt])

    def _encode(
        self, job_id: str, job: _Job, block: Block, rows: NDArray[np.void], now_ns: int, *, open_until_ns: int = 0
    ) -> None:
        if not len(rows):
            return
        rows = rows[: self._admit(len(rows), now_ns)]
        scope = TraceScope(job=job_id, attempt=job.word(block.identity.attempt), clock_offset_ns=block.clock_offset_ns)
        if block.name is EventName.BLOCK_STEPS:
            spans = step_spans(rows, scope)
        else:
            spans = collective_spans(rows, block.groups, scope, open_until_ns=open_until_ns)
        launch = job.launches.get(block.identity.attempt) or _Launch()
        by_rank: dict[int, list[bytes]] = {}
        for rank, span in zip(rows["rank"].tolist(), spans, strict=True):
            by_rank.setdefault(rank, []).append(span)
        for rank, entries in by_rank.items():
            pid, local_rank = launch.ranks.get(rank, (0, -1))
            resource = rank_resource(
                replace(block.identity, rank=rank),
                job_name=job.name,
                pid=pid,
                local_rank=local_rank,
                world_size=launch.world_size,
            )
            self._builder.add(resource, entries)

    def _admit(self, spans: int, now_ns: int) -> int:
        """How many of these may be written; the rest is counted."""
        settings = self._settings
        passed_s = max(0, now_ns - self._saved_ns) / _SECOND_NS if self._saved_ns else 0.0
        self._saved = min(self._saved + settings.spans_per_s * passed_s, float(settings.burst_spans))
        self._saved_ns = max(now_ns, self._saved_ns)
        admitted = min(spans, int(self._saved))
        self._saved -= admitted
        self.spans += admitted
        self.dropped += spans - admitted
        return admitted


def _lines(value: object) -> list[str]:
    return [line for line in value if isinstance(line, str)] if isinstance(value, (tuple, list)) else []


def _is_reached(blocks: Iterable[Block], step: int) -> bool:
    """Whether anybody has come to this step, as far as is kept."""
    return any((block.rows["step"] >= step - 1).any() for block in blocks)


def _within(rows: NDArray[np.void], window: _Window) -> NDArray[np.void]:
    """Rows of the window's steps and ranks."""
    steps = rows["step"]
    if not len(rows) or steps.max() < window.first or steps.min() > window.last:
        return rows[:0]
    rows = rows[(steps >= window.first) & (steps <= window.last)]
    return rows[np.isin(rows["rank"], list(window.ranks))] if len(rows) else rows


def _suspect_ranks(incident: IncidentDocument) -> list[int]:
    """Most likely first."""
    found = []
    for suspect in incident.suspects:
        if suspect.rank is not None and suspect.rank >= 0:
            found.append(suspect.rank)
        elif suspect.ranks is not None:  # a node, with the ranks it held
            if not (ranks := read_ranks(suspect.ranks)) and suspect.ranks:
                raise ValueError(f"{suspect.ranks[:40]!r} are no ranks")
            found += ranks
    return found


def _ranks_to_tell(suspects: Sequence[int], job: _Job, attempt: str, most: int) -> list[int]:
    """Suspects, then the members of their groups, the smallest group first; of nobody's incident some of all ranks."""
    if not suspects:
        return _spread(job.ranks_of(attempt), most // 4)
    told = dict.fromkeys(suspects[:most])
    for members in _groups_of(suspects[:most], job.blocks_of(attempt, frozenset(suspects[:most]))):
        room = most - len(told)
        if room <= 0:
            break
        told.update(dict.fromkeys(_spread([rank for rank in members if rank not in told], room)))
    return list(told)


def _groups_of(suspects: Sequence[int], blocks: Sequence[Block]) -> Iterator[list[int]]:
    """Members of the groups in which a suspect is, the smallest group first."""
    told = (group for block in blocks for group in block.groups if not is_reference(group))
    groups: dict[str, Group] = {group.uid: group for group in told}
    for group in sorted(groups.values(), key=lambda group: (group.size, group.uid)):
        members = read_ranks(group.ranks)
        if not set(suspects).isdisjoint(members):
            yield members


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """At most so many of them, from all over."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[place * len(ranks) // most] for place in range(most)]
