"""From a rank that is killed to what people see, by the commands themselves and the parts of compose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess
from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from tests.stack.parts.whole_stack import Stack, assemble
from whichrank.telemetry.vocabulary import Phase

WHICHRANK = Path(sys.executable).with_name("whichrank")
RANKS = 2


class Road:
    """Commands on a broker of their own, and what stands behind the bridge."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "WHICHRANK_KAFKA": kafka.address, "PYTHONWARNINGS": "ignore"}
        made = subprocess.run(
            [WHICHRANK, "topics", "--partitions", "2"], env=self.environment, cwd=folder, check=False, timeout=180
        )
        assert made.returncode == 0
        self.stack: Stack = assemble(kafka, folder, make_topics=False)
        self.stack.start()
        self.commands: list[subprocess.Popen[bytes]] = []
        self.rings = folder / "rings" / "whole-road"
        self.rings.mkdir(parents=True, mode=0o700)
        self.ranks = [RankProcess(self.rings, rank, RANKS) for rank in range(RANKS)]

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / f"{words[0]}.log").open("wb") as log:
            command = [WHICHRANK, *words]
            started = subprocess.Popen(
                command, env=self.environment, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )
        self.commands.append(started)
        return started

    def said(self, word: str) -> str:
        return (self.folder / f"{word}.log").read_text()

    def asked(self, promql: str) -> list[dict[str, Any]]:
        return self.stack.prometheus.query(promql)

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()
        for command in self.commands:
            command.kill()
            command.wait()
        self.stack.kill()


@pytest.fixture
def road(fresh_kafka: Callable[..., Kafka], tmp_path: Path) -> Iterator[Road]:
    made = Road(fresh_kafka(), tmp_path)
    yield made
    made.end()


def test_a_killed_rank_is_seen_by_everybody(road: Road) -> None:
    road.start("process", "--state", road.folder / "state", "--instance", "one", "--health", "")
    agent = road.start("agent", "--rings", road.folder / "rings", "--data", road.folder / "data")
    eventually(lambda: "jobs here:" in road.said("agent"), what="the agent finds the job")
    for rank in road.ranks:
        rank.say("token feed")
        for _ in range(5):
            rank.say(f"phase {int(Phase.FORWARD)}")
            rank.say("collectives 3")
            rank.say("step 2.5")
    eventually(lambda: len(road.asked("whichrank_rank_step")) == RANKS, what="metrics of both ranks")
    road.ranks[0].say("enter")
    road.ranks[1].kill(signal.SIGKILL)

    eventually(lambda: bool(road.asked("whichrank_incident_active == 1")), what="the gauge answers")
    (gauge,) = road.asked("whichrank_incident_active == 1")
    told = gauge["metric"]
    assert (told["whichrank_incident_kind"], told["whichrank_incident_suspect_rank"]) == ("rank_died", "1")

    def counted() -> dict[str, str]:
        rows = road.asked("sum by (whichrank_rank) (histogram_count(whichrank_step_duration_seconds))")
        return {row["metric"]["whichrank_rank"]: row["value"][1] for row in rows}

    eventually(lambda: counted() == {"0": "5", "1": "5"}, what="the steps of both are counted, of the dead one, too")

    events: list[dict[str, str]] = []
    jaeger, job = road.stack.jaeger, told["whichrank_job_id"]

    def opened() -> bool:
        events[:] = road.stack.logs.query(f'whichrank.job.id:="{job}" whichrank.incident.state:=open')
        return bool(events)

    eventually(opened, what="the event is in VictoriaLogs")
    trace_id = events[0]["trace_id"]

    def of_bad_step() -> list[dict[str, Any]]:
        return jaeger.spans_of_trace(trace_id)

    eventually(lambda: bool(of_bad_step()), what="the event leads to spans")
    assert {span["resource"]["whichrank.rank"] for span in of_bad_step()} == {"0"}, "who waits for the dead"
    steps = [span for span in jaeger.spans_of_job(job) if span["name"] == "step"]
    assert len({(span["traceId"], span["spanId"]) for span in steps}) == 5 * RANKS
    assert len({span["traceId"] for span in steps}) == 5, "both ranks of a step are one trace"

    eventually(lambda: bool(road.asked("whichrank_pipeline_records_in_total > 0")), what="the pipeline tells of itself")
    (dropped,) = road.asked("sum(whichrank_pipeline_drops_total)")
    assert dropped["value"][1] == "0"
    assert not road.asked("whichrank_agent_drops_total > 0")
    agent.terminate()
    assert agent.wait(timeout=60) == 0
