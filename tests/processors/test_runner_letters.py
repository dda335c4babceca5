"""What is kept of a record that cannot be read."""

from __future__ import annotations

import json

import pytest

from whichrank.processors.runner_letters import LETTER_BYTES, dead_letter
from whichrank.telemetry.records import Broken
from whichrank.transport.bus import Message
from whichrank.transport.kafka_settings import KafkaSettings

CAME = Message(topic="otlp_logs", key="k", value=b"", position=70, stamp_ns=9, headers={}, place=(3, 41))


@pytest.mark.parametrize("size", [0, 10, LETTER_BYTES])
def test_what_fits_is_kept_whole(size: int) -> None:
    kept, headers = dead_letter(CAME, Broken(topic="otlp_logs", reason="why", value=b"x" * size))
    assert len(kept.value) == size
    assert json.loads(headers) == {
        "whichrank.dlq.reason": "why",
        "whichrank.dlq.topic": "otlp_logs",
        "whichrank.dlq.partition": "3",
        "whichrank.dlq.offset": "41",
        "whichrank.dlq.stamp_ns": "9",
    }


def test_of_what_is_larger_than_any_message_of_ours_the_beginning_is_kept_and_its_size() -> None:
    whole = b"begin" + b"x" * 10_000_000
    kept, headers = dead_letter(CAME, Broken(topic="otlp_logs", reason="why", value=whole))
    assert kept.value == whole[:LETTER_BYTES]
    assert json.loads(headers)["whichrank.dlq.bytes"] == str(len(whole))
    room_for_headers = 10_000
    assert LETTER_BYTES + room_for_headers < KafkaSettings(brokers="b:1").max_message_bytes
