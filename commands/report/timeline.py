"""What happened when, as bars over one axis of time: attempts, buckets of the accounting, incidents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...diagnosis.goodput.interval import Interval
from ..incident_text.utc_time import when
from .grid import Column
from .verdict import IncidentVerdict

WIDTH = 1000
_TICKS = 6
_MOST_INCIDENTS = 40
_MOST_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """left, width: of WIDTH. look: which colour (a class of the style sheet)."""

    left: float
    width: float
    look: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """ticks: (place, words)."""

    tracks: tuple[Track, ...]
    ticks: tuple[tuple[float, str], ...]


def timeline_of(
    *,
    begin_s: float,
    end_s: float,
    attempts: Sequence[float],
    columns: Sequence[Column],
    intervals: Iterable[Interval],
    verdicts: Sequence[IncidentVerdict],
) -> Timeline:
    """Bars of attempts, steps, buckets of time and incidents over one axis. All times are Unix seconds.

    attempts: their beginnings.
    """
    begin_s = min([begin_s, *(each.onset_s for each in verdicts if each.onset_s)])
    axis = _Axis(begin_s, max(end_s, begin_s + 1.0))
    tracks = [
        Track(title="attempts", bars=tuple(_attempts(axis, attempts))),
        Track(title="steps", bars=tuple(_steps(axis, columns))),
        Track(title="time went to", bars=tuple(_buckets(axis, intervals))),
    ]
    for each in verdicts[:_MOST_INCIDENTS]:
        tracks.append(Track(title=f"incident {each.id[:6]}", bars=tuple(_incident(axis, each))))
    ticks = (axis.begin_s + place * axis.seconds / _TICKS for place in range(_TICKS + 1))
    return Timeline(
        tracks=tuple(track for track in tracks if track.bars),
        ticks=tuple((axis.place(tick), when(tick)[11:]) for tick in ticks),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    def place(self, at_s: float) -> float:
        return round(WIDTH * min(1.0, max(0.0, (at_s - self.begin_s) / self.seconds)), 2)

    def bar(self, begin_s: float, end_s: float, look: str, text: str) -> Bar:
        """At least as wide as can be seen."""
        left = min(self.place(begin_s), WIDTH - 2.0)
        return Bar(left=left, width=max(2.0, self.place(end_s) - left), look=look, text=text)


def _attempts(axis: _Axis, attempts: Sequence[float]) -> Iterator[Bar]:
    for number, begin_s in enumerate(attempts):
        end_s = attempts[number + 1] if number + 1 < len(attempts) else axis.end_s
        again = "started" if number == 0 else "started again"
        yield axis.bar(begin_s, end_s, f"attempt{number % 2}", f"attempt {number + 1}, {again} at {when(begin_s)} UTC")


def _steps(axis: _Axis, columns: Sequence[Column]) -> Iterator[Bar]:
    """Where some of the steps lie, and the one that was not finished."""
    every = max(1, len(columns) // _MOST_STEPS)
    for place, column in enumerate(columns):
        if column.begin_s and (place % every == 0 or column.unfinished):
            ended = ", not finished" if column.unfinished else ""
            look = "unfinished" if column.unfinished else "step"
            text = f"step {column.first_step}{ended}, {when(column.begin_s)} UTC"
            yield axis.bar(column.begin_s, axis.end_s if column.unfinished else column.begin_s, look, text)


def _buckets(axis: _Axis, intervals: Iterable[Interval]) -> Iterator[Bar]:
    for interval in sorted(intervals, key=lambda each: each.begin_ns):
        at_ns = interval.begin_ns
        for part in interval.parts:  # how they lie within their interval is not told: one after the other
            seconds = f"{part.ns / 1e9:.1f} s"
            text = f"{part.bucket.value.replace('_', ' ')}, {seconds} of {interval.ns / 1e9:.1f} s"
            yield axis.bar(at_ns / 1e9, (at_ns + part.ns) / 1e9, f"bucket-{part.bucket.value}", text)
            at_ns += part.ns


def _incident(axis: _Axis, verdict: IncidentVerdict) -> Iterator[Bar]:
    end_s = verdict.resolved_s if verdict.resolved_s is not None else axis.end_s
    yield axis.bar(verdict.onset_s, end_s, f"severity-{verdict.severity}", verdict.sentence)
    if verdict.detected_s is not None:
        yield axis.bar(verdict.detected_s, verdict.detected_s, "told", f"told at {when(verdict.detected_s)} UTC")
