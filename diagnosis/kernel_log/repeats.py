"""The same Xid again and again: counted in its group without being read anew, where the line's beginning tells all.

A GPU that fails can fill a log with one Xid; what such lines add is a count and a time. ``RepeatLane`` learns from a
line that was read where host and time stand in it, and takes those that differ from it in the time and the tail only.
Which codes a device had last it shares with the reader, which decides by them what follows from what.
"""

from __future__ import annotations

import math
import re
from collections.abc import MutableMapping
from dataclasses import dataclass

from ...telemetry.vocabulary import CausalRole
from . import nvlink5
from .device_history import ONE_LOSS_S, is_soon
from .event import KernelEvent
from .findings import Findings, RepeatedEvent, when_of
from .kernel_log_reader import KernelLogReader
from .recurrence import parameters
from .xid import CASCADE_S, OFF_THE_BUS_XID, RECOVERY_XID, XID, policy_of

_WORD = b"Xid ("
#: What these say stands in their tails.
_READ_WHOLE = frozenset({*map(str, nvlink5.CODES), str(RECOVERY_XID)})
_NAMED = re.compile(rb"name='?[^<',\s]")
_NOTHING: frozenset[str] = frozenset()
_MONOTONIC = re.compile(rb"\[( *\d{1,9}\.\d{1,9})\]")
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d")
#: A time of the day tells no fraction; one of the line before may lie as much behind.
_FRACTION_S = 1.0
#: Kinds of lines remembered; then all are learnt anew.
MOST = 4096


@dataclass(slots=True)
class _Layout:
    """Where a line has what: ``word_at`` the word itself. ``base_s``: what the clock's own number is added to."""

    word_at: int
    date: bytes
    begin: int
    end: int
    host: bytes
    host_at: int
    is_monotonic: bool
    base_s: float


@dataclass(slots=True)
class _Entry:
    """``seen``: of its device, when each code that explains others came last. ``follows``: as in ``XidPolicy``."""

    code: str
    follows: frozenset[str] | None
    seen: dict[str, float | None]
    #: Its group where it began something, and the one where it followed; None: not seen in that role yet.
    began: RepeatedEvent | None = None
    followed: RepeatedEvent | None = None
    #: Of Xid 79: when the GPU was last said to be lost, and its name there.
    lost: MutableMapping[tuple[str, str], float | None] | None = None
    lost_key: tuple[str, str] = ("", "")
    #: No line of its group has named a process yet.
    is_nameless: bool = False


