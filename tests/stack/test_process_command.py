"""``whichrank process``, ``topics`` and ``dlq`` as people start them, against a real broker."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from whichrank.commands.services.process import STATE_FILE
from whichrank.processors.state_versions import SCHEMA_VERSION
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.records import Event, Identity, Incident
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_CLOCK, TOPIC_DLQ, TOPIC_INCIDENTS, TOPIC_LOGS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import Client, TopicFacts
from whichrank.transport.kafka_read import read_whole
from whichrank.transport.kafka_settings import KafkaSettings

WHICHRANK = Path(sys.executable).with_name("whichrank")
WAIT_S = 90.0
SECOND = 1_000_000_000


class Bench:
    """Topics of its own on the shared broker, and commands against them."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "WHICHRANK_KAFKA": kafka.address,
            "WHICHRANK_KAFKA_TOPIC_PREFIX": prefix,
            "PYTHONWARNINGS": "ignore",
        }
        self.client: Client = make_client(KafkaSettings(brokers=kafka.address, topic_prefix=prefix))
        self.running: list[subprocess.Popen[bytes]] = []
        self.health = f"127.0.0.1:{free_ports(1)[0]}"

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [WHICHRANK, *words],
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    @property
    def named_config(self) -> dict[str, str]:
        settings = self.folder / "whichrank.toml"
        return {"WHICHRANK_CONFIG": str(settings)} if settings.exists() else {}

    def process(self, *words: str, name: str = "one", health: bool = True) -> subprocess.Popen[bytes]:
        """A running ``whichrank process``; what it says is in ``said(name)``."""
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                [
                    *(WHICHRANK, "process", "--state", self.folder / name, "--instance", name),
                    *("--health", self.health if health else ""),
                    *words,
                ],
                env={**self.environment, **self.named_config},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.running.append(started)
        return started

    def said(self, name: str = "one") -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def ask(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.health}{page}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def wait_until_ready(self) -> None:
        eventually(lambda: self.ask("/readyz")[0] == 200, what=f"ready: {self.said()}", timeout_s=WAIT_S)

    def send(self, topic: str, *values: bytes, key: str = "j") -> None:
        answers: list[object] = []
        producer = self.client.producer()
        for value in values:
            producer.send(topic, key.encode(), value, None, lambda sent, trouble: answers.append(trouble))
        producer.flush(WAIT_S)
        eventually(lambda: len(answers) == len(values), what="answers", timeout_s=WAIT_S)
        producer.close(1.0)
        assert answers == [None] * len(values)

    def incidents(self) -> dict[str, dict[str, Any]]:
        """The last published revision of each."""
        found: dict[str, dict[str, Any]] = {}
        for message in read_whole(self.client, TOPIC_INCIDENTS):
            for payload in decode_logs(TOPIC_INCIDENTS, message.value):
                if isinstance(payload, Incident) and payload.document["kind"] != "input_silent":
                    found[payload.document["id"]] = dict(payload.document)
        return found

    def wait_for(self, question: Callable[[dict[str, dict[str, Any]]], bool], what: str) -> dict[str, dict[str, Any]]:
        eventually(lambda: question(self.incidents()), what=f"{what}; said: {self.said()}", timeout_s=WAIT_S)
        return self.incidents()


