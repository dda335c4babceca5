"""How much each owner's jobs may send: so that nobody's flood takes the way to Kafka, or the spool, from the others.

A bucket of bytes for each owner, which fills up steadily. What is worth least is refused first, while there is still
room for what tells of a rank's end. Refusals are the sender's to count: they raise. May be used by several threads.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..base.priority import Priority
from ..privacy.redaction_filter import PublishRanked

#: Eight ranks with 200 collectives a second each send a tenth of it.
BYTES_PER_S, BURST_BYTES = 1 << 20, 48 << 20
#: While messages wait, because Kafka is away or slow, shares are so much smaller: they are of the spool then.
_WAITING, _LESS = 2000, 8
#: Whether messages wait is asked this often at most: all counters of the agent are gathered for it.
_ASKED_S = 0.5
#: The part of the burst that has to be left for a message of each kind; the others may take all of it.
_RESERVED = {Priority.COPIES: 0.5, Priority.COLLECTIVES: 0.3, Priority.PROGRESS: 0.1}


class ShareUsedUp(OSError):
    """The owner has sent more than his share; the message is not taken."""


@dataclass(slots=True)
class _Bucket:
    left_bytes: float
    filled_s: float


class OwnerShares:
    def __init__(
        self,
        publish: PublishRanked,
        health: Callable[[], Mapping[str, int]],
        clock_s: Callable[[], float] = time.monotonic,
        publish_of: Callable[[int], PublishRanked] | None = None,
    ) -> None:
        """health: says how many messages wait (``kafka.unsent``). publish_of: a way that knows the owner (uid)."""
        self._publish_of = publish_of or (lambda uid: publish)
        self._health = health
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._buckets: dict[int, _Bucket] = {}
        self._rate, self._asked_s = float(BYTES_PER_S), -math.inf

    def of(self, uid: int) -> PublishRanked:
        """Publishes for one owner. Raises ShareUsedUp."""
        publish_owned = self._publish_of(uid)

        def publish(topic: str, key: str, value: bytes, priority: Priority) -> None:
            if not self._takes(uid, len(value), priority):
                raise ShareUsedUp(errno.EDQUOT, f"user {uid} sends more than {BYTES_PER_S >> 20} MB/s from this node")
            publish_owned(topic, key, value, priority)

        return publish

    def _takes(self, uid: int, size: int, priority: Priority) -> bool:
        with self._lock:
            now_s = self._clock_s()
            if now_s - self._asked_s >= _ASKED_S:
                self._asked_s = now_s
                self._rate = BYTES_PER_S / (_LESS if self._health().get("kafka.unsent", 0) > _WAITING else 1)
            bucket = self._buckets.setdefault(uid, _Bucket(BURST_BYTES, now_s))
            bucket.left_bytes = min(bucket.left_bytes + (now_s - bucket.filled_s) * self._rate, BURST_BYTES)
            bucket.filled_s = now_s
            if bucket.left_bytes - size < _RESERVED.get(priority, 0.0) * BURST_BYTES:
                return False
            bucket.left_bytes -= size
            return True
