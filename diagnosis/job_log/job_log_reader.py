"""Reads the logs of one job and says what it died of: ``read_job_logs(sources)``.

One pass, bounded memory. Not for several threads at once; no clock, no state that outlives a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..word_gate import WordGate
from .carriers import LOUD_LEVELS
from .course import is_end, is_new_attempt
from .episodes import Episodes
from .log_prefix import read_lines
from .log_progress import first_progress, last_progress, progress_of
from .log_scan import scan
from .log_verdict import judge
from .model import Episode, LogLine, LogVerdict, Progress
from .pods import Pods
from .standstills import Wave
from .statements import Statements
from .stream import make_gate
from .unknown_prefix import learnt
from .ways import NCCL_HEAD, NOBODY_KNOWN, Origin
from .wrapped import Unwrapper, wrap_width

#: A prefix of the log's own is looked for in so many lines of its first blocks.
SAMPLED_LINES = 96
SAMPLED_BYTES = 400
LEARNT_BLOCKS = 3
#: Rank and node in the name of a file: rank_3.log, 3.err, node-07/stdout, slurm-123_4.out, attempt_0/3/stderr.log.
RANK_IN_NAME = re.compile(
    r"(?:^|[/._-])rank[._-]?(?P<a>\d{1,6})(?=\D|$)|/(?P<b>\d{1,6})/std(?:out|err)(?:\.log)?$|"
    r"-\d+[._-](?P<c>\d{1,6})\.(?:out|err|log)$"
)
NODE_IN_NAME = re.compile(r"(?:^|[/._-])(?P<node>(?:node|host|gpu|worker|nid|cn)-?\d[\w-]*?)(?=[/.]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """A log and the name under which it is told of; rank and node where its name says them."""

    name: str
    file: BinaryIO
    rank: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """What the logs of a job show."""

    names: tuple[str, ...]
    lines: int
    verdict: LogVerdict
    episodes: tuple[Episode, ...]
    waves: tuple[Wave, ...]
    first_progress: Progress | None
    last_progress: Progress | None
    last_checkpoint: Progress | None
    dropped_episodes: int


def read_job_logs(sources: Iterable[LogSource]) -> JobLog:
    """Reads the logs of one job, and says what it died of. Raises OSError of the files."""
    episodes = Episodes()
    names: list[str] = []
    lines = 0
    for index, source in enumerate(sources):
        names.append(source.name)
        reader = _Reader(index, source, episodes)
        lines += scan(source.file, gate(), reader)
        reader.finish()
        episodes.end_of_file()
    episodes.finish()
    return JobLog(
        names=tuple(names),
        lines=lines,
        verdict=judge(episodes),
        episodes=tuple(episodes.episodes),
        waves=tuple(episodes.waves),
        first_progress=episodes.first_progress,
        last_progress=episodes.last_progress,
        last_checkpoint=episodes.last_checkpoint,
        dropped_episodes=episodes.dropped_episodes,
    )


@cache
def gate() -> WordGate:
    """A gate with the words that a line must have one of to be read at all; made once."""
    return make_gate()


def whose(name: str) -> tuple[int | None, str | None]:
    """(rank, node) that a file's name tells; None for what it does not."""
    rank = RANK_IN_NAME.search(name)
    node = NODE_IN_NAME.search(name)
    number = next((value for value in rank.groups() if value), None) if rank else None
    return (int(number) if number else None, node["node"] if node else None)


def _sample(chunk: bytes, ends: NDArray[np.int64]) -> list[str]:
    """Texts of some lines of a block, without the carriers that are known."""
    found = []
    for index in np.linspace(0, len(ends) - 1, num=min(len(ends), SAMPLED_LINES), dtype=np.int64).tolist():
        start = int(ends[index - 1]) + 1 if index else 0
        raw = chunk[start : min(int(ends[index]), start + SAMPLED_BYTES)]
        # What stands in front of NCCL's lines is known, and kept: it tells node and device.
        found += [NCCL_HEAD.sub("", line.text, count=1) for line in read_lines(NOBODY_KNOWN, 0, raw)]
    return found


class _Reader:
    """The sink of one file's scan."""

    def __init__(self, index: int, source: LogSource, episodes: Episodes) -> None:
        self._index = index
        self._origin = Origin(source=index, rank=source.rank, node=source.node)
        self._episodes = episodes
        self._statements = Statements()
        self._unwrapper = Unwrapper()
        self._pods = Pods()
        self._blocks = 0

    def wants_next(self) -> bool:
        return self._unwrapper.wants_next() or self._statements.wants_next()

    def block(self, chunk: bytes, ends: NDArray[np.int64]) -> None:
        self._unwrapper.width = wrap_width(ends)
        if self._origin.learnt is None and self._blocks < LEARNT_BLOCKS:
            self._origin = replace(self._origin, learnt=learnt(_sample(chunk, ends)))
        self._blocks += 1

    def line(self, number: int, raw: bytes) -> None:
        for first, whole in self._unwrapper.feed(number, raw):
            self._whole(first, whole)

    def _whole(self, number: int, raw: bytes) -> None:
        for line in read_lines(self._origin, number, raw):
            self._one(line)

    def gap(self, chunk: bytes, start: int, end: int, first_number: int, last_number: int) -> None:
        self._end_open()
        if self._episodes.waits_for_progress:
            for found in first_progress(chunk, start, end, first_number, self._index):
                self._episodes.progress(found)
                if not found.checkpoint:
                    break
        newest = next(
            (found for found in last_progress(chunk, start, end, last_number, self._index) if not found.checkpoint),
            None,
        )
        if newest is not None:
            self._episodes.progress(newest)

    def finish(self) -> None:
        self._end_open()

    def _end_open(self) -> None:
        for number, raw in self._unwrapper.flush():
            self._whole(number, raw)
        self._statements.finish()
        self._hand_on()

    def _one(self, line: LogLine) -> None:
        text = line.text
        if "Node:" in text or "assigned" in text:
            self._pods.see(line)
        ends = line.level not in LOUD_LEVELS and is_end(text)
        if ends:
            # What was open stood before it.
            self._statements.finish()
            self._hand_on()
            self._episodes.finished(line)
        said = self._statements.feed(line)
        self._hand_on()
        if "SeqNum=" in text or "enqueued" in text:
            self._episodes.standstills.see(line)
        if said or self._statements.wants_next():
            if not self._statements.took:
                self._said(line)
            return
        if found := progress_of(text.encode(), self._index, line.number):
            self._episodes.progress(found)
        elif not ends and is_new_attempt(text):
            self._episodes.started_again()

    def _said(self, line: LogLine) -> None:
        """A statement of one line can tell of a new attempt, or of a step whose numbers have gone bad."""
        if is_new_attempt(line.text):
            self._episodes.started_again()
        elif found := progress_of(line.text.encode(), self._index, line.number):
            self._episodes.step(found)

    def _hand_on(self) -> None:
        for witness in self._statements.take():
            self._episodes.add(self._pods.placed(witness))
