"""The lines of a rank's newest operations, as its ring has them; told when it fails, and when somebody asks.

Polling thread. Reading a ring touches no process, so a rank that moves is answered for like any other. What a ring says
is claims: a line of which no definition is there is left out.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..telemetry import ring_layout as L
from ..telemetry.records import Event
from .group_identity import group_from_definition
from .health import AgentHealth
from .ring_file import RingFile
from .user_frames import Frame, format_stack
from .watched_rank import WatchedRank, requested_rank

ACTION = "calls"
_WORDS = struct.Struct(f"<{L.CALL_WORDS}Q")
_MOST_GROUPS = 32
#: Of a rank that fails: many may at once.
_NEWEST = 2
_MOST_LINE = 1 << 30
_MOST_REQUESTS, _REMEMBERED_IDS = 256, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The newest operations of one sort in a group, oldest first. frames: of the innermost line of the user's code."""

    group: str
    point_to_point: bool
    seqs: tuple[int, ...]
    frames: tuple[Frame, ...]

    def attributes(self, newest: int) -> dict[str, Any]:
        """Of a RANK_CALLS, for so many of them."""
        return {
            "group": self.group,
            "point_to_point": self.point_to_point,
            "seqs": self.seqs[-newest:],
            "sites": format_stack(self.frames[-newest:]),
        }


def calls_of(ring: RingFile) -> list[Calls]:
    """By group and sort; rings of earlier releases have none."""
    header = ring.header
    if header.crash_bytes < L.C_CALLS + header.group_rows * L.CALL_WORDS * 8:
        return []
    definitions, _, _ = ring.read_definitions(0, ring.read_hot().definitions_used)
    frames = {each.index: frame for each in definitions if (frame := _frame_of(each.kind, each.payload)) is not None}
    found: list[Calls] = []
    for each in definitions:
        if each.kind == L.DEFINITION_GROUP and each.index < header.group_rows and len(found) < _MOST_GROUPS:
            raw = ring.read(_WORDS.size, header.crash_offset + L.C_CALLS + each.index * _WORDS.size)
            try:
                uid = group_from_definition(each.payload).uid
            except ValueError:  # said where groups are defined
                continue
            if len(raw) == _WORDS.size:
                found += _calls_in(_WORDS.unpack(raw), uid, frames)
    return found


def _calls_in(words: Sequence[int], uid: str, frames: dict[int, Frame]) -> Iterator[Calls]:
    for first in (0, L.CALLS_OF_SORT):
        words_of_sort = [divmod(word, 1 << 16) for word in words[first : first + L.CALLS_OF_SORT]]
        known = {seq: frames[index] for seq, index in sorted(words_of_sort) if index in frames}
        if known:
            yield Calls(group=uid, point_to_point=first > 0, seqs=tuple(known), frames=tuple(known.values()))


def _frame_of(kind: int, payload: dict[str, Any]) -> Frame | None:
    file, line, function = payload.get("file"), payload.get("line"), payload.get("function")
    if kind != L.DEFINITION_CALL_SITE or not isinstance(file, str) or not file or not isinstance(function, str):
        return None
    words = [" ".join(text.split()) for text in (file, function)]
    return Frame(words[0], line, words[1]) if isinstance(line, int) and 0 <= line < _MOST_LINE else None


def failing_calls(rank: WatchedRank) -> Iterator[dict[str, Any]]:
    """What is told of a rank that has failed."""
    for calls in calls_of(rank.ring):
        yield calls.attributes(_NEWEST)


class CallDesk:
    """Answers requests for calls: bounded, idempotent by id, within their lifetime. Of ranks that have failed the same
    was told then."""

    def __init__(self, health: AgentHealth, *, is_refused: bool) -> None:
        self._health = health
        self._is_refused = is_refused
        self._ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._requests: deque[Event] = deque()

    def request(self, event: Event) -> None:
        """Take an EVIDENCE_REQUEST of this action; what cannot be served is counted."""
        request_id = event.attributes.get("id")
        if not isinstance(request_id, str):
            self._health.drop("requests_unreadable")
        elif request_id in self._ids:
            return
        elif self._is_refused or len(self._requests) >= _MOST_REQUESTS:
            self._health.drop("requests_refused")
        else:
            self._ids.append(request_id)
            self._requests.append(event)

    def answers(self, ranks: Sequence[WatchedRank]) -> Iterator[tuple[WatchedRank, dict[str, Any]]]:
        """Attributes of RANK_CALLS, each for its rank."""
        while self._requests:
            event = self._requests.popleft()
            rank = requested_rank(ranks, event)
            if rank is None:
                self._health.drop("requests_for_nobody")
                continue
            for calls in calls_of(rank.ring):
                yield rank, {**calls.attributes(L.CALLS_OF_SORT), "request_id": event.attributes["id"]}
