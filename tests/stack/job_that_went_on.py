"""A simulated job of five minutes that dies and goes on, its records on a real broker, and what is told of it then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually

WHICHRANK = Path(sys.executable).with_name("whichrank")
#: It dies after two and a half minutes and takes its next step half a minute later. A minute after that the first
#: interval of the new attempt is told.
SECONDS = 280.0
WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was asked while its operators lived: the simulator's sums in seconds, the run's account, people's table."""

    nothing_yet: bool
    truth: dict[str, float]
    run: dict[str, Any]
    table: str


class JobThatWentOn:
    """whichrank's commands on topics of their own on the shared broker. ``end`` from any thread."""

    def __init__(self, kafka: Kafka, prefix: str, folder: Path) -> None:
        self.folder, self.address, self.prefix = folder, kafka.address, prefix
        self.environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        self.mine = {"WHICHRANK_KAFKA": kafka.address, "WHICHRANK_KAFKA_TOPIC_PREFIX": prefix}
        self.running: list[subprocess.Popen[bytes]] = []

    def watch(self) -> Seen:
        """Takes five minutes, nearly all of them asleep."""
        assert self._run("topics", "--partitions", "2").returncode == 0
        nothing_yet = self._goodput() is None
        self._start("process", "--state", self.folder / "state", "--instance", "one", "--health", "")
        words = ("--scenario", "process_killed", "--ranks", "4", "--seed", "1", "--minutes", str(SECONDS / 60))
        simulated = self._start("simulate", *words, "--kafka", self.address, "--json")
        assert simulated.wait(SECONDS + WAIT_S) == 0, (self.folder / "simulate.log").read_text()
        (truth,) = json.loads((self.folder / "simulate.out").read_text())["sums_s"].values()

        def went_on() -> bool:
            run = self._goodput()
            return run is not None and any(each["went_on"] for each in run["interruptions"])

        eventually(went_on, what="the findings tell of the restart", timeout_s=WAIT_S)
        run = self._goodput()
        assert run is not None
        people = self._run("goodput", "--kafka", self.address)
        assert people.returncode == 0, people.stderr
        return Seen(nothing_yet=nothing_yet, truth=truth, run=run, table=people.stdout)

    def end(self) -> None:
        for command in self.running:
            command.kill()
            command.wait()

    def _run(self, *words: str, told: bool = True) -> subprocess.CompletedProcess[str]:
        """told: whether the environment names the broker and the prefix."""
        return subprocess.run(
            [WHICHRANK, *words],
            env={**self.environment, **(self.mine if told else {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def _start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / f"{words[0]}.out").open("wb") as out, (self.folder / f"{words[0]}.log").open("wb") as log:
            started = subprocess.Popen(
                [WHICHRANK, *words], env={**self.environment, **self.mine}, cwd=self.folder, stdout=out, stderr=log
            )
        self.running.append(started)
        return started

    def _goodput(self) -> dict[str, Any] | None:
        """The only run's account; None while nothing is told. By flags alone."""
        words = ("--kafka", self.address, "--set", f"kafka_topic_prefix={self.prefix}")
        found = self._run("goodput", *words, "--json", told=False)
        if found.returncode:
            assert "no second is accounted for" in found.stderr
            return None
        (run,) = json.loads(found.stdout)["runs"]
        return dict(run)
