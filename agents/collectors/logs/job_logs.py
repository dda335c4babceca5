"""Collector of what jobs write: standard output and error of ranks where these are files, and logs named by patterns.

Lines go to a classifier that is passed in; only what it makes of them leaves the node, without secrets. Whose they are:
a rank's own descriptors are opened through /proc with its user's rights, so no name can lead elsewhere; files of
patterns with their owners', never through a link. Isolation.THREAD: it waits with a file system that
hangs, and is told as late.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....telemetry.records import Point
from ...processes.processes import process_uid
from ...user_files.system_calls import state_of
from ...user_files.user_files import RankDescriptor, files_of
from ...user_files.walk import NamedFile, find_matches
from ..base.collector import Collected, NodeEvent, Timestamps
from ..processes.job_process import JobProcess
from .followed_file import FileSource, FollowedFile
from .node_event_texts import bounded

#: Read of a file that was there before the agent, and at most of one that is found later.
LOOK_BACK_BYTES = 256 << 10
NEW_FILE_BYTES = 4 << 20
_FIND_NS = 10_000_000_000
#: A file that has not grown for so long is closed; it is opened again when it grows.
_QUIET_NS = 3_600_000_000_000
#: The file of a rank that has ended is read for so long: its last words are what counts.
_LAST_WORDS_NS = 30_000_000_000
_MOST_FILES = 256
#: Of them named by patterns, of one user.
_MOST_OF_OWNER = 64
#: A rank that fails as soon as it has begun takes the way to its log with it: while ranks are awaited, and until they
#: have been the same for so long (they begin one by one), they are looked for this often.
_AWAITS_RANKS_S = 0.25
_ALL_THERE_NS = 5_000_000_000
#: Half a line is handed out after two reads that brought nothing.
_READS_TO_THE_END = 3
#: What rotation has packed was read before.
_PACKED = (".gz", ".xz", ".zst", ".bz2", ".lz4", ".zip")
_MOST_NAMES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogLine:
    """text: without its end, as a terminal would show it in the end. look_back: written before the agent came.

    process: whose; None of a file of a pattern, or of several ranks. descriptor: 1 or 2, 0 of a file of a pattern.
    """

    text: str
    path: str
    process: JobProcess | None
    descriptor: int
    look_back: bool


#: Called at each look, also without lines, so that what waits for more lines can be told after a while. Lines of one
#: file come in order. Never raises.
Classify = Callable[[Sequence[JobLogLine], Timestamps], Sequence[NodeEvent]]
#: What was held back for lines to come; called when none will.
Flush = Callable[[Timestamps], Sequence[NodeEvent]]


@dataclass(slots=True)
class _Found:
    """A file that may be followed, not opened yet. uid: whose it is. source None: it is followed, or known as quiet."""

    path: str
    device_inode: tuple[int, int]
    size_bytes: int
    uid: int
    source: FileSource | None
    of_rank: bool = False
    descriptor: int = 0
    owners: set[JobProcess] = field(default_factory=set)


@dataclass(slots=True)
class _Log:
    file: FollowedFile
    process: JobProcess | None
    of_rank: bool
    uid: int
    descriptor: int
    grown_ns: int
    old_bytes: int  # so much of the file was there before the agent
    ended_ns: int = 0  # when no rank had it open any more


class JobLogsCollector:
    """enabled False: opens nothing. patterns: of glob, ``**`` included. ranks: those of this node now."""

    name = "job_logs"

    def __init__(
        self,
        classify: Classify,
        ranks: Callable[[], Sequence[JobProcess]] = tuple,
        patterns: Sequence[str] = (),
        *,
        flush: Flush | None = None,
        enabled: bool = True,
        period_s: float = 1.0,
        most_lines: int = 20_000,
        most_bytes: int = 8 << 20,
        proc: Path = Path("/proc"),
    ) -> None:
        self.period_s = self._usual_period_s = period_s
        self._classify = classify
        self._flush = flush
        self._ranks = ranks
        self._patterns = tuple(patterns)
        self._enabled = enabled
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._proc = proc
        self._logs: dict[tuple[int, int], _Log] = {}  # by device and inode
        #: Files that were closed because they were quiet, with the size that they had.
        self._quiet: dict[tuple[int, int], int] = {}
        self._next_find_ns = self._next_read_ns = 0
        self._first_find = True
        self._turn = 0
        self._lines = self._storms = self._lost_bytes = 0
        self._started_ns = 0
        self._told: tuple[int, ...] = ()
        self._known_ranks: frozenset[JobProcess] = frozenset()
        self._ranks_changed_ns = 0

    def collect(self, now: Timestamps) -> Collected:
        """Events of the new lines of all known logs. Sets ``period_s`` shorter while ranks are awaited.

        Logs are looked for when the ranks change, and now and then. Nothing where not enabled.
        """
        if not self._enabled:
            return Collected()
        self._started_ns = self._started_ns or now.wall_ns
        problems: list[str] = []
        ranks = tuple(self._ranks())
        if now.mono_ns >= self._next_find_ns or frozenset(ranks) != self._known_ranks:
            if frozenset(ranks) != self._known_ranks:
                self._known_ranks, self._ranks_changed_ns = frozenset(ranks), now.mono_ns
            self._next_find_ns = now.mono_ns + _FIND_NS
            self._find(ranks, now, problems)
            self._first_find = False
        awaits_ranks = not ranks or now.mono_ns - self._ranks_changed_ns < _ALL_THERE_NS
        self.period_s = min(self._usual_period_s, _AWAITS_RANKS_S) if awaits_ranks else self._usual_period_s
        if now.mono_ns < self._next_read_ns:
            return Collected(problems=problems)
        self._next_read_ns = now.mono_ns + int((self._usual_period_s - self.period_s / 2) * 1e9)
        lines = self._read(now, problems)
        happenings = [bounded(happening) for happening in self._classify(lines, now)]
        return Collected(points=self._points(now), happenings=happenings, problems=problems)

    def last_look(self, now: Timestamps) -> Collected:
        """Events of what was written since the last look, half a line too, and of what waited for more."""
        if not self._enabled:
            return Collected()
        problems: list[str] = []
        lines = [line for _ in range(_READS_TO_THE_END) for line in self._read(now, problems)]
        found = [*self._classify(lines, now), *(self._flush(now) if self._flush is not None else ())]
        return Collected(points=self._points(now), happenings=list(map(bounded, found)), problems=problems)

    def close(self) -> None:
        """Closes every log that is followed."""
        for log in self._logs.values():
            log.file.close()
        self._logs.clear()

    # --- finding ------------------------------------------------------------------------------------------------------

    def _find(self, ranks: Sequence[JobProcess], now: Timestamps, problems: list[str]) -> None:
        found: dict[tuple[int, int], _Found] = {}
        for process in ranks:
            for each in self._descriptors(process, problems):
                found.setdefault(each.device_inode, each).owners.add(process)
        for key, log in list(self._logs.items()):
            log.ended_ns = 0 if not log.of_rank or key in found else log.ended_ns or now.mono_ns
            if key in found:  # other ranks than before: a restart, or they were found one by one
                log.process = _only(found[key].owners)
            ended = log.ended_ns and now.mono_ns - log.ended_ns >= _LAST_WORDS_NS
            if ended or now.mono_ns - log.grown_ns > _QUIET_NS:
                self._drop(key)
        for pattern in self._patterns:
            self._find_named(pattern, found, problems)
        followed = {log.file.device_inode for log in self._logs.values()} | self._logs.keys()
        for key, each in found.items():
            if each.source is None:
                continue
            if key not in followed and self._quiet.get(key) != each.size_bytes:
                self._follow(key, each, each.source, now, problems)
            else:
                each.source.close()

    def _descriptors(self, process: JobProcess, problems: list[str]) -> Iterator[_Found]:
        """Of standard output and error, where these are regular files of the rank's own user."""
        owner = process_uid(process.pid, self._proc)
        if owner is None:
            return
        files = files_of(owner, process.pid)
        for descriptor in (1, 2):
            try:
                path, fd = files.open_descriptor(process.pid, descriptor)
            except PermissionError as error:
                problems.append(f"standard output of process {process.pid}: {error.strerror}: it is not followed")
                continue
            except OSError:
                continue  # gone, no file, or not ours to see: the collector of processes says so
            try:
                state = state_of(fd)
            finally:
                os.close(fd)
            source = RankDescriptor(files, process.pid, descriptor)  # many ranks share one file: opened when followed
            yield _Found(path, state.device_inode, state.size, owner, source, of_rank=True, descriptor=descriptor)

    def _find_named(self, pattern: str, found: dict[tuple[int, int], _Found], problems: list[str]) -> None:
        """Regular files that a pattern names, reached through no link; each is opened with its owner's rights."""
        shares: Counter[int] = Counter(log.uid for log in self._logs.values() if not log.of_rank)
        pattern = os.path.abspath(os.path.expanduser(pattern))
        for match in itertools.islice(find_matches(pattern, problems.append), _MOST_NAMES):
            state, path = match.state, match.path
            if not stat.S_ISREG(state.mode) or path.endswith(_PACKED) or state.device_inode in found:
                continue
            each = found[state.device_inode] = _Found(path, state.device_inode, state.size, state.uid, None)
            if state.device_inode in self._logs or self._quiet.get(state.device_inode) == state.size:
                continue
            shares[state.uid] += state.uid != 0
            if shares[state.uid] > _MOST_OF_OWNER:
                problems.append(
                    f"more than {_MOST_OF_OWNER} log files of user {state.uid}: his others are not followed"
                )
                continue
            with contextlib.suppress(OSError):
                each.source = NamedFile(match)

    def _follow(
        self, key: tuple[int, int], found: _Found, source: FileSource, now: Timestamps, problems: list[str]
    ) -> None:
        if len(self._logs) >= _MOST_FILES and not self._make_room(found.uid):
            problems.append(f"more than {_MOST_FILES} log files: the others are not followed; name fewer by patterns")
            source.close()
            return
        # A file that comes while we look is read from its beginning, one that was there before from near its end.
        look_back_bytes = LOOK_BACK_BYTES if self._first_find else NEW_FILE_BYTES
        if key in self._quiet:
            look_back_bytes = max(found.size_bytes - self._quiet.pop(key), 0)
        try:
            file = FollowedFile(found.path, look_back_bytes=look_back_bytes, source=source)
        except (OSError, ValueError) as error:
            problems.append(f"{found.path}: {getattr(error, 'strerror', None) or error}: it is not followed")
            source.close()
            return
        if file.device_inode != key:  # swapped since it was looked at
            file.close()
            return
        self._logs[key] = _Log(
            file=file,
            process=_only(found.owners),
            of_rank=found.of_rank,
            uid=found.uid,
            descriptor=found.descriptor,
            grown_ns=now.mono_ns,
            # What a rank's file holds when it is found may be of another attempt.
            old_bytes=found.size_bytes if self._first_find or found.of_rank else 0,
        )

    def _make_room(self, uid: int) -> bool:
        """Lets the quietest file of whoever has the most go, where this user has fewer."""
        shares = Counter(log.uid for log in self._logs.values())
        most, count = shares.most_common(1)[0]
        if shares[uid] + 1 >= count:
            return False
        self._drop(min((log.grown_ns, key) for key, log in self._logs.items() if log.uid == most)[1])
        return True

    def _drop(self, key: tuple[int, int]) -> None:
        log = self._logs.pop(key)
        self._lost_bytes += log.file.counts.lost_bytes
        if not log.of_rank:
            self._quiet[key] = log.file.size_bytes
        log.file.close()
        if not log.of_rank:
            while len(self._quiet) > _MOST_NAMES:
                del self._quiet[next(iter(self._quiet))]

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, now: Timestamps, problems: list[str]) -> list[JobLogLine]:
        """A fair share of each file; who was last becomes first, so that one that floods does not silence the rest."""
        lines: list[JobLogLine] = []
        logs = list(self._logs.values())
        left_bytes = self._most_bytes
        for place in range(len(logs)):
            log = logs[(self._turn + place) % len(logs)]
            share = len(logs) - place
            is_old = log.file.offset < log.old_bytes
            most_lines = max((self._most_lines - len(lines)) // share, 1)
            try:
                found = log.file.read_lines(most_lines, max(left_bytes // share, 4096))
            except OSError as error:
                problems.append(f"{log.file.path}: {error.strerror or error}")
                continue
            if found:
                log.grown_ns = now.mono_ns
            if log.file.offset >= log.old_bytes:
                log.old_bytes = 0  # whatever becomes of the file, the rest is new
            self._storms += len(found) >= most_lines
            for raw in found:
                left_bytes -= len(raw) + 1
                lines.append(
                    JobLogLine(
                        text=raw.decode("utf-8", "replace"),
                        path=log.file.path,
                        process=log.process,
                        descriptor=log.descriptor,
                        look_back=is_old,
                    )
                )
            if len(lines) >= self._most_lines or left_bytes <= 0:
                break
        self._turn += 1
        self._lines += len(lines)
        return lines

    def _points(self, now: Timestamps) -> list[Point]:
        """Only if they have changed."""
        lost_bytes = self._lost_bytes + sum(log.file.counts.lost_bytes for log in self._logs.values())
        counts = (self._lines, self._storms, lost_bytes, len(self._logs))
        if counts == self._told:
            return []
        self._told = counts
        names = ("whichrank.log.lines", "whichrank.log.storms", "whichrank.log.lost.bytes", "whichrank.log.files")
        return [
            Point(
                name=name,
                value=count,
                attributes={"whichrank.log.source": "jobs"},
                time_ns=now.wall_ns,
                start_ns=0 if name == "whichrank.log.files" else self._started_ns,
            )
            for name, count in zip(names, counts, strict=True)
        ]


def _only(owners: set[JobProcess]) -> JobProcess | None:
    return next(iter(owners)) if len(owners) == 1 else None
