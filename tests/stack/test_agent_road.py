"""``whichrank agent`` and ``whichrank run --kafka`` with all that is real around them: jobs, broker, processor."""

from __future__ import annotations

import base64
import gzip
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.agents.conftest import RankProcess
from tests.stack.parts.kafka import Kafka, Security
from tests.stack.parts.service import eventually
from tests.stack.parts.whole_stack import Stack
from tests.stack.test_process_command import WAIT_S, WHICHRANK, Bench
from tests.stack.test_road_for_people import publish
from whichrank.telemetry import ring_layout as L
from whichrank.telemetry.evidence_pieces import (
    PIECE_BYTES,
    EvidencePiece,
    decode_evidence,
    encode_evidence,
    join_pieces,
)
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.otlp_encode import MAX_MESSAGE_BYTES
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_REQUESTS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_client import Client
from whichrank.transport.kafka_read import read_whole

RING_JOB = Path(__file__).parents[1] / "clock" / "ring_job.py"
PATIENCE_S = 180.0
NODE = "node-7"


class Site(Bench):
    """A bench with a node's agent and folders of rings."""

    def agent(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / "agent.log").open("ab") as log:
            started = subprocess.Popen(
                [WHICHRANK, "agent", "--rings", self.folder / "rings", "--data", self.folder / "agent", *words],
                env={**self.environment, "WHICHRANK_NODE_ID": NODE, **environment},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.running.append(started)
        return started

    def rings(self, job: str) -> Path:
        path = self.folder / "rings" / job
        path.mkdir(mode=0o700, parents=True)
        return path

    def events(self, client: Client | None = None) -> list[Event]:
        return [
            payload
            for message in read_whole(client or self.client, TOPIC_BLOCKS)
            for payload in decode_logs(TOPIC_BLOCKS, message.value)
            if isinstance(payload, Event)
        ]

    def names(self) -> set[EventName]:
        return {event.name for event in self.events()}

    def evidence(self, client: Client | None = None) -> list[EvidencePiece]:
        messages = read_whole(client or self.client, TOPIC_LOGS)
        return join_pieces(piece for message in messages for piece in decode_evidence(message.value))


@pytest.fixture
def site(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Site]:
    made = Site(kafka, topic_prefix, tmp_path)
    assert made.command("topics", "--partitions", "3").returncode == 0
    yield made
    for process in made.running:
        process.kill()
        process.wait()


@pytest.fixture
def start_rank(site: Site) -> Iterator[Callable[..., RankProcess]]:
    ranks: list[RankProcess] = []

    def start(job: str, **options: object) -> RankProcess:
        ranks.append(RankProcess(site.rings(job), 0, 1, **options))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.end()


def request(action: str, request_id: str, node: str = NODE) -> bytes:
    identity = Identity(cluster="local", job="asked", node=node, rank=0)
    attributes = {"id": request_id, "action": action, "rank": 0, "node": node}
    return encode_payloads(
        [Event(name=EventName.EVIDENCE_REQUEST, identity=identity, time_ns=time.time_ns(), attributes=attributes)]
    )


def test_a_hang_on_a_node_with_an_agent_is_told_with_its_line(site: Site) -> None:
    site.process()
    site.wait_until_ready()
    site.agent()
    folder = site.folder / "meeting"
    folder.mkdir()
    job = subprocess.Popen(
        [sys.executable, RING_JOB, folder, "0-2", "3", "400", "1@60"],
        env={**os.environ, "WHICHRANK_DIR": str(site.rings("hang"))},
    )
    site.running.append(job)
    mark = next(n for n, line in enumerate(RING_JOB.read_text().splitlines(), 1) if "MARK: stands still" in line)
    try:
        eventually(
            lambda: any(
                suspect["rank"] == 1 and suspect["node"] == NODE and (suspect["where"] or {}).get("line") == mark
                for document in site.incidents().values()
                for suspect in document["suspects"]
            ),
            what=f"the rank and its line: {site.incidents()} {site.said('agent')}",
            timeout_s=PATIENCE_S,
        )
    finally:
        for rank in psutil.Process(job.pid).children():
            rank.kill()
    (document,) = site.incidents().values()
    assert [suspect["rank"] for suspect in document["suspects"]] == [1]
    assert document["job"]["id"] == "hang"


def test_requests_are_answered_from_now_on_once_and_only_here(
    site: Site, start_rank: Callable[..., RankProcess]
) -> None:
    log = site.folder / "rank.err"
    rank = start_rank("asked", log=str(log))
    rank.say("collectives 50")
    rank.say("log a_line_of_the_rank")
    site.send(TOPIC_REQUESTS, request("ring", "of the past"), key=NODE)
    agent = site.agent()
    eventually(lambda: EventName.RANK_STARTED in site.names(), what="the rank", timeout_s=PATIENCE_S)
    wanted = {"log_tail", "history", "ring"}

    def all_there() -> bool:  # asked until the reader stands at the topic's end; an answer is given once by its id
        site.send(TOPIC_REQUESTS, request("ring", "elsewhere", "node-8"), key="node-8")
        for action in wanted:
            site.send(TOPIC_REQUESTS, request(action, f"now/{action}"), key=NODE)
        return {file.action for file in site.evidence()} == wanted

    eventually(all_there, what=f"the files: {site.said('agent')}", timeout_s=PATIENCE_S)
    found = {file.action: file for file in site.evidence()}
    assert {file.request_id for file in found.values()} == {f"now/{action}" for action in wanted}
    assert found["log_tail"].content == b"a_line_of_the_rank\n"
    assert gzip.decompress(found["ring"].content).startswith(L.MAGIC)
    assert len(gzip.decompress(found["history"].content)) >= 100 * L.EVENT_BYTES
    assert {(file.identity.node, file.identity.job, file.identity.rank) for file in found.values()} == {
        (NODE, "asked", 0)
    }
    agent.terminate()
    assert agent.wait(PATIENCE_S) == 0
    pieces = [p for m in read_whole(site.client, TOPIC_LOGS) for p in decode_evidence(m.value)]
    assert len(pieces) == len({(piece.request_id, piece.name, piece.piece) for piece in pieces})


def test_with_the_rights_of_an_agent_and_tls_and_a_password(
    fresh_kafka: Callable[..., Kafka], site: Site, start_rank: Callable[..., RankProcess]
) -> None:
    locked = fresh_kafka(Security(tls=True, sasl=True))
    secret, wrong = site.folder / "password", site.folder / "wrong"
    secret.write_text(locked.passwords["agent"])
    wrong.write_text("guessed")
    admin = {
        "WHICHRANK_KAFKA": locked.address,
        "WHICHRANK_KAFKA_TOPIC_PREFIX": "",
        "WHICHRANK_KAFKA_TLS": "true",
        "WHICHRANK_KAFKA_TLS_CA": str(locked.ca),
        "WHICHRANK_KAFKA_SASL": "SCRAM-SHA-512",
    }
    made = site.command(
        "topics", **admin, WHICHRANK_KAFKA_USER="admin", WHICHRANK_KAFKA_PASSWORD=locked.passwords["admin"]
    )
    assert made.returncode == 0, made.stdout + made.stderr
    start_rank("asked").say("collectives 50")
    user = {**admin, "WHICHRANK_KAFKA_USER": "agent"}
    agent = site.agent(**user, WHICHRANK_KAFKA_PASSWORD_FILE=str(wrong))
    eventually(lambda: "kafka_password" in site.said("agent"), what="a word about the password", timeout_s=PATIENCE_S)
    assert agent.poll() is None
    agent.terminate()
    assert agent.wait(PATIENCE_S) == 0
    told = [line for line in site.said("agent").splitlines() if "kafka_password" in line]
    assert len(told) <= 2  # by the publisher, and by who takes requests
    (site.folder / "agent.log").unlink()
    agent = site.agent(**user, WHICHRANK_KAFKA_PASSWORD_FILE=str(secret))
    eventually(lambda: "may not" in site.said("agent"), what="a word about rights", timeout_s=PATIENCE_S)
    locked.grant()
    client = make_client(locked.settings())
    eventually(
        lambda: any(event.name is EventName.RANK_STARTED for event in site.events(client)),
        what=f"what both agents have kept: {site.said('agent')}",
        timeout_s=PATIENCE_S,
    )

    def asked() -> bool:
        producer = client.producer()
        producer.send(TOPIC_REQUESTS, NODE.encode(), request("history", "now"), None, None)
        producer.flush(WAIT_S)
        producer.close(1.0)
        return bool(site.evidence(client))

    eventually(asked, what=f"an answer: {site.said('agent')}", timeout_s=PATIENCE_S)


def test_a_run_can_be_watched_both_ways(site: Site) -> None:
    folder = site.folder / "meeting"
    folder.mkdir()
    run = site.command(
        *("run", "--kafka", site.environment["WHICHRANK_KAFKA"], "--out", str(site.folder / "out"), "--view", "none"),
        *("--", sys.executable, str(RING_JOB), str(folder), "0-1", "2", "20"),
    )
    assert run.returncode == 0, run.stderr
    assert "Kafka: " in run.stderr
    assert "not taken" not in run.stderr
    names = site.names()
    assert {EventName.JOB_STARTED, EventName.RANK_STARTED, EventName.RANK_EXIT, EventName.JOB_FINISHED} <= names
    assert (site.folder / "out" / "run.json").exists()
    jobs = {event.identity.job for event in site.events()}
    assert len(jobs - {""}) == 1  # what is told of the node itself is of no job


def test_a_run_whose_kafka_is_not_there_is_the_same_run(site: Site) -> None:
    folder = site.folder / "meeting"
    folder.mkdir()
    run = site.command(
        *("run", "--kafka", "127.0.0.1:9", "--out", str(site.folder / "out"), "--view", "none", "--"),
        *(sys.executable, "-c", "import sys; print('mine'); sys.exit(7)"),
    )
    assert (run.returncode, run.stdout) == (7, "mine\n")
    assert "of them in the spool" in run.stderr
    assert list((site.folder / "out" / "spool").glob("*.spool"))


@pytest.mark.parametrize("size", [PIECE_BYTES, MAX_MESSAGE_BYTES])
def test_a_piece_of_evidence_is_kept_where_people_look(stack: Stack, size: int) -> None:
    """The body is bytes, of which VictoriaLogs makes base64: it must come out as it went in, the largest too."""
    content = random.Random(7).randbytes(size)
    piece = EvidencePiece(
        identity=Identity(cluster="local", job=f"kept-evidence-{size}", node=NODE, rank=3),
        request_id="incident/ring/3",
        action="ring",
        name="rank-00003.ring.gz",
        format="ring.gz",
        time_ns=time.time_ns(),
        content=content,
    )
    publish(stack.kafka, TOPIC_LOGS, encode_evidence(piece))
    found: list[dict[str, str]] = []

    def there() -> bool:
        found[:] = stack.logs.query(f'whichrank.job.id:="kept-evidence-{size}" event_name:="whichrank.evidence"')
        return bool(found)

    eventually(there, what="a piece in VictoriaLogs", timeout_s=PATIENCE_S)
    (row,) = found
    assert base64.b64decode(row["_msg"]) == content
    assert row["whichrank.evidence.name"] == piece.name
