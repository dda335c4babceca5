"""KafkaLog on a real broker: the contract of every bus, and what only Kafka has: cuts, fencing, standbys, retention."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.stack.kafka_room import ANSWER_S, KafkaRoom
from tests.stack.parts.kafka import Kafka
from tests.transport.bus_contract import BusContract, content, nothing_follows, read_on
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_CLOCK, TOPIC_INCIDENTS, TOPIC_LOGS
from whichrank.transport.bus import HEADER_PUBLISHED, Bus, Message, Output
from whichrank.transport.kafka import CLIENTS
from whichrank.transport.kafka_client import Fenced, KafkaTrouble, Offsets
from whichrank.transport.kafka_log import KafkaLog
from whichrank.transport.kafka_python_client import METADATA_AGE_S


@pytest.fixture(params=CLIENTS)
def room(request: pytest.FixtureRequest, kafka: Kafka, topic_prefix: str) -> Iterator[KafkaRoom]:
    made = KafkaRoom(kafka, topic_prefix, request.param)
    yield made
    made.close()


@pytest.fixture
def bus(room: KafkaRoom) -> Iterator[Bus]:
    opened = room.open("bus")
    yield opened
    opened.close()


def start_of(bus: Bus) -> int:
    assert isinstance(bus, KafkaLog)
    return bus.start_position()


class TestKafkaLog(BusContract):
    """The suite itself."""

    def start(self, bus: Bus) -> int:
        return start_of(bus)


def test_a_standby_sees_the_order_that_the_leader_saw_while_it_grows(room: KafkaRoom, bus: Bus) -> None:
    standby = room.follow("bus")
    led, followed = [], []
    after_led, after_followed = start_of(bus), standby.start_position()
    for number in range(300):
        room.append(bus, TOPIC_BLOCKS if number % 2 else TOPIC_LOGS, f"k{number % 9}", b"%d" % number)
        if number % 10 == 0:
            for message in bus.read(after_led, 20):
                led.append(message)
                after_led = message.position
            for message in standby.read(after_followed, 20):
                followed.append(message)
                after_followed = message.position
    led += read_on(bus, after_led, 300 - len(led))
    followed += read_on(standby, after_followed, 300 - len(followed))
    assert len(led) == 300
    assert content(followed) == content(led)
    assert [m.position for m in followed] == [m.position for m in led]
    standby.close()


def test_a_reader_without_a_state_begins_at_the_first_record(room: KafkaRoom, bus: Bus) -> None:
    room.append(bus, TOPIC_BLOCKS, "k", b"before")
    read_on(bus, start_of(bus), 1)
    late = room.follow("bus")
    assert [m.value for m in read_on(late, late.start_position(), 1)] == [b"before"]
    late.close()


def test_what_is_published_is_seen_whole_with_its_mark_or_not_at_all(room: KafkaRoom, bus: Bus) -> None:
    room.append(bus, TOPIC_BLOCKS, "k", b"1")
    after = read_on(bus, start_of(bus), 1)[-1].position
    outputs = [Output(topic=TOPIC_INCIDENTS, key=f"i{n}", value=b"%d" % n, headers={"h": b"x"}) for n in range(3)]
    bus.publish(outputs, after)
    assert room.consume("bus", TOPIC_INCIDENTS) == [b"0", b"1", b"2"]
    (mark,) = read_on(bus, after, 1)
    assert mark.topic == TOPIC_CLOCK
    assert mark.headers[HEADER_PUBLISHED] == str(after).encode()


@pytest.mark.parametrize("refused_by", ["client", "broker"])
def test_an_output_that_no_broker_takes_holds_up_no_other(room: KafkaRoom, refused_by: str) -> None:
    room.largest_bytes = {TOPIC_INCIDENTS: 100_000}
    said: list[str] = []
    bus = room.follow("bus", report=said.append)
    bus.claim()
    size = 2_000_000 if refused_by == "client" else 300_000
    large = Output(topic=TOPIC_INCIDENTS, key="large", value=os.urandom(size))
    outputs = [Output(topic=TOPIC_INCIDENTS, key="before", value=b"before"), large]
    outputs.append(Output(topic=TOPIC_INCIDENTS, key="after", value=b"after"))
    until = time.monotonic() + ANSWER_S
    while True:  # as the service does
        try:
            bus.publish(outputs, 1)
            break
        except KafkaTrouble:
            assert time.monotonic() < until
    assert room.consume("bus", TOPIC_INCIDENTS) == [b"before", b"after"]
    assert bus.too_large == 1
    (line,) = said
    assert f"{TOPIC_INCIDENTS}: a message of {size} bytes (key 'large') is left out" in line
    bus.publish([Output(topic=TOPIC_INCIDENTS, key="next", value=b"next")], 2)
    assert room.consume("bus", TOPIC_INCIDENTS) == [b"before", b"after", b"next"]
    bus.close()


def test_the_older_instance_is_fenced_and_leaves_no_trace(room: KafkaRoom, bus: Bus) -> None:
    bus.publish([Output(topic=TOPIC_INCIDENTS, key="i", value=b"of the first")], 1)
    second = room.open("bus")
    with pytest.raises(Fenced, match="taken over"):
        bus.publish([Output(topic=TOPIC_INCIDENTS, key="i", value=b"too late")], 2)
    assert isinstance(bus, KafkaLog)
    assert not bus.leads
    second.publish([Output(topic=TOPIC_INCIDENTS, key="i", value=b"of the second")], 3)
    assert room.consume("bus", TOPIC_INCIDENTS) == [b"of the first", b"of the second"]
    second.close()


def test_a_leader_that_was_away_hears_that_another_one_leads(room: KafkaRoom, bus: Bus) -> None:
    """Without having anything to publish itself."""
    assert isinstance(bus, KafkaLog)
    room.append(bus, TOPIC_BLOCKS, "k", b"1")
    after = read_on(bus, start_of(bus), 1)[-1].position
    bus.publish([], after)
    (mark,) = read_on(bus, after, 1)
    assert (bus.leads, bus.is_overtaken) == (True, False), "its own mark"
    second = room.open("bus")
    assert isinstance(second, KafkaLog)
    second.publish([Output(topic=TOPIC_INCIDENTS, key="i", value=b"of the second")], after)
    read_on(bus, mark.position, 1)
    assert (bus.leads, bus.is_overtaken) == (False, True)
    read_on(second, start_of(second), 3)
    assert (second.leads, second.is_overtaken) == (True, False), "marks from before it took over"
    second.close()


def test_instances_hear_one_another(room: KafkaRoom, bus: Bus) -> None:
    standby = room.follow("bus", instance="the standby")
    assert standby.silence_s() == float("inf")
    room.append(bus, TOPIC_BLOCKS, "k", b"1")
    read_on(bus, start_of(bus), 1)
    read_on(standby, standby.start_position(), 1)
    assert standby.silence_s() < ANSWER_S
    assert standby.other.startswith("instance")
    assert isinstance(bus, KafkaLog)
    assert bus.silence_s() == float("inf"), "its own cuts are nobody else's"
    standby.close()


def test_a_partition_that_does_not_answer_is_named_and_holds_nobody_up(
    room: KafkaRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fetches are never sent, as towards a broker that is not there."""
    monkeypatch.setattr("whichrank.transport.partition_reading.DEAF_S", 1.0)
    said: list[str] = []
    bus = room.follow("deaf", report=said.append)
    bus.claim()
    deaf = (TOPIC_LOGS, 0)
    consumer = bus._consumer  # noqa: SLF001  (a partition whose leader is gone cannot be had with one broker)
    assert consumer is not None
    assign = consumer.assign

    def assign_and_pause(offsets: Offsets) -> None:
        assign(offsets)
        if deaf in offsets:
            consumer.pause([deaf])

    monkeypatch.setattr(consumer, "assign", assign_and_pause)
    for number in range(20):
        room.send("deaf", TOPIC_LOGS, f"k{number}", b"logs")
    room.send("deaf", TOPIC_BLOCKS, "k", b"block")
    messages: list[Message] = []
    after = bus.start_position()
    until = time.monotonic() + ANSWER_S
    while not any(message.value == b"block" for message in messages):
        assert time.monotonic() < until
        for message in bus.read(after, 20):
            messages.append(message)
            after = message.position
    assert said == [f"{TOPIC_LOGS}/0: nothing comes for 1 s; time goes on without it"]
    assert not bus.caught_up()
    consumer.resume([deaf])
    while sum(message.value == b"logs" for message in messages) < 20:
        assert time.monotonic() < until + ANSWER_S
        for message in bus.read(after, 20):
            messages.append(message)
            after = message.position
    assert said[1:] == ["all partitions are read again"]
    bus.close()


def test_a_partition_added_later_is_read(room: KafkaRoom, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whichrank.transport.kafka_log.PARTITIONS_PERIOD_S", 0.0)
    room.append(bus, TOPIC_BLOCKS, "k", b"1")
    after = read_on(bus, start_of(bus), 1)[-1].position
    assert isinstance(bus, KafkaLog)
    client = room.client("bus")
    client.admin().add_partitions(TOPIC_BLOCKS, 8)
    producer = client.producer()
    for number in range(32):
        producer.send(TOPIC_BLOCKS, b"key-%d" % number, b"%d" % number)
    producer.flush(ANSWER_S)
    messages = read_on(bus, after, 32, within_s=METADATA_AGE_S + ANSWER_S)
    assert sorted(int(m.value) for m in messages) == list(range(32))
    assert {m.place[0] for m in messages if m.place} > set(range(4)), "some lie in the new partitions"
    producer.close(1.0)


def test_nothing_is_new_on_a_quiet_bus(bus: Bus) -> None:
    assert nothing_follows(bus, start_of(bus))
    assert isinstance(bus, KafkaLog)
    assert bus.caught_up()
    assert bus.lag_s() == 0.0
