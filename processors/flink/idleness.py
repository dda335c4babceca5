"""Finds that all input is silent, or that nobody kept time, and tells all shards. Pure; no Flink.

In the embedded engine one runner sees all input, so it knows when none comes. Here each shard sees a part, and the
detector sees marks of all. After ``GAP_NS`` with beats alone, or with nothing at all, it tells every shard that time
stands still from there on, and when it goes on again; timers then run their full time anew. It tells them before any
shard can be further: Flink's watermark passes the detector first.
"""

from __future__ import annotations

import bisect
import json

from ..runner import GAP_NS
from .keyed_rows import KeyedState
from .stage_elements import PHASE_PAUSE, PHASE_RESUME, Element, ElementSort, StageOutput, StreamPlace, all_shards

#: Shard of the one detector, and what the key of a mark says where it is more than a beat.
ONE_SHARD = "all"
HEARD = "heard"
_BOOK = "book"


class IdlenessDetector:
    """``take`` marks, ``advance``: what every shard has to be told. For one thread; its state is one row."""

    def __init__(self, state: KeyedState) -> None:
        self._state = state
        book = dict(state.items()).get(_BOOK)
        kept = json.loads(bytes(book)) if book else {}
        #: Stamps of the newest mark of any sort, and of one that was heard; 0 before the first.
        self._last_ns: int = kept.get("last_ns", 0)
        self._heard_ns: int = kept.get("heard_ns", 0)
        self._stands: bool = kept.get("stands", False)
        self._marks: list[tuple[int, bool]] = [(stamp, is_heard) for stamp, is_heard in kept.get("marks", [])]

    def take(self, element: Element) -> None:
        """Notes a mark."""
        bisect.insort(self._marks, (element.place.stamp_ns, element.key == HEARD))
        self._write()

    def advance(self, until_ms: int) -> list[StageOutput]:
        """What the shards have to be told of the time up to the end of this millisecond."""
        until_ns = until_ms * 1_000_000 + 999_999
        told: list[StageOutput] = []
        while self._marks and self._marks[0][0] <= until_ns:
            stamp_ns, is_heard = self._marks.pop(0)
            told += self._see(stamp_ns, is_heard)
        self._write()
        return told

    def wake_ms(self) -> int | None:
        """When there is something to do next, in the bus's milliseconds."""
        return self._marks[0][0] // 1_000_000 if self._marks else None

    def _see(self, stamp_ns: int, is_heard: bool) -> list[StageOutput]:
        told: list[StageOutput] = []
        if self._last_ns and not self._stands and stamp_ns - self._last_ns > GAP_NS:
            # Nobody kept time in between.
            told += _to_all(ElementSort.PAUSE, self._last_ns) + _to_all(ElementSort.RESUME, stamp_ns)
        self._last_ns = max(self._last_ns, stamp_ns)
        if is_heard:
            self._heard_ns = max(self._heard_ns, stamp_ns)
            if self._stands:
                self._stands = False
                told += _to_all(ElementSort.RESUME, stamp_ns)
        elif self._heard_ns and not self._stands and stamp_ns - self._heard_ns >= GAP_NS:
            self._stands = True
            told += _to_all(ElementSort.PAUSE, stamp_ns)
        return told

    def _write(self) -> None:
        book = {
            "last_ns": self._last_ns,
            "heard_ns": self._heard_ns,
            "stands": self._stands,
            "marks": self._marks,
        }
        self._state.put(_BOOK, json.dumps(book).encode())


def _to_all(sort: ElementSort, stamp_ns: int) -> list[StageOutput]:
    phase = PHASE_PAUSE if sort is ElementSort.PAUSE else PHASE_RESUME
    return [
        Element(stage=stage, shard=shard, sort=sort, place=StreamPlace(stamp_ns=stamp_ns, phase=phase))
        for stage, shard in all_shards()
    ]
