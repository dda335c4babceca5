"""From a rank killed in a real torchrun job to the request that a site's automation gets, over a real Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.respond.parts import SECRET, FakeSlurm, Receiver, incident
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from tests.stack.test_process_command import WAIT_S, WHICHRANK, Bench
from whichrank.commands.run.command import BOOTSTRAP
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Incident
from whichrank.telemetry.topics import TOPIC_INCIDENTS, TOPIC_LOGS
from whichrank.transport.kafka_read import read_whole

JOB = "4711"  # as Slurm would name it
SCRIPT = """
import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, value = dist.get_rank(), torch.ones(16)
for step in range(100_000):
    dist.all_reduce(value)
    time.sleep(0.02)
    if rank == 1 and step > 20 and os.path.exists(sys.argv[1]):
        open(sys.argv[2], "w").write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
"""
#: As root's slurmstepd runs a job's step: what is acted on is an id that the kernel confirms, not what a job claims.
STEP_DAEMON = """
import ctypes, signal, subprocess, sys
ctypes.CDLL(None).prctl(15, b"slurmstepd", 0, 0, 0)
step = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: step.terminate())
sys.exit(step.wait())
"""


class Road(Bench):
    """And an agent, a job, and ``whichrank respond``."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path, receiver: Receiver) -> None:
        super().__init__(kafka, prefix, folder)
        self.slurm = FakeSlurm(folder / "slurm-bin", sys.executable)
        self.environment |= {
            "PATH": f"{self.slurm.folder}:{os.environ['PATH']}",
            "WHICHRANK_RESPOND_STATE": str(folder / "respond"),
            "WHICHRANK_RESPOND_WEBHOOK_URL": receiver.url,
            "WHICHRANK_RESPOND_WEBHOOK_SECRET": SECRET,
            "WHICHRANK_RESPOND_CLUSTER_NODES": "100",
            "WHICHRANK_RESPOND_SETTLE_S": "1",
        }
        self.rings = folder / "rings"
        self.rings.mkdir(mode=0o700)

    def start(
        self, name: str, *words: str | Path, program: str | Path | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """program: where the first word is only what it calls itself."""
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                words, executable=program, env={**self.environment, **environment}, cwd=self.folder, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.running.append(started)
        return started

    def respond(self, *words: str, hooks: str = "webhook,slurm") -> subprocess.Popen[bytes]:
        return self.start("respond", WHICHRANK, "respond", "--act", "--hooks", hooks, "--health", "", *words)

    def job(self, job: str = JOB) -> None:
        """Rank 1 dies once ``now-JOB`` is there, and says when in ``killed-at-JOB``."""
        (self.folder / "train.py").write_text(SCRIPT)
        (self.rings / job).mkdir(parents=True, mode=0o700, exist_ok=True)
        torchrun = Path(sys.executable).with_name("torchrun")
        self.start(
            f"job-{job}",
            *(f"slurmstepd: [{job}.batch]", "-I", "-S", "-c", STEP_DAEMON),
            *(torchrun, "--standalone", "--nproc-per-node=2", self.folder / "train.py"),
            *(self.folder / f"now-{job}", self.folder / f"killed-at-{job}"),
            program=sys.executable,
            WHICHRANK_AUTO="1",
            PYTHONPATH=str(BOOTSTRAP),
            WHICHRANK_DIR=str(self.rings / job),
            WHICHRANK_JOB_ID=job,
        )

    def kill_rank(self, job: str = JOB) -> None:
        (self.folder / f"now-{job}").touch()

    def killed_at(self, job: str = JOB) -> float:
        return float((self.folder / f"killed-at-{job}").read_text())

    def events(self) -> list[str]:
        """Names of response events that people's collectors get."""
        found: list[str] = []
        for message in read_whole(self.client, TOPIC_LOGS):
            found += [
                name.decode() for name in re.findall(rb"whichrank\.response\.(?:begun|done|refused)", message.value)
            ]
        return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def road(kafka: Kafka, topic_prefix: str, tmp_path: Path, receiver: Receiver) -> Iterator[Road]:
    made = Road(kafka, topic_prefix, tmp_path, receiver)
    assert made.command("topics", "--partitions", "3").returncode == 0
    yield made
    for process in made.running:
        process.terminate()
    for process in made.running:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_killed_rank_starts_its_job_again_once(road: Road, receiver: Receiver) -> None:
    road.process()
    road.wait_until_ready()
    receiver.answers = [503]  # it fails at times
    road.start(
        "agent", WHICHRANK, "agent", "--rings", road.rings, "--data", road.folder / "data", "--set", "collect=none"
    )
    first = road.respond()
    eventually(lambda: "acts, by" in road.said("respond"), what=road.said("respond"), timeout_s=WAIT_S)
    road.job()
    eventually(lambda: "jobs here:" in road.said("agent"), what="the agent finds the job", timeout_s=WAIT_S)
    road.kill_rank()
    eventually(lambda: bool(receiver.good), what=f"the webhook: {road.said()}", timeout_s=WAIT_S)

    (_, body, received) = receiver.good[0]
    killed = road.killed_at()
    document = body["document"]
    times = document["times"]
    print(
        f"\nkilled -> detected {times['detected'] - killed:.2f} s -> webhook {received - killed:.2f} s"
        " (1 s of it settling, one 503 and its pause)"
    )
    assert (document["kind"], document["suspects"][0]["rank"]) == ("rank_died", 1)
    assert (body["action"], body["job"], receiver.bad) == ("retry", JOB, [])
    assert receiver.requests == 2
    assert document["advice"]["retry"] == {"number": 1, "of": 2}
    eventually(lambda: road.slurm.calls() == [["requeue", JOB]], what="scontrol requeue", timeout_s=WAIT_S)
    assert received - killed < 60.0

    eventually(lambda: road.events().count("whichrank.response.done") == 2, what="events", timeout_s=WAIT_S)
    first.kill()
    first.wait()
    second = road.respond()
    eventually(lambda: road.said("respond").count("acts, by") == 2, what="it is back", timeout_s=WAIT_S)
    # Its own word that all is read: another incident is answered.
    road.send(TOPIC_INCIDENTS, encode_payloads([Incident(document=incident(5, by="human"))]), key="5")
    eventually(lambda: "advice is a person's" in road.said("respond"), what=road.said("respond"), timeout_s=WAIT_S)
    second.terminate()
    assert second.wait(timeout=60) == 0
    assert (len(receiver.good), road.slurm.calls()) == (1, [["requeue", JOB]])
    assert road.events().count("whichrank.response.done") == 2
    assert "whichrank.response.refused" in road.events()


def test_without_kafka_it_waits_and_without_the_topic_it_says_what_to_do(
    kafka: Kafka, topic_prefix: str, tmp_path: Path, receiver: Receiver
) -> None:
    road = Road(kafka, topic_prefix, tmp_path, receiver)
    service = road.respond()
    eventually(lambda: "make them with: whichrank topics" in road.said("respond"), what="a line", timeout_s=WAIT_S)
    assert service.poll() is None
    assert road.command("topics", "--partitions", "1").returncode == 0
    road.send(TOPIC_INCIDENTS, encode_payloads([Incident(document=incident(7))]), key="7")
    eventually(lambda: len(receiver.good) == 1, what=road.said("respond"), timeout_s=WAIT_S)
    assert road.said("respond").count("make them with") == 1, "said once"
    service.terminate()
    assert service.wait(timeout=60) == 0
    assert [words[0] for words in road.slurm.calls()] == ["show", "update", "requeue"]


def test_once_reads_to_the_end_and_a_storm_is_held(road: Road, receiver: Receiver) -> None:
    storm = [incident(number, node=f"node-{number}") for number in range(1, 301)]
    began = time.monotonic()
    for first in range(0, 300, 100):
        road.send(TOPIC_INCIDENTS, *(encode_payloads([Incident(document=d)]) for d in storm[first : first + 100]))
    done = road.command("respond", "--act", "--hooks", "webhook", "--once", WHICHRANK_RESPOND_NODES_PER_HOUR="4")
    assert done.returncode == 3, done.stderr
    assert len(receiver.good) == 4
    assert done.stderr.count("refused restart_without_node") == 296
    print(f"\n300 incidents: 4 of 300 acted on, 296 refused, {time.monotonic() - began:.1f} s with sending")
