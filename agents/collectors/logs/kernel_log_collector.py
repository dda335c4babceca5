"""Collector of kernel lines: from the first source that can be read, through a parser that is passed in.

At its start it looks back, and marks what is older than itself (``before_start``) or than this boot (``before_boot``):
that is history, which explains but is no news. A storm is taken in portions; what is lost meanwhile is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ....telemetry.records import Point
from ....telemetry.trust import Trust
from ..base.collector import Collected, NodeEvent, Timestamps
from .kernel_log_sources import KMSG, LOG_FILES, JournalSource, KernelLogSource, KmsgSource, LogFileSource
from .node_event_texts import bounded

#: A line without its end, and when: that of the record (kmsg, journald), or that of reading, where the line's own
#: prefix tells the time (files). Returns what happened, at the line's own time as far as it tells one. Never raises.
ParseLine = Callable[[str, Timestamps], Sequence[NodeEvent]]
#: What the parser has held back for lines to come; called when the log has fallen silent.
Flush = Callable[[Timestamps], Sequence[NodeEvent]]
OpenSource = Callable[[], KernelLogSource]

LOOK_BACK_S = 7200.0
_AGAIN_NS = 60_000_000_000


def default_sources(path: str = "", look_back_s: float = LOOK_BACK_S) -> dict[str, OpenSource]:
    """Functions that open the kernel log, by name, in the order in which they are tried.

    path: of the configuration, "" for none; then it is the only source, and whoever named it answers for it that only
    the kernel's lines get there. look_back_s: how old the first lines may be.
    """
    if path:
        return {
            path: partial(KmsgSource, look_back_s, path) if path == KMSG else partial(LogFileSource, path, Trust.KERNEL)
        }
    return {
        KMSG: partial(KmsgSource, look_back_s),
        "journalctl": partial(JournalSource, look_back_s),
        **{file: partial(LogFileSource, file) for file in LOG_FILES},
    }


class KernelLogCollector:
    """Isolation.THREAD: nothing here blocks."""

    name = "kernel_log"

    def __init__(
        self,
        parse: ParseLine,
        sources: dict[str, OpenSource] | None = None,
        *,
        flush: Flush | None = None,
        period_s: float = 1.0,
        look_back_s: float = LOOK_BACK_S,
        most_lines: int = 2000,
    ) -> None:
        self.period_s = period_s
        self._parse = parse
        self._flush = flush
        self._is_flushed = True
        self._sources = default_sources(look_back_s=look_back_s) if sources is None else sources
        self._look_back_ns = int(look_back_s * 1e9)
        self._most_lines = most_lines
        self._source: KernelLogSource | None = None
        self._again_ns = 0
        self._started: Timestamps | None = None
        self._lines = self._storms = 0
        self._last_counts: tuple[int, int, int, int] | None = None

    def collect(self, now: Timestamps) -> Collected:
        """New kernel lines as events. Blind while no source can be opened; it is tried again later."""
        if self._started is None:
            self._started = now
        if self._source is None:
            if now.mono_ns < self._again_ns:
                return Collected(blind=True)
            problem = self._open(now)
            if self._source is None:
                return Collected(problems=(problem,), blind=True)
        try:
            lines = self._source.read(now, self._most_lines)
        except OSError as error:
            return Collected(problems=(f"{self._source.name}: {error.strerror or error}",), blind=True)
        self._lines += len(lines)
        self._storms += len(lines) >= self._most_lines
        found = [
            _of_user(happening) if line.quotes_users else happening
            for line in lines
            for happening in self._parse(line.text, line.moment)
        ]
        if not lines and not self._is_flushed and self._flush is not None:
            found += self._flush(now)
        self._is_flushed = not lines
        oldest_ns = self._started.wall_ns - self._look_back_ns
        happenings = [self._marked(happening) for happening in found if happening.time_ns >= oldest_ns]
        return Collected(points=self._points(now), happenings=happenings)

    def close(self) -> None:
        """Closes the source, if one was open."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _open(self, now: Timestamps) -> str:
        """Why there is no source, or an empty string."""
        reasons: list[str] = []
        for name, open_source in self._sources.items():
            try:
                self._source = open_source()
                return ""
            except (OSError, ValueError) as error:
                reasons.append(f"{name}: {getattr(error, 'strerror', None) or error}")
        self._again_ns = now.mono_ns + _AGAIN_NS
        return f"none can be read ({'; '.join(reasons)}); run the agent as root or name one in its settings"

    def _marked(self, happening: NodeEvent) -> NodeEvent:
        assert self._started is not None
        assert self._source is not None
        marks: dict[str, bool | str] = {} if self._source.trust is Trust.KERNEL else {"trust": self._source.trust.value}
        if happening.time_ns < self._started.wall_ns:
            marks["before_start"] = True
        if happening.time_ns < self._started.wall_ns - self._started.mono_ns:
            marks["before_boot"] = True
        return bounded(replace(happening, attributes={**happening.attributes, **marks}))

    def _points(self, now: Timestamps) -> list[Point]:
        """Only if they have changed."""
        assert self._source is not None
        assert self._started is not None
        lost = self._source.counts
        counts = (self._lines, self._storms, lost.lost_lines, lost.lost_bytes)
        if counts == self._last_counts:
            return []
        self._last_counts = counts
        names = ("whichrank.log.lines", "whichrank.log.storms", "whichrank.log.lost.lines", "whichrank.log.lost.bytes")
        return [
            Point(
                name=name,
                value=count,
                attributes={"whichrank.log.source": "kernel"},
                time_ns=now.wall_ns,
                start_ns=self._started.wall_ns,
            )
            for name, count in zip(names, counts, strict=True)
        ]


def _of_user(happening: NodeEvent) -> NodeEvent:
    """In the kernel's line, but perhaps in a user's words."""
    return replace(happening, attributes={**happening.attributes, "trust": Trust.USER.value})
