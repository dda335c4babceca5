"""Messages that nobody should send, between honest ones: no bytes, half messages, other topics' types, huge ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tests.stack.flink.fed_jobs import Sent
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Event, Finding, Identity, Incident
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS
from whichrank.telemetry.vocabulary import EventName

EVERY = 40


def poisoned(messages: Sequence[Sent], partitions: Mapping[str, int], chance: random.Random) -> list[Sent]:
    """The messages, and one of these after about every ``EVERY``th."""
    found: list[Sent] = []
    for message in messages:
        found.append(message)
        if chance.random() < 1 / EVERY:
            topic = chance.choice((TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS))
            partition = chance.randrange(partitions[topic])
            found.append(Sent(message.at_ms, topic, partition, b"x", _bytes(message.value, chance)))
    # In the order in which the engines read: of one stamp by topic and partition, and as they were sent.
    return sorted(found, key=lambda each: (each.at_ms, each.topic, each.partition))


def _bytes(honest: bytes, chance: random.Random) -> bytes:
    strange = Identity(cluster="c" * 300, job="\x1fjob\x1f", node="n\x00", rank=1 << 40)
    sorts = (
        lambda: chance.randbytes(chance.randrange(1, 2000)),
        lambda: honest[: chance.randrange(1, max(2, len(honest)))],
        lambda: chance.randbytes(900_000),
        lambda: encode_payloads([Incident(document={"id": "forged", "revision": 1, "cluster": "c"})]),
        lambda: encode_payloads([Finding(identity=strange, key="forged", cleared=False, time_ns=1, body={"x": 1})]),
        lambda: encode_payloads([Event(name=EventName.RANK_EXIT, identity=strange, time_ns=-5)]),
        lambda: encode_payloads([Event(name=EventName.TICK, identity=Identity(), time_ns=1)]),
        lambda: b"\x0a\xff\xff\xff\xff\x0f" + honest,
    )
    return chance.choice(sorts)()