@pytest.fixture
def bench(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(kafka, topic_prefix, tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


@pytest.fixture
def with_topics(bench: Bench) -> Bench:
    made = bench.command("topics", "--partitions", "3")
    assert made.returncode == 0, made.stdout + made.stderr
    return bench


def death(job: str, rank: int) -> bytes:
    """What an agent tells of a rank that was killed."""
    now = time.time_ns()
    own = Identity(cluster="lab", run=job, job=job, attempt="a", node="n1", rank=rank)
    whole = Identity(cluster="lab", run=job, job=job, node="n1")
    started: dict[str, Any] = {"pid": 100 + rank, "world_size": 2, "local_rank": rank, "host": "n1"}
    return encode_payloads(
        [
            Event(name=EventName.JOB_STARTED, identity=whole, time_ns=now - SECOND, attributes={"job_name": job}),
            Event(name=EventName.RANK_STARTED, identity=own, time_ns=now - SECOND, attributes=started),
            Event(name=EventName.RANK_EXIT, identity=own, time_ns=now, attributes={"signal": 9, "exit_state": 1}),
        ]
    )


def names_rank(rank: int) -> Callable[[dict[str, dict[str, Any]]], bool]:
    return lambda found: any(suspect["rank"] == rank for document in found.values() for suspect in document["suspects"])


class TestTopics:
    def test_made_once_and_found_good_the_second_time(self, bench: Bench) -> None:
        first = bench.command("topics", "--partitions", "3", "--json")
        second = bench.command("topics", "--json")
        assert (first.returncode, second.returncode) == (0, 0)
        assert {row["did"] for row in json.loads(first.stdout)["topics"]} == {"made"}
        rows = {row["topic"]: row for row in json.loads(second.stdout)["topics"]}
        assert {row["did"] for row in rows.values()} == {"is there"}
        assert (rows[TOPIC_BLOCKS]["partitions"], rows[TOPIC_CLOCK]["partitions"]) == (3, 1)

    def test_a_dry_run_makes_nothing(self, bench: Bench) -> None:
        assert bench.command("topics", "--dry-run").returncode == 1
        assert bench.client.admin().describe([TOPIC_BLOCKS]) == {}

    def test_a_topic_with_the_senders_stamps_is_refused_with_its_remedy(self, with_topics: Bench) -> None:
        stamps = {"message.timestamp.type": "CreateTime"}
        with_topics.client.admin().create(TopicFacts(name="x", partitions=1, replication=1, configuration=stamps))
        with_topics.environment["WHICHRANK_KAFKA_TOPIC_PREFIX"] += "other."
        other = make_client(
            KafkaSettings(
                brokers=with_topics.environment["WHICHRANK_KAFKA"],
                topic_prefix=with_topics.environment["WHICHRANK_KAFKA_TOPIC_PREFIX"],
            )
        )
        other.admin().create(TopicFacts(name=TOPIC_BLOCKS, partitions=1, replication=1, configuration=stamps))
        refused = with_topics.command("topics", "--json")
        assert refused.returncode == 1
        (row,) = [row for row in json.loads(refused.stdout)["topics"] if not row["ok"]]
        assert row["topic"] == TOPIC_BLOCKS
        assert "message.timestamp.type=CreateTime" in row["says"]
        assert "--add-config message.timestamp.type=LogAppendTime" in row["says"]


class TestProcess:
    def test_a_fault_becomes_an_incident_and_the_service_ends_well(self, with_topics: Bench) -> None:
        service = with_topics.process()
        with_topics.wait_until_ready()
        assert with_topics.ask("/healthz")[0] == 200
        with_topics.send(TOPIC_BLOCKS, death("j1", 1), key="j1")
        (document,) = with_topics.wait_for(names_rank(1), "rank 1 is named").values()
        assert (document["kind"], document["job"]["id"]) == ("rank_died", "j1")
        assert "whichrank_process_published_total" in with_topics.ask("/metrics")[1]
        began = time.monotonic()
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=30) == 0
        assert time.monotonic() - began < 30

    def test_without_topics_it_ends_with_what_to_do(self, bench: Bench) -> None:
        ended = bench.command("process", "--state", "s", "--health", "")
        assert ended.returncode == 2
        assert "make them with: whichrank topics" in ended.stderr

    def test_without_kafka_it_waits_and_can_be_ended(self, bench: Bench) -> None:
        bench.environment["WHICHRANK_KAFKA"] = "127.0.0.1:9"
        service = bench.process(health=False)
        eventually(lambda: "does not answer" in bench.said(), what="a line", timeout_s=WAIT_S)
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=30) == 0
        assert bench.said().count("does not answer") == 1, "said once"

    def test_a_second_one_with_the_same_state_is_refused(self, with_topics: Bench) -> None:
        with_topics.process()
        with_topics.wait_until_ready()
        second = with_topics.command("process", "--state", str(with_topics.folder / "one"), "--health", "")
        assert second.returncode == 2
        assert "another" in second.stderr

    def test_a_rollback_in_mid_incident_loses_and_repeats_nothing(self, with_topics: Bench) -> None:
        """A state of a newer release is set aside, and what was published is read back from the topics."""
        newer = with_topics.process()
        with_topics.send(TOPIC_BLOCKS, death("j1", 1), key="j1")
        before = with_topics.wait_for(names_rank(1), "rank 1 is named")
        newer.send_signal(signal.SIGTERM)
        assert newer.wait(timeout=30) == 0
        database = sqlite3.connect(with_topics.folder / "one" / STATE_FILE)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        database.close()
        with_topics.send(TOPIC_BLOCKS, death("j2", 0), key="j2")
        with_topics.process()
        after = with_topics.wait_for(names_rank(0), "rank 0 is named")
        assert "newer release" in with_topics.said()
        assert (with_topics.folder / "one" / f"{STATE_FILE}.aside-1").exists()
        assert {id_: after[id_] for id_ in before} == before, "the first is as it was"
        assert len(after) == len(before) + 1
        revisions = Counter(
            (payload.document["id"], payload.document["revision"])
            for message in read_whole(with_topics.client, TOPIC_INCIDENTS)
            for payload in decode_logs(TOPIC_INCIDENTS, message.value)
            if isinstance(payload, Incident)
        )
        assert set(revisions.values()) == {1}

    def test_kinds_can_be_disabled_while_it_runs(self, with_topics: Bench) -> None:
        settings = with_topics.folder / "whichrank.toml"
        settings.write_text('disable = ""\n')
        service = with_topics.process()
        with_topics.wait_until_ready()
        settings.write_text('disable = "rank_died"\n')
        eventually(lambda: "kinds that are not opened from now on: rank_died" in with_topics.said(), what="the change")
        with_topics.send(TOPIC_BLOCKS, death("off", 1), key="off")
        settings.write_text('disable = "no_such_kind"\n')
        eventually(lambda: "no kind of incident" in with_topics.said(), what="the complaint")
        settings.write_text('disable = ""\n')
        eventually(lambda: "from now on: none" in with_topics.said(), what="the change back")
        with_topics.send(TOPIC_BLOCKS, death("on", 0), key="on")
        found = with_topics.wait_for(names_rank(0), "rank 0 is named")
        assert {document["job"]["id"] for document in found.values()} == {"on"}
        assert service.poll() is None

    def test_a_shadow_judges_and_publishes_nothing(self, with_topics: Bench) -> None:
        with_topics.process("--shadow")
        with_topics.wait_until_ready()
        with_topics.send(TOPIC_BLOCKS, death("j", 1))
        shadow = with_topics.folder / "one" / "shadow-incidents.jsonl"
        eventually(
            lambda: shadow.exists() and b"rank_died" in shadow.read_bytes(), what="its own file", timeout_s=WAIT_S
        )
        assert with_topics.incidents() == {}

    def test_blocks_that_a_collector_carried_are_read_and_copies_are_not(self, with_topics: Bench) -> None:
        with_topics.process()
        with_topics.wait_until_ready()
        events = [payload for payload in decode_logs(TOPIC_LOGS, death("copy", 0)) if isinstance(payload, Event)]
        with_topics.send(TOPIC_LOGS, encode_payloads(events, is_copy=True), key="")
        with_topics.send(TOPIC_LOGS, death("carried", 1), key="")
        found = with_topics.wait_for(names_rank(1), "rank 1 is named")
        assert {document["job"]["id"] for document in found.values()} == {"carried"}


