"""The lines of a rank's newest operations, as its ring has them; told when it fails, and when somebody asks.

Polling thread. Reading a ring touches no process, so a rank that moves is answered for like any other. What a ring says
is claims: a line of which no definition is there is left out.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...telemetry import ring_layout as L
from ...telemetry.records import Event
from ..base.health import AgentHealth
from ..base.user_frames import UserFrame, format_stack
from ..ranks.watched_rank import WatchedRank, requested_rank
from ..reduction.group_identity import group_from_definition
from ..rings.ring_file import Definition, RingFile

ACTION = "calls"
_WORDS = struct.Struct(f"<{L.CALLS}Q")
_LEAST_BYTES = L.C_CALLS + _WORDS.size
#: Of a rank that fails: many may at once. Of one that is asked, the last up to the number in question.
_NEWEST, _ANSWERED = 2, 8
_MOST_LINE = 1 << 30
_MOST_REQUESTS, _REMEMBERED_IDS = 256, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The newest operations of one sort in a group, oldest first. frames: of the innermost line of the user's code."""

    group: str
    point_to_point: bool
    seqs: tuple[int, ...]
    frames: tuple[UserFrame, ...]

    def attributes(self, most: int, *, until: int = -1) -> dict[str, Any]:
        """Attributes of a RANK_CALLS event for the newest ``most`` of the calls, up to number ``until``; -1: up to the
        last.
        """
        end = bisect_right(self.seqs, until) if until >= 0 else len(self.seqs)
        chosen = slice(max(0, end - most), end)
        return {
            "group": self.group,
            "point_to_point": self.point_to_point,
            "seqs": self.seqs[chosen],
            "sites": format_stack(self.frames[chosen]),
        }


def calls_of(ring: RingFile) -> list[Calls]:
    """The newest operations that a ring still holds, each with the line of user code that issued it: one ``Calls`` for
    each process group and kind (collective or point-to-point), oldest first.

    Empty for rings of earlier releases, which keep no lines.
    """
    header = ring.header
    raw = ring.read(_WORDS.size, header.crash_offset + L.C_CALLS) if header.crash_bytes >= _LEAST_BYTES else b""
    if len(raw) < _WORDS.size:
        return []
    definitions = ring.all_definitions()
    frames = {each.index: frame for each in definitions if (frame := _frame_of(each.kind, each.payload)) is not None}
    uids = dict(_uids(definitions))
    found: dict[tuple[str, bool], dict[int, UserFrame]] = {}
    for word in _WORDS.unpack(raw):
        frame, uid = frames.get(word & L.CALL_SITE_MASK), uids.get(word >> 15 & 0xFFFF)
        if frame is not None and uid is not None:
            found.setdefault((uid, bool(word >> 14 & 1)), {})[word >> 31 & L.CALL_SEQ_MASK] = frame
    ordered = {key: sorted(calls) for key, calls in found.items()}
    return [
        Calls(group=uid, point_to_point=is_p2p, seqs=tuple(seqs), frames=tuple(found[uid, is_p2p][seq] for seq in seqs))
        for (uid, is_p2p), seqs in ordered.items()
    ]


def _uids(definitions: Sequence[Definition]) -> Iterator[tuple[int, str]]:
    """By row, of the groups that can be read; of others it is said where groups are defined."""
    for each in definitions:
        if each.kind == L.DEFINITION_GROUP:
            with contextlib.suppress(ValueError):
                yield each.index, group_from_definition(each.payload).uid


def _frame_of(kind: int, payload: dict[str, Any]) -> UserFrame | None:
    file, line, function = payload.get("file"), payload.get("line"), payload.get("function")
    if kind != L.DEFINITION_CALL_SITE or not isinstance(file, str) or not file or not isinstance(function, str):
        return None
    words = [" ".join(text.split()) for text in (file, function)]
    return UserFrame(words[0], line, words[1]) if isinstance(line, int) and 0 <= line < _MOST_LINE else None


def failing_calls(rank: WatchedRank) -> Iterator[dict[str, Any]]:
    """Attributes of RANK_CALLS events for a rank that has failed: its newest operations in each group."""
    for calls in calls_of(rank.ring):
        yield calls.attributes(_NEWEST)


class CallDesk:
    """Answers requests for calls with the next look: bounded, idempotent by id. What ranks that have failed called last
    was told when they did."""

    def __init__(self, health: AgentHealth, *, is_refused: bool) -> None:
        self._health = health
        self._is_refused = is_refused
        self._ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._requests: deque[Event] = deque()

    def request(self, event: Event) -> None:
        """Queues a request for calls; an id that was seen before is passed over.

        What is unreadable, withheld or too much is only counted.
        """
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
        """Answers the queued requests: each rank with attributes of a RANK_CALLS for it; empties the queue.

        Requests for ranks that are not here are counted.
        """
        while self._requests:
            event = self._requests.popleft()
            rank = requested_rank(ranks, event)
            if rank is None:
                self._health.drop("requests_for_nobody")
                continue
            wanted = event.attributes
            seq = wanted.get("seq", -1)
            for calls in calls_of(rank.ring):
                if wanted.get("group") not in (None, calls.group):
                    continue
                if wanted.get("point_to_point") not in (None, calls.point_to_point):
                    continue
                until = seq if isinstance(seq, int) else -1
                yield rank, {**calls.attributes(_ANSWERED, until=until), "request_id": wanted["id"]}
