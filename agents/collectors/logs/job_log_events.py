"""From lines of ranks' logs to what is told of them: ``diagnosis.job_log`` behind the collector that follows the logs.

A statement is told once it is complete (a traceback: when its writer says something else, or nothing more), at the time
at which its first line was read. Of each writer a few a minute; what is held back is counted.
"""

from __future__ import annotations

import re
import socket
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from ....diagnosis.job_log.details import expected_peer, local_port
from ....diagnosis.job_log.job_log_reader import whose
from ....diagnosis.job_log.log_verdict import NUMERIC_WARNING
from ....diagnosis.job_log.model import Form, LineRole, Rank, Witness
from ....diagnosis.job_log.stream import LogStream, make_gate
from ....telemetry.vocabulary import EventName
from ..base.collector import NodeEvent, Timestamps
from ..processes.job_process import JobProcess
from .job_logs import JobLogLine

#: A writer that has said nothing for so long will not go on with what it has begun.
SILENCE_NS = 900_000_000
#: Where its last lines are missing: they may stand in the file already, without an end.
CUT_NS = 5_000_000_000
WINDOW_NS = 60_000_000_000
#: Statements of one writer that are told at once in a window, each class once; and of them such as say little.
MOST_TOLD, MOST_WEAK = 6, 3
#: Ranks that have ended are remembered so long: their last lines come after them.
_ENDED_NS = 60_000_000_000
MOST_STREAMS = 512
_MOST_WRITERS = 4096
#: Batches of lines of one file whose time is known.
_MOST_BATCHES = 64
#: What ``whichrank run`` writes to the same standard error must not come back as a cause: panels, its lines, documents.
OWN = re.compile(r"\s*(?:whichrank\b|[\u2500-\u257f]|\{\"schema\": ?\d)")
_WARNINGS = frozenset({"WARN", "WARNING"})
_WEAK = frozenset({Rank.GENERIC, Rank.CASCADE, Rank.TEARDOWN})


@dataclass(slots=True)
class _Source:
    """One file as it is followed. batches: number of the first line of each, and when they were read."""

    stream: LogStream
    process: JobProcess | None
    path: str
    batches: deque[tuple[int, Timestamps]] = field(default_factory=lambda: deque(maxlen=_MOST_BATCHES))
    old_lines: int = 0  # written before the agent came
    last_ns: int = 0

    def read_at(self, number: int) -> Timestamps:
        place = bisect_right(self.batches, number, key=lambda batch: batch[0]) - 1
        return self.batches[max(place, 0)][1]


@dataclass(slots=True)
class _Window:
    """What was told of one writer since ``since_ns``. held: the first that was held back, and how many."""

    since_ns: int
    classes: set[str] = field(default_factory=set)
    weak: int = 0
    held: NodeEvent | None = None
    held_count: int = 0


