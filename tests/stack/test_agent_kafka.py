"""From the agent to a real broker that comes late, dies and comes back; with an oracle: every message has a number."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess
from tests.commands.incidents.documents import ID, document
from tests.long_runs import LONG
from tests.stack.numbered_agent import KEYS, message, number_of
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from whichrank.agents.base.priority import Priority
from whichrank.agents.publish.kafka_publisher import KafkaPublisher
from whichrank.telemetry.evidence_pieces import decode_evidence
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Event, Identity, Incident
from whichrank.telemetry.topics import (
    TOPIC_BLOCKS,
    TOPIC_INCIDENTS,
    TOPIC_LOGS,
    TOPIC_METRICS,
    TOPIC_REQUESTS,
    TOPIC_SPANS,
)
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka import CLIENTS, make_client
from whichrank.transport.kafka_client import TopicFacts

PATIENCE_S = 120.0
SCRIPT = Path(__file__).with_name("numbered_agent.py")
TOPICS = (TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_SPANS, TOPIC_METRICS, TOPIC_REQUESTS, TOPIC_INCIDENTS)


def make_topics(kafka: Kafka) -> None:
    admin = make_client(kafka.settings()).admin()
    for topic in TOPICS:
        admin.create(TopicFacts(name=topic, partitions=3, replication=1, configuration={}))
    admin.close()


class Received:
    """All that lies in the topics, read on with every call."""

    def __init__(self, kafka: Kafka, topics: tuple[str, ...] = (TOPIC_BLOCKS, TOPIC_LOGS)) -> None:
        self._consumer = make_client(kafka.settings()).consumer(committed_only=True)
        partitions = [(topic, number) for topic in topics for number in self._consumer.partitions(topic)]
        self._consumer.assign(dict.fromkeys(partitions, 0))
        self.messages: list[tuple[str, str, bytes]] = []

    def read(self) -> None:
        self.messages += [(m.topic, m.key.decode(), m.value) for m in self._consumer.poll(0.3)]

    def numbers(self) -> list[int]:
        self.read()
        return [number_of(value) for _, _, value in self.messages]

    def check_order(self) -> None:
        """Per topic and key, by the first time each arrived; and each as it was sent."""
        for topic, key, value in self.messages:
            assert message(number_of(value))[:3] == (topic, key, value)
        for topic in (TOPIC_BLOCKS, TOPIC_LOGS):
            for job in range(KEYS):
                numbers = [number_of(v) for t, k, v in self.messages if (t, k) == (topic, f"job-{job}")]
                first = list(dict.fromkeys(numbers))
                assert first == sorted(first)

    def close(self) -> None:
        self._consumer.close()


class Publishing:
    """A publisher of this process on a broker."""

    def __init__(self, kafka: Kafka, folder: Path, client: str, delivery_timeout_s: float = 3600.0) -> None:
        settings = replace(kafka.settings(client=client), delivery_timeout_s=delivery_timeout_s)
        self.said: list[str] = []
        self.publisher = KafkaPublisher(
            make_client(settings).producer, spool_directory=folder, spool_bytes=256 << 20, report=self.said.append
        )
        self.publisher.start()
        self.published = 0

    def publish(self, count: int, pause_s: float = 0.0) -> None:
        for _ in range(count):
            self.publisher.publish(*message(self.published))
            self.published += 1
            time.sleep(pause_s)

    def wait_for_the_disk(self, records: int) -> None:
        """Until so many lie there for sure: what is still in memory is counted a moment late."""
        eventually(lambda: self.publisher.stats.get("spool.written", 0) >= records, what="room", timeout_s=PATIENCE_S)

    def sent(self) -> int:
        return self.publisher.stats["kafka.sent"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_broker_killed_in_mid_stream_costs_nothing_and_repeats_nothing(
    fresh_kafka: Callable[..., Kafka], tmp_path: Path, client: str
) -> None:
    kafka = fresh_kafka()
    make_topics(kafka)
    out = Publishing(kafka, tmp_path / "spool", client)
    out.publish(500)
    eventually(lambda: out.sent() > 0, what="something sent", timeout_s=PATIENCE_S)
    feeding = threading.Thread(target=out.publish, args=(3000, 0.002))
    feeding.start()
    time.sleep(random.uniform(0.2, 1.5))
    kafka.kill()
    eventually(lambda: out.publisher.stats["spool.written"] > 0, what="something on disk", timeout_s=PATIENCE_S)
    feeding.join()
    kafka.start()
    eventually(lambda: out.sent() == 3500, what="all sent", timeout_s=PATIENCE_S)
    received = Received(kafka)
    eventually(lambda: len(received.numbers()) >= 3500, what="all there", timeout_s=PATIENCE_S)
    received.read()
    assert sorted(received.numbers()) == list(range(3500))  # each once
    received.check_order()
    assert not [name for name in out.publisher.stats if ".dropped." in name]
    out.publisher.close(5.0)
    assert out.publisher.stats["spool.bytes"] == 0
    received.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_kafka_may_come_after_the_agent(fresh_kafka: Callable[..., Kafka], tmp_path: Path, client: str) -> None:
    kafka = fresh_kafka(start=False)
    out = Publishing(kafka, tmp_path / "spool", client)
    out.publish(1000)
    eventually(lambda: out.publisher.stats.get("spool.records") == 1000, what="all on disk", timeout_s=PATIENCE_S)
    eventually(lambda: bool(out.said), what="a word about it", timeout_s=PATIENCE_S)
    kafka.start()
    time.sleep(1.0)  # a broker without our topics, for a moment
    make_topics(kafka)
    out.publish(100)
    eventually(lambda: out.sent() == 1100, what="all sent", timeout_s=PATIENCE_S)
    received = Received(kafka)
    eventually(lambda: len(received.numbers()) >= 1100, what="all there", timeout_s=PATIENCE_S)
    assert sorted(received.numbers()) == list(range(1100))
    received.check_order()
    assert all("\n" not in line for line in out.said)
    assert 1 <= len(out.said) <= 4  # does not answer; then: no leader or topic, once for each topic
    out.publisher.close(5.0)
    received.close()


@pytest.mark.parametrize("client", [pytest.param("kafka-python", marks=LONG), "confluent-kafka"])
def test_what_a_client_gives_up_is_sent_again_in_order(
    fresh_kafka: Callable[..., Kafka], tmp_path: Path, client: str
) -> None:
    """The client's patience is short here; with the agent's own it never ends first."""
    kafka = fresh_kafka()
    make_topics(kafka)
    out = Publishing(kafka, tmp_path / "spool", client, delivery_timeout_s=12.0)
    out.publish(200)
    eventually(lambda: out.sent() == 200, what="a good beginning", timeout_s=PATIENCE_S)
    kafka.kill()
    out.publish(1000)
    eventually(lambda: out.publisher.stats["kafka.given_back"] > 0, what="a failure", timeout_s=PATIENCE_S)
    kafka.start()
    out.publish(200)
    eventually(lambda: out.sent() == 1400, what="all sent", timeout_s=PATIENCE_S)
    received = Received(kafka)
    eventually(lambda: len(set(received.numbers())) == 1400, what="all there", timeout_s=PATIENCE_S)
    print(
        f"{client}: {out.publisher.stats['kafka.given_back']} given back, {out.publisher.stats['kafka.sent_late']} late"
    )
    if not out.publisher.stats["kafka.sent_late"]:
        received.check_order()
    assert not [name for name in out.publisher.stats if ".dropped." in name]
    out.publisher.close(5.0)
    received.close()


def test_an_hours_records_fit_the_spool_and_catch_up_ten_times_as_fast(
    fresh_kafka: Callable[..., Kafka], tmp_path: Path
) -> None:
    """As 8 ranks of the reference load give: about 7 messages a second, 3 kB each (see ``benchmarks``)."""
    kafka = fresh_kafka(start=False)
    draw = random.Random(1)
    out = Publishing(kafka, tmp_path / "spool", "kafka-python")
    for number in range(25_000):
        topic, key, value, priority = message(number)
        out.publisher.publish(topic, key, value + b" " + draw.randbytes(2500), priority)
        if number % 500 == 499:
            out.wait_for_the_disk(number - 4000)
    eventually(lambda: out.publisher.stats.get("spool.records") == 25_000, what="all on disk", timeout_s=PATIENCE_S)
    size = out.publisher.stats["spool.bytes"]
    assert not [name for name in out.publisher.stats if ".dropped." in name]
    kafka.start()
    make_topics(kafka)
    eventually(lambda: out.sent() > 0, what="the first", timeout_s=PATIENCE_S)
    began, first = time.monotonic(), out.sent()
    eventually(lambda: out.sent() == 25_000, what="all sent", timeout_s=360.0)
    took_s = time.monotonic() - began
    print(f"an hour's records: {size >> 20} MiB in the spool, {25_000 - first} messages caught up in {took_s:.0f} s")
    assert took_s < 360.0
    eventually(lambda: out.publisher.stats["spool.bytes"] == 0, what="an empty spool", timeout_s=PATIENCE_S)
    out.publisher.close(5.0)


class NumberedAgent:
    """A publisher in a process of its own, to be killed."""

    def __init__(self, kafka: Kafka, folder: Path, *, limit: int, first: int, count: int, pause_s: float) -> None:
        words = [kafka.address, "", folder, limit, first, count, pause_s]
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.counts: dict[str, int] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # type: ignore[union-attr]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("COUNTS "):
                self.counts = json.loads(line.removeprefix("COUNTS "))

    def end(self, number: int) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        took_s = time.monotonic() - began
        self._reader.join(PATIENCE_S)
        return took_s


@pytest.fixture
def agents() -> Iterator[list[NumberedAgent]]:
    started: list[NumberedAgent] = []
    yield started
    for agent in started:
        agent.process.kill()
        agent.process.wait()


def drops_by_priority(counts: dict[str, int]) -> dict[Priority, int]:
    found = dict.fromkeys(Priority, 0)
    for name, count in counts.items():
        if name.startswith("kafka.dropped."):
            found[Priority[name.split(".")[2].upper()]] += count
    return found


def test_an_agent_killed_with_a_full_spool_loses_what_it_counted_and_its_last_second(
    fresh_kafka: Callable[..., Kafka], tmp_path: Path, agents: list[NumberedAgent]
) -> None:
    kafka = fresh_kafka(start=False)
    folder = tmp_path / "spool"
    agents.append(NumberedAgent(kafka, folder, limit=1_500_000, first=0, count=4000, pause_s=0.001))
    eventually(lambda: agents[0].counts.get("published") == 4000, what="all published", timeout_s=PATIENCE_S)
    eventually(lambda: agents[0].counts.get("spool.written") == 4000, what="all on disk once", timeout_s=PATIENCE_S)
    eventually(
        lambda: agents[0].counts["spool.records"] + sum(drops_by_priority(agents[0].counts).values()) == 4000,
        what="counters that are in step",
        timeout_s=PATIENCE_S,
    )
    counted = drops_by_priority(agents[0].counts)
    assert counted[Priority.COPIES] > 0
    assert counted[Priority.EVIDENCE] == counted[Priority.RANK_EVENTS] == 0
    agents[0].end(signal.SIGKILL)
    kafka.start()
    make_topics(kafka)
    agents.append(NumberedAgent(kafka, folder, limit=1_500_000, first=4000, count=100, pause_s=0.0))
    received = Received(kafka)
    again = agents[1]
    eventually(
        lambda: again.counts.get("published") == 100 and again.counts["kafka.unsent"] == 0 < again.counts["kafka.sent"],
        what="an empty spool",
        timeout_s=PATIENCE_S,
    )
    # Until it is connected the second may have had to drop some more; its counters go on where the first's stopped.
    expected = 4100 - sum(drops_by_priority(again.counts).values())
    eventually(lambda: len(set(received.numbers())) >= expected, what="the rest", timeout_s=PATIENCE_S)
    numbers = received.numbers()
    assert len(numbers) == len(set(numbers)) == expected
    for priority in Priority:
        of_it = [number for number in range(4100) if number % 5 == priority]
        there = [number for number in numbers if number % 5 == priority]
        assert len(there) + drops_by_priority(agents[1].counts)[priority] == len(of_it)
    received.check_order()
    assert agents[1].end(signal.SIGTERM) < 30
    received.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte, to be enlarged with ``grow``."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a file system of its own")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "whichrank-test", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def grow(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)


def test_a_full_disk_under_the_spool_costs_nothing_that_memory_can_hold(
    fresh_kafka: Callable[..., Kafka], small_disk: Path, agents: list[NumberedAgent]
) -> None:
    kafka = fresh_kafka(start=False)
    folder = small_disk / "spool"
    agents.append(NumberedAgent(kafka, folder, limit=32 << 20, first=0, count=4000, pause_s=0.001))
    agent = agents[0]
    eventually(lambda: agent.counts.get("published") == 4000, what="all published", timeout_s=PATIENCE_S)
    eventually(lambda: agent.counts["kafka.unsent"] == 4000, what="counters in step", timeout_s=PATIENCE_S)
    assert 0 < agent.counts["spool.records"] < 4000
    grow(small_disk)
    eventually(lambda: agent.counts["spool.records"] == 4000, what="all on the larger disk", timeout_s=PATIENCE_S)
    kafka.start()
    make_topics(kafka)
    received = Received(kafka)
    eventually(lambda: len(received.numbers()) >= 4000, what="all there", timeout_s=PATIENCE_S)
    assert sorted(received.numbers()) == list(range(4000))
    received.check_order()
    assert agent.counts["spool.damaged"] == 0
    agent.end(signal.SIGTERM)
    received.close()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=LONG) for seed in range(2, 5))])
def test_agents_killed_again_and_again_lose_at_most_a_second_each(
    fresh_kafka: Callable[..., Kafka], tmp_path: Path, agents: list[NumberedAgent], seed: int
) -> None:
    """The broker lives; what each agent had sent and not noted may come twice, in order."""
    draw = random.Random(seed)
    broker = fresh_kafka()
    make_topics(broker)
    pause_s, each = 0.005, 400
    for life in range(3):
        agents.append(
            NumberedAgent(broker, tmp_path / "spool", limit=8 << 20, first=life * each, count=each, pause_s=pause_s)
        )
        eventually(lambda: bool(agents[-1].counts), what="life", timeout_s=PATIENCE_S)
        time.sleep(draw.uniform(0.0, 1.5))
        agents[-1].end(signal.SIGKILL)
    published = {life * each + n for life in range(3) for n in range(agents[life].counts["published"])}
    agents.append(NumberedAgent(broker, tmp_path / "spool", limit=8 << 20, first=9000, count=1, pause_s=0.0))
    received = Received(broker)
    eventually(lambda: 9000 in received.numbers(), what="the last message", timeout_s=PATIENCE_S)
    eventually(lambda: agents[-1].counts.get("kafka.unsent") == 0, what="an empty spool", timeout_s=PATIENCE_S)
    missing = published - set(received.numbers())
    received.check_order()
    # Nobody waited for a disk here: what was lost had been taken within the last second before a kill.
    assert len(missing) <= 3 * 1.5 / pause_s
    received.close()


# --- the command itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(kafka: Kafka, *words: str) -> subprocess.Popen[str]:
        flags = ["--kafka", kafka.address, "--rings", str(tmp_path / "rings"), "--data", str(tmp_path / "data"), *words]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "whichrank.commands.main", "agent", *flags],
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "WHICHRANK_NODE_ID": "node-7"},
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[RankProcess]:
    (tmp_path / "rings" / "job").mkdir(parents=True, mode=0o700)
    rank = RankProcess(tmp_path / "rings" / "job", 0, 1, identity={"WHICHRANK_JOB_ID": "the-job"})
    yield rank
    rank.end()


def events_in(received: Received) -> list[Event]:
    received.read()
    return [
        payload
        for topic, _, value in received.messages
        if topic == TOPIC_BLOCKS
        for payload in decode_logs(topic, value)
        if isinstance(payload, Event)
    ]


def names_in(received: Received) -> list[EventName]:
    return [event.name for event in events_in(received)]


def test_the_command_outlives_kafkas_absence_and_its_own_death(
    fresh_kafka: Callable[..., Kafka], command: Callable[..., Any], rank: RankProcess, tmp_path: Path
) -> None:
    kafka = fresh_kafka(start=False)
    first = command(kafka)
    spool = tmp_path / "data" / "spool"
    eventually(lambda: bool(list(spool.glob(f"{TOPIC_BLOCKS}.*.spool"))), what="a spool", timeout_s=PATIENCE_S)
    first.kill()
    first.wait()
    rank.say("step 1.0")
    second = command(kafka)
    eventually(lambda: len(list(spool.glob(f"{TOPIC_BLOCKS}.1.*.spool"))) >= 2, what="its own", timeout_s=PATIENCE_S)
    second.terminate()
    began = time.monotonic()
    _, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0
    assert "of them in the spool" in said
    print(f"SIGTERM without Kafka: {time.monotonic() - began:.1f} s")
    kafka.start()
    make_topics(kafka)
    third = command(kafka)
    received = Received(kafka, (TOPIC_BLOCKS, TOPIC_LOGS))
    eventually(lambda: EventName.RANK_STARTED in names_in(received), what="the start", timeout_s=PATIENCE_S)
    rank.say("exit 3 1", answers=False)
    eventually(lambda: EventName.RANK_EXIT in names_in(received), what="the exit", timeout_s=PATIENCE_S)
    assert {key for _, key, _ in received.messages} == {"the-job", "node-7"}  # its collectors speak of the node
    (told,) = {
        (e.identity.node, e.identity.rank, e.attributes["exit_code"])
        for e in events_in(received)
        if e.name is EventName.RANK_EXIT
    }
    assert told == ("node-7", 0, 3)
    health = [event for event in events_in(received) if event.name is EventName.AGENT_HEALTH]
    assert any(event.attributes.get("spool.written", 0) for event in health)
    third.terminate()
    _, said = third.communicate(timeout=PATIENCE_S)
    assert "not taken" not in said.splitlines()[-1]
    received.close()


def test_a_person_asks_for_evidence_and_gets_it(
    fresh_kafka: Callable[..., Kafka], command: Callable[..., Any], tmp_path: Path
) -> None:
    kafka = fresh_kafka()
    make_topics(kafka)
    (tmp_path / "rings" / "job").mkdir(parents=True, mode=0o700)
    log = tmp_path / "rank.log"
    rank = RankProcess(tmp_path / "rings" / "job", 3, 4, identity={"WHICHRANK_JOB_ID": "the-job"}, log=str(log))
    try:
        rank.say("collectives 20")
        rank.say("log password=hunter2 and the last words")
        rank.say("stand")
        command(kafka)
        received = Received(kafka, (TOPIC_BLOCKS,))
        eventually(lambda: EventName.RANK_STARTED in names_in(received), what="the start", timeout_s=PATIENCE_S)
        received.close()

        def ask(action: str, *words: str) -> tuple[int, str]:
            flags = ["--kafka", kafka.address, "--action", action, "--out", str(tmp_path / "asked"), "--wait", "20"]
            asked = subprocess.run(
                [sys.executable, "-m", "whichrank.commands.main", "evidence", *words, *flags],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                cwd=tmp_path,
                check=False,
            )
            return asked.returncode, asked.stderr

        code, said = ask("stack", "3", "--node", "node-7", "--job", "the-job")
        assert (code, "stand_still" in said) == (0, True), said
        for action in ("ring", "history", "log-tail"):
            code, said = ask(action, "3", "--node", "node-7")
            assert code == 0, said
        code, said = ask("kernel-log", "3", "--node", "node-7")
        assert code == 0, said
        (kernel,) = (tmp_path / "asked").glob("*-node-node-7-kernel.log")
        assert kernel.read_bytes().startswith((b"# kernel log from ", b"# the kernel log cannot be read: "))
        kernel.unlink()
        names = {path.name.partition(f"-{rank.pid}")[2]: path for path in (tmp_path / "asked").iterdir()}
        assert sorted(names) == ["-0.log", "-history.ring-events.csv", "-history.ring-events.gz", ".ring.gz"]
        assert "the last words" in names["-0.log"].read_text()
        assert "hunter2" not in names["-0.log"].read_text()
        rows = names["-history.ring-events.csv"].read_text().splitlines()
        assert rows[0].startswith("kind,op,phase,")
        assert len(rows) > 40
        code, said = ask("ring", "3", "--node", "node-8", "--wait", "2")
        assert (code, "no answer: no agent on node-8" in said) == (1, True)
    finally:
        rank.end()


def test_an_incident_and_what_agents_sent_for_it_come_into_one_archive(
    fresh_kafka: Callable[..., Kafka], command: Callable[..., Any], tmp_path: Path
) -> None:
    kafka = fresh_kafka()
    make_topics(kafka)
    (tmp_path / "rings" / "job").mkdir(parents=True, mode=0o700)
    log = tmp_path / "rank.log"
    rank = RankProcess(tmp_path / "rings" / "job", 1, 2, identity={"WHICHRANK_JOB_ID": "job-1"}, log=str(log))
    try:
        rank.say("collectives 20")
        rank.say("log the last words")
        rank.say("stand")
        command(kafka)
        received = Received(kafka, (TOPIC_BLOCKS, TOPIC_LOGS))
        eventually(lambda: EventName.RANK_STARTED in names_in(received), what="the start", timeout_s=PATIENCE_S)
        (attempt,) = {e.identity.attempt for e in events_in(received) if e.name is EventName.RANK_STARTED}
        suspect = {**document()["suspects"][0], "node": "node-7", "pid": rank.pid}
        times = {"onset": time.time(), "detected": time.time()}
        job = {**document()["job"], "attempt": attempt}
        producer = make_client(kafka.settings()).producer()
        told = Incident(document=document(job=job, suspects=[suspect], times=times))
        producer.send(TOPIC_INCIDENTS, ID.encode(), encode_payloads([told]))
        for action in ("stack", "log_tail", "history", "kernel_log"):
            wish = {"id": f"k/{action}/1", "action": action, "rank": 1, "node": "", "incident": ID}
            event = Event(
                name=EventName.EVIDENCE_REQUEST,
                identity=Identity(job="job-1", attempt=attempt, rank=1),
                time_ns=time.time_ns(),
                attributes=wish,
            )
            producer.send(TOPIC_REQUESTS, b"", encode_payloads([event]))
        assert producer.flush(10.0) == 0
        producer.close(1.0)

        def answered() -> bool:
            received.read()
            logs = [value for topic, _, value in received.messages if topic == TOPIC_LOGS]
            actions = {piece.action for value in logs for piece in decode_evidence(value)}
            stacks = any(EventName.RANK_STACK.value.encode() in value for value in logs)
            return actions == {"log_tail", "history", "kernel_log"} and stacks

        eventually(answered, what="the answers", timeout_s=PATIENCE_S)
        received.close()
        flags = ["--kafka", kafka.address, "--out", "a.tar.gz", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "whichrank.commands.main", "incidents", "export", ID[:8], *flags],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        exported = json.loads(done.stdout)
        ends = ("-0.log", "-history.ring-events.gz", "-request.stack.txt", "/node-7.log")
        paths = [file["path"] for file in exported["files"]]
        assert all(any(path.endswith(end) for path in paths) for end in ends), paths
        assert [(row["what"], row["who"]) for row in exported["missing"]] == [("flight_recorder", "rank 1")]
        assert exported["problems"] == []
    finally:
        rank.end()
