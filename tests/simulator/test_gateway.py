"""What agents that send seldom have sent within a moment comes to the bus as one message, and says the same."""

from __future__ import annotations

from whichrank.evaluation.simulate.judge import encoded
from whichrank.simulator.gateway import Gateway
from whichrank.simulator.sent import SentMessage
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName


def sent(at_s: float, node: str, *ranks: int, job: str = "a") -> SentMessage:
    events = tuple(
        Event(
            name=EventName.RANK_STARTED,
            identity=Identity(cluster="c", job=job, attempt="1", node=node, rank=rank),
            time_ns=1,
            mono_ns=1,
            attributes={"pid": 4000 + rank},
        )
        for rank in ranks
    )
    return SentMessage(at_s=at_s, topic=TOPIC_BLOCKS, key=job, node=node, payloads=events)


def test_without_a_time_to_hold_everything_goes_on_as_it_is() -> None:
    messages = [sent(0.1, "node-00000", 0), sent(0.2, "node-00001", 8)]
    assert Gateway(0.0).through(messages, 0.5) == messages


def test_what_comes_together_goes_on_together_and_keeps_whose_it_is() -> None:
    messages = [
        sent(60.1, "node-00000", 0, 1),
        SentMessage(at_s=60.4, topic=TOPIC_METRICS, key="node-00001", node="node-00001", value=b"metrics"),
        sent(60.5, "node-00001", 8),
        sent(60.6, "node-00000", 3, job="b"),
        sent(61.2, "node-00000", 2),
    ]
    out = Gateway(1.0).through(messages, 120.0)
    assert [(message.at_s, message.key, len(message.payloads)) for message in out] == [
        (60.4, "node-00001", 0), (61.0, "a", 3), (61.0, "b", 1), (62.0, "a", 1)
    ]  # fmt: skip
    (value,) = encoded(out[1])
    told = decode_logs(TOPIC_BLOCKS, value)
    assert [(event.identity.node, event.identity.rank) for event in told if isinstance(event, Event)] == [
        ("node-00000", 0), ("node-00000", 1), ("node-00001", 8)
    ]  # fmt: skip


def test_nothing_comes_before_it_was_sent_nor_after_its_window() -> None:
    (out,) = Gateway(10.0).through([sent(55.0, "node-00000", 0), sent(59.9999, "node-00001", 8)], 60.0)
    assert 59.9999 <= out.at_s < 60.0
