"""What becomes of a record that cannot be read: the message on the dead-letter topic, with where it came from. Pure."""

from __future__ import annotations

import json
from dataclasses import replace

from ..telemetry import attributes as names
from ..telemetry.records import Broken
from ..transport.bus import Message

#: Of a letter so much is kept: as large as a record of ours may be, so that those are kept whole. What others send may
#: be larger than any message that brokers take from us.
LETTER_BYTES = 900_000


def dead_letter(message: Message, broken: Broken, traceback: str = "") -> tuple[Broken, str]:
    """What is kept of a record that cannot be read, cut to LETTER_BYTES, and its headers as JSON of texts.

    message: in which the record came. traceback: of the operator that failed on it.
    """
    partition, offset = message.place or (0, message.position)
    headers = {
        names.DLQ_REASON: broken.reason,
        names.DLQ_TOPIC: message.topic,
        names.DLQ_PARTITION: str(partition),
        names.DLQ_OFFSET: str(offset),
        names.DLQ_STAMP_NS: str(message.stamp_ns),
    }
    if traceback:
        headers[names.DLQ_TRACEBACK] = traceback
    if len(broken.value) > LETTER_BYTES:
        headers[names.DLQ_BYTES] = str(len(broken.value))
        broken = replace(broken, value=broken.value[:LETTER_BYTES])
    return broken, json.dumps(headers)
