"""For consumers of a runner's outputs: each incident revision once, although a crash may deliver it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from ..telemetry.otlp import encode_payloads
from ..telemetry.records import Event, Finding, Incident, Record
from ..telemetry.vocabulary import EventName

#: Outputs remembered. Repeats come right after a restart, so that forgetting the oldest costs nothing.
MAX_REMEMBERED = 100_000

OutputKey = tuple[str, str | bytes, int]


def output_key(record: Record) -> OutputKey | None:
    """A key that is equal for two deliveries of the same output; None for what may be repeated."""
    payload = record.payload
    if isinstance(payload, Incident):
        return "incident", str(payload.document.get("id", "")), int(payload.document.get("revision") or 0)
    if isinstance(payload, Event) and payload.name is EventName.EVIDENCE_REQUEST:
        return "request", str(payload.attributes.get("id", "")), 0
    if isinstance(payload, Finding):
        return "finding", hashlib.blake2b(encode_payloads([payload]), digest_size=16).digest(), record.stamp_ns
    return None


class OncePerRevision:
    """Wraps an ``on_output``: passes each incident revision, finding and request on once.

    seen: (id, revision) of incidents that an earlier life already handed out, as read back from its incidents.jsonl.
    An output counts as seen only after ``deliver`` returned, so that one that failed is tried again.
    """

    def __init__(self, deliver: Callable[[Record], None], seen: Iterable[tuple[str, int]] = ()) -> None:
        self._deliver = deliver
        self._seen: dict[OutputKey, None] = {("incident", id_, revision): None for id_, revision in seen}
        #: Repeats that were held back.
        self.repeats = 0

    def __call__(self, record: Record) -> None:
        key = output_key(record)
        if key is not None and key in self._seen:
            self.repeats += 1
            return
        self._deliver(record)
        if key is not None:
            self._seen[key] = None
            if len(self._seen) > MAX_REMEMBERED:
                del self._seen[next(iter(self._seen))]
