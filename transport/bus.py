"""The bus: append-only topics with arrival stamps that belong to the bus.

Two implementations: the embedded log (files on this machine) and Kafka. One contract suite tests both.
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

#: Header of a mark in the clock topic: every output of what was read up to that position is published.
HEADER_PUBLISHED = "whichrank.published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One record on the bus.

    position: orders messages of this bus. Where the order comes in blocks (Kafka's cuts), those of one share its end's.
    stamp_ns: the bus's arrival stamp.
    place: partition and offset, where the bus has them.
    """

    topic: str
    key: str
    value: bytes
    position: int
    stamp_ns: int
    headers: Mapping[str, bytes] = field(default_factory=dict)
    place: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a runner publishes."""

    topic: str
    key: str
    value: bytes
    headers: Mapping[str, bytes] | None = None


class Bus(Protocol):
    #: Whether ``read`` gives back what ``publish`` appended.
    reads_outputs: bool

    @property
    def identity(self) -> str:
        """Tells this log from any other; kept beside a reader's position, which holds for this log only."""
        ...

    @property
    def last_position(self) -> int:
        """Position of the newest message that is known of; 0 or less if there is none."""
        ...

    def append(self, topic: str, key: str, value: bytes, headers: Mapping[str, bytes] | None = None) -> int | None:
        """Appends a message. Returns its position where that is known at once, else None.

        Raises OSError when storage refuses.
        """
        ...

    def read(self, after: int, limit: int) -> Sequence[Message]:
        """Messages with position > ``after``, in order, about ``limit`` of them; none of a position is left out.

        An empty sequence if there are none. Raises OSError while the bus cannot be reached.
        """
        ...

    def publish(self, outputs: Sequence[Output], until: int) -> None:
        """Appends what was concluded from everything up to position ``until``. Raises OSError if it was not taken."""
        ...

    def has_given(self, position: int) -> bool:
        """Whether ``read`` has given all up to this position, although no message lies there.

        False if it cannot tell.
        """
        ...

    def caught_up(self) -> bool:
        """Whether everything that is known to be there was read: only then is silence news."""
        ...

    def now_ns(self) -> int:
        """The stamp (Unix ns) that the next append would get."""
        ...

    def close(self) -> None:
        """Let go of files and connections; what was appended stays."""