class JobLogEvents:
    """``Classify`` of the collector of job logs. Called from one thread.

    ranks: of this node now. node: as lines may name it; what they say of another node is marked so.
    """

    def __init__(self, ranks: Callable[[], Collection[JobProcess]], *, node: str = "") -> None:
        self._ranks = ranks
        self._node = node or socket.gethostname()
        self._gate = make_gate()
        self._sources: dict[tuple[str, int, int], _Source] = {}
        self._windows: dict[str, _Window] = {}
        #: Ranks of this node, and when they were last seen.
        self._seen: dict[JobProcess, int] = {}

    @property
    def streams(self) -> int:
        """How many logs are followed at present."""
        return len(self._sources)

    def __call__(self, lines: Sequence[JobLogLine], now: Timestamps) -> list[NodeEvent]:
        self._see_ranks(now)
        found: list[NodeEvent] = []
        batches: dict[tuple[str, int, int], list[JobLogLine]] = {}
        for line in lines:
            pid = line.process.pid if line.process is not None else 0
            batches.setdefault((line.path, pid, line.descriptor), []).append(line)
        for key, batch in batches.items():
            source = self._source(key, batch[0])
            source.batches.append((source.stream.lines + 1, now))
            source.last_ns = now.mono_ns
            chunk = "".join("\n" if OWN.match(line.text) else f"{line.text}\n" for line in batch).encode(
                "utf-8", "replace"
            )
            found += self._report(source, source.stream.feed(chunk), now)
            if batch[-1].look_back:
                source.old_lines = source.stream.lines
        for source in self._sources.values():
            patience_ns = CUT_NS if source.stream.is_cut else SILENCE_NS
            if source.stream.is_open and now.mono_ns - source.last_ns >= patience_ns:
                found += self._report(source, source.stream.flush(), now)
        return found + self._end_windows(now)

    def flush(self, now: Timestamps) -> list[NodeEvent]:
        """Events of what is still open in any log (an unfinished traceback); called when the agent ends."""
        return [told for source in self._sources.values() for told in self._report(source, source.stream.flush(), now)]

    def _source(self, key: tuple[str, int, int], line: JobLogLine) -> _Source:
        source = self._sources.pop(key, None)
        if source is None:
            rank, node = (line.process.rank, self._node) if line.process is not None else whose(line.path)
            stream = LogStream(self._gate, rank=rank if rank is not None and rank >= 0 else None, node=node)
            source = _Source(stream, line.process, line.path)
            if len(self._sources) >= MOST_STREAMS:
                del self._sources[next(iter(self._sources))]  # the one that was silent for longest
        if line.look_back:
            # All of this batch: before it is fed, so that what it completes is known as old.
            source.old_lines = 1 << 62
        self._sources[key] = source
        return source

    # --- whose --------------------------------------------------------------------------------------------------------
    def _see_ranks(self, now: Timestamps) -> None:
        for process in self._ranks():
            self._seen[process] = now.mono_ns
        for process, seen_ns in list(self._seen.items()):
            if now.mono_ns - seen_ns > _ENDED_NS:
                del self._seen[process]

    def _process_of(self, source: _Source, witness: Witness) -> JobProcess | None:
        """The process of this node that the statement is of; None where it is of another node, or cannot be told."""
        own, rank = source.process, witness.line.rank
        if self._elsewhere(witness):
            return None
        if own is not None and (rank is None or rank == own.rank or own.rank < 0):
            return own
        if rank is None:
            return None
        same = [each for each in self._seen if each.rank == rank and (own is None or each.job == own.job)]
        if len({each.job for each in same}) != 1:
            return None
        return max(same, key=lambda each: (self._seen[each], each.pid))

    def _elsewhere(self, witness: Witness) -> str:
        """The other node that the statement names."""
        node = witness.line.node or ""
        return node if _short(node) not in ("", _short(self._node)) else ""

    # --- telling ------------------------------------------------------------------------------------------------------
    def _report(self, source: _Source, witnesses: Sequence[Witness], now: Timestamps) -> list[NodeEvent]:
        told: list[NodeEvent] = []
        for witness in witnesses:
            process = self._process_of(source, witness)
            happening = self._happening(source, witness, process)
            writer = str(process.pid) if process is not None else source.path
            if self._may_be_told(writer, witness, happening, now):
                told.append(happening)
        return told

    def _happening(self, source: _Source, witness: Witness, process: JobProcess | None) -> NodeEvent:
        failure, read_at = witness.failure, source.read_at(witness.first_line)
        where = witness.where
        is_symptom_of_peer = failure.name == "user_buffer_timeout"
        peer = expected_peer(witness.text) if is_symptom_of_peer else None
        rank = witness.line.rank if witness.line.rank is not None or process is None else process.rank
        attributes: dict[str, str | int | bool | None] = {
            "class": failure.name,
            "role": witness.role.value,
            "severity": "warning" if witness.line.level in _WARNINGS else "error",
            "bucket": failure.bucket.value,
            "scope": failure.scope.value,
            "action": failure.action.value,
            "restart": failure.restart.value,
            "text": witness.text,
            "warning": NUMERIC_WARNING if is_symptom_of_peer else "",
            "file": where.file if where is not None else "",
            "line": where.line if where is not None else None,
            "function": where.function if where is not None else "",
            "log": source.path,
            "rank": rank if rank is not None and rank >= 0 else None,
            "node": self._elsewhere(witness),
            "peer": peer,
            "port": local_port(witness.text) if failure.name == "network_link" else "",
            "before_start": witness.first_line <= source.old_lines or None,
        }
        return NodeEvent(
            name=EventName.JOB_LOG,
            time_ns=read_at.wall_ns,
            mono_ns=read_at.mono_ns,
            attributes={name: value for name, value in attributes.items() if value not in ("", None)},
            pid=process.pid if process is not None else 0,
        )

    def _may_be_told(self, writer: str, witness: Witness, happening: NodeEvent, now: Timestamps) -> bool:
        window = self._windows.get(writer)
        if window is None:
            if len(self._windows) >= _MOST_WRITERS:
                return False
            window = self._windows[writer] = _Window(now.mono_ns)
        name = f"{witness.failure.name} {witness.role.value}"
        is_weak = (
            witness.failure.rank in _WEAK or witness.role is not LineRole.INITIATING or witness.form is Form.LAUNCHER
        )
        is_new = name not in window.classes and len(window.classes) < MOST_TOLD
        if is_new and not (is_weak and window.weak >= MOST_WEAK):
            window.classes.add(name)
            window.weak += is_weak
            return True
        window.held = window.held or happening
        window.held_count += 1
        return False

    def _end_windows(self, now: Timestamps) -> list[NodeEvent]:
        """What was held back: its first, with the number of the others."""
        told = []
        for writer, window in list(self._windows.items()):
            if now.mono_ns - window.since_ns < WINDOW_NS:
                continue
            del self._windows[writer]
            if window.held is not None:
                more = {"more": window.held_count - 1}
                told.append(replace(window.held, attributes={**window.held.attributes, **more}))
        return told


def _short(node: str) -> str:
    return node.partition(".")[0].lower()