class RepeatLane:
    """For one log and its findings. ``taken``: lines counted here. ``is_flood``: whether most of late were."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.is_flood = False
        self.taken = 0
        self._entries: dict[bytes, _Entry] = {}
        self._layout: _Layout | None = None
        self._window_s = parameters().coalesce_s
        self._second, self._second_s = b"", 0.0

    def take(self, line: bytes) -> bool:
        """Whether the line is a repeat, which then was counted."""
        layout = self._layout
        if layout is None or not line.startswith(_WORD, layout.word_at):
            return False
        begin = layout.word_at + len(_WORD)
        end = line.find(b",", begin)
        entry = self._entries.get(line[begin:end])
        if entry is None or not line.startswith(layout.date):
            return False
        if layout.host and not line.startswith(layout.host, layout.host_at):
            return False
        follows = entry.follows
        if follows is not _NOTHING and line.find(b" Xid", end) >= 0:
            return False
        if entry.is_nameless and _NAMED.search(line, end):  # it may know whose fault it was
            return False
        group = entry.began
        if not layout.end:  # nothing here tells a time
            if group is None or follows is not _NOTHING or entry.lost is not None:
                return False
            self.taken += 1
            self._findings.repeat(group, None)
            return True
        clock = line[layout.begin : layout.end]
        if layout.is_monotonic:
            try:
                when_s = float(clock) + layout.base_s
            except ValueError:
                return False
        elif clock == self._second:
            when_s = self._second_s
        else:
            if _CLOCK.fullmatch(clock) is None:
                return False
            when_s = self._second_s = _of_day_s(clock) + layout.base_s
            self._second = clock
        if entry.lost is not None:
            if entry.lost_key in entry.lost and is_soon(entry.lost[entry.lost_key], when_s, ONE_LOSS_S):
                group = entry.followed
        elif follows is not _NOTHING and _follows(entry, when_s):
            group = entry.followed
        if group is None:
            return False
        last_s = group.last_s
        if last_s is None or when_s < last_s - _FRACTION_S:
            return False
        if when_s > last_s + self._window_s and (group.is_kept or not self._findings.is_full):
            return False
        if follows is not None:
            entry.seen[entry.code] = when_s
        if entry.lost is not None:
            entry.lost[entry.lost_key] = when_s
        self.taken += 1
        group.count += 1
        if when_s > last_s:
            group.last_s = when_s
        if not group.is_kept:
            self._findings.left_out += 1
        return True

    def learn(self, line: bytes, event: KernelEvent, reader: KernelLogReader) -> None:
        """Learns how a line looks whose only event this is, so that ``take`` knows its repeats.

        To be called once the event has got its group. Only Xids of which the line's beginning tells all are learnt.
        """
        if event.event != XID:
            return
        group = self._findings.group_of(event)
        if group is None or event.code in _READ_WHOLE or "caused_by" in event.facts:
            return
        head, _, tail = line.partition(_WORD)
        layout = _layout(head, event, when_of(event))
        if layout is None:
            return
        known = self._layout
        if known is None or layout != known or len(self._entries) >= MOST:
            if known is None or not _is_like(layout, known):
                self._entries.clear()
            self._layout, self._second = layout, b""
        mark, comma, _ = tail.partition(b",")
        if not comma:
            return
        entry = self._entries.get(mark)
        if entry is None:
            seen = reader.history.recent_xids(event.host, event.device)
            follows = policy_of(event.code).follows
            follows = _NOTHING if follows is not None and not follows else follows
            entry = self._entries[mark] = _Entry(code=event.code, follows=follows, seen=seen)
            if event.code == OFF_THE_BUS_XID:
                entry.lost, entry.lost_key = reader.history.lost(event.host, event.device)
        entry.is_nameless = not group.event.process
        if event.role is CausalRole.CASCADE:
            entry.followed = group
        else:
            entry.began = group


def _follows(entry: _Entry, when_s: float) -> bool:
    """As ``is_consequence`` says of what the device had."""
    seen = entry.seen
    for code in seen if entry.follows is None else entry.follows:
        if code in seen and code != entry.code:
            at_s = seen[code]
            if at_s is None or when_s - at_s <= CASCADE_S:
                return True
    return False


def _is_like(one: _Layout, other: _Layout) -> bool:
    """The same but for the day."""
    return (one.host, one.host_at, one.is_monotonic) == (other.host, other.host_at, other.is_monotonic)


def _layout(head: bytes, event: KernelEvent, when_s: float | None) -> _Layout | None:
    host = event.host.encode()
    host_at = head.find(b" " + host + b" ") + 1 if host else 0
    if host and not host_at:
        return None
    host = host + b" " if host else b""
    clock = _CLOCK.search(head)
    if when_s is None:
        return None if clock else _Layout(len(head), b"", 0, 0, host, host_at, is_monotonic=False, base_s=0.0)
    is_monotonic = event.time_s is None
    found = _MONOTONIC.search(head) if is_monotonic else clock
    if found is None:
        return None
    begin, end = found.span(1) if is_monotonic else found.span()
    # Of a time of the day the whole seconds count.
    base_s = 0.0 if is_monotonic else float(math.floor(when_s - _of_day_s(found[0])))
    return _Layout(len(head), head[:begin], begin, end, host, host_at, is_monotonic, base_s)


def _of_day_s(clock: bytes) -> float:
    return float(int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8]))
