"""What agents send, on its way to the bus: what the world makes, the pipe delays and a gateway gathers."""

from __future__ import annotations

from dataclasses import dataclass

from ..telemetry.packed_flush import Packing, TaughtList
from ..telemetry.records import Block, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message on its way to the bus: arrival, topic, key, and what is in it (or its bytes), its blocks packed so.

    packing, lists: as ``encode_payloads`` has them.
    """

    at_s: float
    topic: str
    key: str
    node: str
    payloads: tuple[Block | Event, ...] = ()
    value: bytes = b""
    packing: Packing = Packing.NONE
    lists: frozenset[TaughtList] = frozenset()
