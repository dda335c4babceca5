"""A message of the bus as payloads: logs and blocks as they are, metrics as far as a rule asks for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..telemetry.otlp import decode_logs
from ..telemetry.otlp_metrics import decode_metrics
from ..telemetry.records import Payload
from ..telemetry.topics import TOPIC_METRICS


def decode_message(topic: str, value: bytes, is_wanted: Callable[[str], bool]) -> Sequence[Payload]:
    """Copies for people are left out: the operators have what they were copied from. Never raises."""
    if topic == TOPIC_METRICS:
        return decode_metrics(topic, value, is_wanted)
    return decode_logs(topic, value, with_copies=False)
