"""One run: topics of its own on a real broker, a publisher as an agent has it, processors as processes, the oracle."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.stack.faults.agent import CLOSE_S, COUNTS, PLAYED
from tests.stack.faults.load import (
    BEGIN_NS,
    Sendable,
    Verdicts,
    at,
    differences,
    numbers_in,
    play,
    stream,
    twin,
    verdicts,
)
from tests.stack.parts.kafka import Kafka
from whichrank.agents.base.priority import Priority, priority_of
from whichrank.agents.publish.kafka_publisher import KafkaPublisher
from whichrank.commands.services.kafka_service import DELIVERY_S
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Block, Event, Incident
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_DLQ, TOPIC_INCIDENTS
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_read import read_whole
from whichrank.transport.kafka_settings import KafkaSettings

ROOT = Path(__file__).resolve().parents[3]
WHICHRANK = Path(sys.executable).with_name("whichrank")
#: After the last record: how long the incidents may take to become those of the twin.
SETTLE_S = 60.0
SPOOL_BYTES = 64 << 20


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was wrong, and what happened."""

    problems: list[str] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    sent: int = 0


class World:
    """Made, run once, closed."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path, drawn: random.Random) -> None:
        self.kafka = kafka
        self.folder = folder
        self.drawn = drawn
        self.outcome = Outcome()
        self.settings = KafkaSettings(brokers=kafka.address, topic_prefix=prefix)
        self.environment = {
            **os.environ,
            "WHICHRANK_KAFKA": kafka.address,
            "WHICHRANK_KAFKA_TOPIC_PREFIX": prefix,
            "PYTHONWARNINGS": "ignore",
        }
        self.sendables = stream()
        self.state_folders: dict[str, Path] = {}
        self.processors: dict[str, subprocess.Popen[bytes]] = {}
        self.publisher: KafkaPublisher | None = None
        #: Set before the play begins: the stream comes from a process of its own, which can be killed.
        self.agent_apart = False
        self.agent: subprocess.Popen[str] | None = None
        #: Set before the play begins: what is sent besides, or otherwise.
        self.change: Callable[[str, bytes, Priority, Callable[[str, bytes, Priority], None]], None] | None = None
        self.clock_step_ns: Callable[[Sendable, float], int] = lambda each, after_s: 0
        self._over = threading.Event()
        self._began_ns, self._began_s, self._shift_ns = 0, 0.0, 0
        folder.mkdir(parents=True, exist_ok=True)

    # --- what strikes do ----------------------------------------------------------------------------------------------
    def note(self, line: str) -> None:
        after_s = (time.time_ns() - self._began_ns) / 1e9 if self._began_ns else 0.0
        self.outcome.did.append(f"{after_s:.1f} s: {line}")

    def payload(self, each: Sendable) -> Block | Event:
        """As it is sent, with the times of this run."""
        return at(each.payload, self._shift_ns)

    def make_topics(self, *, largest_bytes: int | None = None) -> None:
        """largest_bytes: what they take as one message; else what ``whichrank topics`` has them take."""
        own = {} if largest_bytes is None else {"WHICHRANK_KAFKA_MAX_MESSAGE": str(largest_bytes)}
        subprocess.run(
            [WHICHRANK, "topics", "--partitions", "4"],
            env={**self.environment, **own},
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def start_processor(self, name: str = "one") -> None:
        state = self.state_folders.setdefault(name, self.folder / name)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processors[name] = subprocess.Popen(
                [WHICHRANK, "process", "--state", state, "--instance", name, "--health", ""],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill_processor(self, name: str = "one") -> None:
        self.processors[name].kill()
        self.processors[name].wait()

    def said(self, name: str = "one") -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_word(self, word: str, name: str = "one") -> None:
        until = time.monotonic() + SETTLE_S
        while word not in self.said(name) and time.monotonic() < until:
            time.sleep(0.1)

    def wait_for_letters(self, count: int) -> None:
        """On the dead-letter topic."""
        until = time.monotonic() + SETTLE_S
        while (there := len(list(read_whole(make_client(self.settings), TOPIC_DLQ, within_s=20.0)))) < count:
            if time.monotonic() > until:
                self.outcome.problems.append(f"{there} dead letters instead of {count}")
                return
            time.sleep(0.5)

    def start_agent(self) -> None:
        words = [self.kafka.address, self.settings.topic_prefix, self.folder / "spool", SPOOL_BYTES, self._began_s]
        command = [sys.executable, "-W", "ignore", "-m", "tests.stack.faults.agent", *words, self._shift_ns]
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    # --- the run ------------------------------------------------------------------------------------------------------
    def run(self, strikes: list[tuple[float, Callable[[World], None]]]) -> Outcome:
        """Play the stream; each strike at its time, seconds after the beginning, in a thread of its own."""
        drawn = twin()
        self._began_ns, self._began_s = time.time_ns(), time.monotonic()
        self._shift_ns = self._began_ns - BEGIN_NS
        expected = {verdict: onset_s + self._shift_ns / 1e9 for verdict, onset_s in drawn.items()}
        if self.agent_apart:
            self.start_agent()
        else:
            self._start_publisher()
        threads = [threading.Thread(target=self._strike, args=strike, daemon=True) for strike in strikes]
        for thread in threads:
            thread.start()
        self._play()
        for thread in threads:
            thread.join(SETTLE_S)
        self._settle(expected)
        self._count_what_came(self._end_agent())
        return self.outcome

    def close(self) -> None:
        self._over.set()
        if self.agent is not None:
            self.kill_agent()
        for process in self.processors.values():
            process.kill()
            process.wait()

    def _play(self) -> None:
        if self.agent_apart:  # it is not known how far one came that was killed: the next one sends everything
            self._over.wait(max(0.0, self._began_s + self.sendables[-1].after_s - time.monotonic()))
            self.outcome.sent = len(self.sendables)
            return
        publish, change = self._publish, self.change

        def send(key: str, value: bytes, priority: Priority) -> None:
            if change is None:
                publish(key, value, priority)
            else:
                change(key, value, priority, publish)

        self.outcome.sent = play(
            self.sendables,
            send,
            began_s=self._began_s,
            shift_ns=lambda each: self._shift_ns + self.clock_step_ns(each, each.after_s),
            over=self._over.is_set,
        )

    def _publish(self, key: str, value: bytes, priority: Priority) -> None:
        assert self.publisher is not None
        self.publisher.publish(TOPIC_BLOCKS, key, value, priority)

    def _start_publisher(self) -> None:
        client = make_client(replace(self.settings, delivery_timeout_s=DELIVERY_S))
        self.publisher = KafkaPublisher(
            client.producer, spool_directory=self.folder / "spool", spool_bytes=SPOOL_BYTES, report=lambda line: None
        )
        self.publisher.start()

    def _end_agent(self) -> Mapping[str, int]:
        """What it counted."""
        if self.publisher is not None:
            self.publisher.close(CLOSE_S)
            return self.publisher.stats
        assert self.agent is not None
        assert self.agent.stdout is not None
        while not self.agent.stdout.readline().startswith(PLAYED):  # the last one may have only just begun
            if self.agent.poll() is not None:
                raise RuntimeError(f"the agent ended: {(self.folder / 'agent.log').read_text()[-500:]}")
        self.agent.terminate()
        said, _ = self.agent.communicate(timeout=SETTLE_S)
        counts: Mapping[str, int] = json.loads(said.split(COUNTS)[-1])
        return counts

    def _strike(self, after_s: float, strike: Callable[[World], None]) -> None:
        if self._over.wait(max(0.0, after_s - (time.time_ns() - self._began_ns) / 1e9)):
            return
        try:
            strike(self)
        except Exception as error:  # a failure of the harness must be told, not vanish with its thread
            self.outcome.problems.append(f"harness: {type(error).__name__}: {error}")

    def _settle(self, expected: Verdicts) -> None:
        until = time.monotonic() + SETTLE_S
        wrong = ["never looked"]
        while wrong and time.monotonic() < until:
            wrong = differences(expected, self._published()[0])
            if wrong:
                time.sleep(0.5)
        found, counts = self._published()
        self.outcome.problems += differences(expected, found)
        self.outcome.problems += [f"published {count} times: {name}" for name, count in counts.items() if count > 1]

    def _published(self) -> tuple[Verdicts, Counter[str]]:
        """The incidents as they are now, and how often each revision was published."""
        last = {}
        counts: Counter[str] = Counter()
        try:
            for message in read_whole(make_client(self.settings), TOPIC_INCIDENTS, within_s=20.0):
                for payload in decode_logs(TOPIC_INCIDENTS, message.value):
                    if isinstance(payload, Incident):
                        document = payload.document
                        counts[f"{document['kind']} of {document['job']['id']} revision {document['revision']}"] += 1
                        last[document["id"]] = document
        except OSError:  # Kafka is away
            return {}, Counter()
        return verdicts(last.values()), counts

    def _count_what_came(self, counts: Mapping[str, int]) -> None:
        """received + counted drops = sent, per priority."""
        came: dict[int, Priority] = {}
        until = time.monotonic() + SETTLE_S
        while True:
            try:
                for message in read_whole(make_client(self.settings), TOPIC_BLOCKS, within_s=30.0):
                    came.update(numbers_in(message.value))
                break
            except OSError as error:
                if time.monotonic() > until:
                    self.outcome.problems.append(f"the oracle cannot read: {error}")
                    return
        sent: Counter[Priority] = Counter()
        for each in self.sendables[: self.outcome.sent]:
            sent[priority_of(each.payload)] += 1
        received = Counter(came.values())
        for priority in sent:
            counters = f"kafka.dropped.{priority.word}."
            dropped = sum(count for name, count in counts.items() if name.startswith(counters))
            if received[priority] + dropped != sent[priority]:
                line = f"{sent[priority]} sent, {received[priority]} received, {dropped} counted as dropped"
                self.outcome.problems.append(f"{priority.word}: {line}")
