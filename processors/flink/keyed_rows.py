"""Rows, timers and position of a shard in keyed state: read once, then written as they change. Pure; knows no Flink.

Keyed state is a map from texts to bytes. A row's name says what it is: ``["row", operator, key, table, row]``,
``["timer", operator, key, name]``, ``["position"]``, ``["waits", ...]`` for what has come and is not due.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Protocol

from ..runner_rows import Position, RunnerRows
from ..runner_tables import made

_TIMES = struct.Struct("<qq")
_POSITION = '["position"]'
#: Fields of ``Position`` that mean something here: what lies on Kafka and how far it was read is Flink's.
_KEPT = ("after", "now_ns", "silent", "outbox_id", "cluster")


class KeyedState(Protocol):
    """A map of one key of Flink's."""

    def items(self) -> Iterable[tuple[str, bytes]]:
        """All that is kept of the key."""

    def put(self, name: str, value: bytes) -> None:
        """Sets one."""

    def remove(self, name: str) -> None:
        """Deletes one; nothing where there is none."""


def named(*parts: str | int) -> str:
    """The name of a row of keyed state."""
    return json.dumps(parts, separators=(",", ":"))


class ShardRows(RunnerRows):
    """Working copy of what keyed state holds of a shard; ``flush`` writes what changed."""

    def __init__(self, state: KeyedState) -> None:
        super().__init__(Position())
        self._state = state
        self._written_position = b""
        #: What has come and was not processed, packed, by name.
        self.waiting: dict[str, bytes] = {}
        timers: list[tuple[str, str, str, int, int]] = []
        for name, value in state.items():
            sort, *parts = json.loads(name)
            value = bytes(value)
            if sort == "row":
                operator, key, table, row = parts
                self._rows_for((operator, key, table))[row] = value
            elif sort == "timer":
                operator, key, timer = parts
                timers.append((operator, key, timer, *_TIMES.unpack(value)))
            elif sort == "waits":
                self.waiting[name] = value
            elif name == _POSITION:
                self._written_position = value
                for field, kept in json.loads(value).items():
                    if field in _KEPT:
                        setattr(self.position, field, kept)
        self.timers.load(iter(timers))

    @property
    def is_new(self) -> bool:
        """Whether nothing was kept of the shard."""
        return not self._written_position

    def hold(self, name: str, packed: bytes) -> None:
        """Keeps what has come until it is due."""
        self.waiting[name] = packed
        self._state.put(name, packed)

    def let_go(self, name: str) -> None:
        """Forgets what was processed."""
        del self.waiting[name]
        self._state.remove(name)

    def flush(self) -> None:
        """Writes rows, timers and position that changed; makes rows that were put to be made later."""
        self._make_rows()
        dirty, timers = self._changes.dirty, self.timers.dirty
        for operator, key, table, row in dirty:
            value = made(self._rows.get((operator, key, table), {}), row)
            name = named("row", operator, key, table, row)
            if value is None:
                self._state.remove(name)
            else:
                self._state.put(name, value)
        for timer in timers:
            times = self.timers.get(timer)
            name = named("timer", *timer)
            if times is None:
                self._state.remove(name)
            else:
                self._state.put(name, _TIMES.pack(*times))
        dirty.clear()
        timers.clear()
        position = json.dumps({field: getattr(self.position, field) for field in _KEPT}).encode()
        if position != self._written_position:
            self._state.put(_POSITION, position)
            self._written_position = position
