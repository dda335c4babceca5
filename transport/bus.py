"""The bus: append-only topics with arrival stamps that belong to the bus.

Two implementations: the embedded log (one file, this machine) and Kafka (later). One contract suite tests both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..telemetry.topics import TOPIC_BLOCKS as TOPIC_BLOCKS
from ..telemetry.topics import TOPIC_CLOCK as TOPIC_CLOCK
from ..telemetry.topics import TOPIC_DLQ as TOPIC_DLQ
from ..telemetry.topics import TOPIC_FINDINGS as TOPIC_FINDINGS
from ..telemetry.topics import TOPIC_INCIDENTS as TOPIC_INCIDENTS
from ..telemetry.topics import TOPIC_LOGS as TOPIC_LOGS
from ..telemetry.topics import TOPIC_REQUESTS as TOPIC_REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One record on the bus. ``position`` orders messages of this bus; ``stamp_ns`` is the bus's arrival stamp."""

    topic: str
    key: str
    value: bytes
    position: int
    stamp_ns: int
    headers: Mapping[str, bytes] = field(default_factory=dict)


class Bus(Protocol):
    @property
    def identity(self) -> str:
        """Tells this log from any other; kept beside a reader's position."""
        ...

    @property
    def last_position(self) -> int:
        """Position of the newest message, 0 if there is none."""
        ...

    def append(self, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> int:
        """Append and return the position. Never blocks for long; raises OSError when storage refuses."""
        ...

    def read(self, after: int, limit: int) -> Sequence[Message]:
        """Messages with position > ``after``, in order, at most ``limit``; an empty sequence if there are none."""
        ...

    def now_ns(self) -> int:
        """The stamp the next append would get."""
        ...

    def close(self) -> None: ...
