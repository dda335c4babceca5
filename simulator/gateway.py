"""A collector that the agents' messages pass on their way to the bus, where agents send seldom: it makes one of many.

As a stock OpenTelemetry Collector does, it holds records for a moment and sends on what came meanwhile as one message,
each record with the resource that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor

from .sent import SentMessage


class Gateway:
    def __init__(self, holds_s: float) -> None:
        """holds_s: messages of one topic and key that come within such a time go on together; 0: each by itself, at
        once.
        """
        self._holds_s = holds_s

    def through(self, arrived: Sequence[SentMessage], until_s: float) -> list[SentMessage]:
        """What the collector sends on of a window's messages by the window's end ``until_s``, in order of time.

        Messages already encoded pass as they are.
        """
        if not self._holds_s:
            return list(arrived)
        together: dict[tuple[int, str, str], list[SentMessage]] = {}
        out: list[SentMessage] = []
        for message in arrived:
            if message.payloads:
                slot = floor(message.at_s / self._holds_s)
                together.setdefault((slot, message.topic, message.key), []).append(message)
            else:
                out.append(message)  # encoded, and of its node
        for (slot, _, _), held in together.items():
            at_s = max(min((slot + 1) * self._holds_s, until_s - 1e-3), held[-1].at_s)
            payloads = tuple(payload for message in held for payload in message.payloads)
            out.append(replace(held[0], at_s=at_s, node="", payloads=payloads))
        return sorted(out, key=lambda message: message.at_s)