def poison() -> dict[str, bytes]:
    """One of each kind."""
    good = death("poison", 0)
    block = b"".join([good[:-20], b"\xff" * 12])
    return {
        "random bytes": bytes(range(1, 256)) * 4,
        "a truncated request": good[: len(good) // 2],
        "a damaged end": block,
        "an event without what it needs": encode_payloads(
            [Event(name=EventName.RANK_STARTED, identity=Identity(job="p", rank=0), time_ns=1, attributes={})]
        ),
    }


class TestDeadLetters:
    def test_what_cannot_be_read_is_kept_and_stops_nobody(self, with_topics: Bench) -> None:
        with_topics.process()
        with_topics.wait_until_ready()
        for value in poison().values():
            with_topics.send(TOPIC_BLOCKS, value)
        with_topics.send(TOPIC_BLOCKS, death("j", 1))
        with_topics.wait_for(names_rank(1), "rank 1 is named in spite of all")
        listed = with_topics.command("dlq", "list", "--json")
        letters = json.loads(listed.stdout)["letters"]
        assert len(letters) >= 3, letters
        assert all(letter["from"].startswith(TOPIC_BLOCKS) and letter["why"] for letter in letters)
        shown = with_topics.command("dlq", "show", letters[0]["letter"])
        assert letters[0]["why"] in shown.stdout
        assert "00000000" in shown.stdout

    def test_letters_can_be_sent_again(self, with_topics: Bench) -> None:
        with_topics.send(TOPIC_DLQ, b"?")
        refused = with_topics.command("dlq", "replay", "--all")
        assert refused.returncode == 1
        assert "does not say where it came from" in refused.stderr
        with_topics.process()
        with_topics.wait_until_ready()
        with_topics.send(TOPIC_BLOCKS, b"\xff\xfe")
        eventually(lambda: len(list(read_whole(with_topics.client, TOPIC_DLQ))) == 2, what="a letter", timeout_s=WAIT_S)
        letter = json.loads(with_topics.command("dlq", "list", "--json").stdout)["letters"][-1]
        raw = subprocess.run(
            [WHICHRANK, "dlq", "show", letter["letter"], "--raw"],
            env=with_topics.environment,
            capture_output=True,
            timeout=WAIT_S,
            check=True,
        )
        assert raw.stdout == b"\xff\xfe"
        again = with_topics.command("dlq", "replay", letter["letter"])
        assert again.returncode == 0, again.stderr
        eventually(lambda: len(list(read_whole(with_topics.client, TOPIC_DLQ))) == 3, what="a letter", timeout_s=WAIT_S)

    def test_of_a_letter_larger_than_our_messages_the_beginning_is_kept_and_not_sent_again(
        self, with_topics: Bench
    ) -> None:
        with_topics.process()
        with_topics.wait_until_ready()
        with_topics.send(TOPIC_BLOCKS, b"\xff" * 950_000)
        eventually(lambda: len(list(read_whole(with_topics.client, TOPIC_DLQ))) == 1, what="a letter", timeout_s=WAIT_S)
        (letter,) = json.loads(with_topics.command("dlq", "list", "--json").stdout)["letters"]
        assert letter["bytes"] == 950_000
        shown = with_topics.command("dlq", "show", letter["letter"])
        assert f"... 50000 more are only at {TOPIC_BLOCKS}" in shown.stdout
        again = with_topics.command("dlq", "replay", letter["letter"])
        assert again.returncode == 1
        assert "has only the first 900000 of 950000 bytes" in again.stderr

    def test_an_unknown_letter_is_one_clear_line(self, with_topics: Bench) -> None:
        for words in (("show", "0/7"), ("replay", "0/7")):
            ended = with_topics.command("dlq", *words)
            assert ended.returncode == 2
            assert "has no letter 0/7; whichrank dlq list names them" in ended.stderr
