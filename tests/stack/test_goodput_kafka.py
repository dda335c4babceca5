"""``whichrank goodput --kafka`` on a real broker: a job dies and goes on, and its seconds are read from findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually

WHICHRANK = Path(sys.executable).with_name("whichrank")
#: It dies after two and a half minutes and takes its next step half a minute later. A minute after that the first
#: interval of the new attempt is told.
SECONDS = 280.0
WAIT_S = 120.0


class Commands:
    """whichrank's commands on topics of their own on the shared broker."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path) -> None:
        self.folder, self.address, self.prefix = folder, kafka.address, prefix
        self.environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        self.mine = {"WHICHRANK_KAFKA": kafka.address, "WHICHRANK_KAFKA_TOPIC_PREFIX": prefix}
        self.running: list[subprocess.Popen[bytes]] = []

    def run(self, *words: str, timeout_s: float = WAIT_S, told: bool = True) -> subprocess.CompletedProcess[str]:
        """told: whether the environment names the broker and the prefix."""
        return subprocess.run(
            [WHICHRANK, *words],
            env={**self.environment, **(self.mine if told else {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *words: str | Path) -> None:
        with (self.folder / f"{words[0]}.log").open("wb") as log:
            self.running.append(
                subprocess.Popen(
                    [WHICHRANK, *words],
                    env={**self.environment, **self.mine},
                    cwd=self.folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def goodput(self) -> dict[str, Any] | None:
        """The only run's account; None while nothing is told. By flags alone."""
        words = ("--kafka", self.address, "--set", f"kafka_topic_prefix={self.prefix}")
        found = self.run("goodput", *words, "--json", told=False)
        if found.returncode:
            assert "no second is accounted for" in found.stderr
            return None
        (run,) = json.loads(found.stdout)["runs"]
        return dict(run)

    def end(self) -> None:
        for command in self.running:
            command.kill()
            command.wait()


@pytest.fixture
def commands(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Commands]:
    made = Commands(kafka, topic_prefix, tmp_path)
    yield made
    made.end()


def test_the_seconds_of_a_job_that_died_and_went_on_are_read_from_the_findings(commands: Commands) -> None:
    assert commands.run("topics", "--partitions", "2").returncode == 0
    assert commands.goodput() is None
    commands.start("process", "--state", commands.folder / "state", "--instance", "one", "--health", "")
    words = ("--scenario", "process_killed", "--ranks", "4", "--seed", "1", "--minutes", str(SECONDS / 60))
    sent = commands.run("simulate", *words, "--kafka", commands.address, "--json", timeout_s=SECONDS + WAIT_S)
    assert sent.returncode == 0, sent.stderr
    (truth,) = json.loads(sent.stdout)["sums_s"].values()

    def went_on() -> bool:
        run = commands.goodput()
        return run is not None and any(each["went_on"] for each in run["interruptions"])

    eventually(went_on, what="the findings tell of the restart", timeout_s=WAIT_S)
    run = commands.goodput()
    assert run is not None
    (down,) = run["interruptions"]
    assert down["kind"] == "rank_died"
    assert down["incident"]
    assert down["node"]
    assert sum(run["ns"].values()) == run["wall_ns"]
    assert run["unknown_share"] < 0.01
    for bucket in ("starting", "shutdown", "restarting", "checkpoint_save"):
        assert run["ns"][bucket] / 1e9 == pytest.approx(truth.get(bucket, 0.0), abs=3.0), bucket
    productive_s = run["ns"]["productive"] / 1e9
    assert truth["productive"] - 60.0 <= productive_s <= truth["productive"] + 3.0, "but for what is not told yet"
    assert run["mttf"]["failures"] == 1
    people = commands.run("goodput", "--kafka", commands.address)
    assert people.returncode == 0
    assert "rank_died" in people.stdout
