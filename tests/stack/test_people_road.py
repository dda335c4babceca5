"""Real ranks, a real agent and real operators, and what people then see in Prometheus, VictoriaLogs and Jaeger."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess
from tests.stack.parts.service import eventually
from tests.stack.parts.whole_stack import Stack
from tests.stack.test_road_for_people import fresh_job, publish
from whichrank.agents.base.priority import Priority
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.job_agent import Agent
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.observability_export.processor_export import PipelineCounts, ProcessorExporter
from whichrank.processors.operator import Operator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.records import Identity, Incident, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_SPANS
from whichrank.telemetry.trace_identity import attempt_word, step_trace_id
from whichrank.telemetry.vocabulary import Phase
from whichrank.transport.embedded import EmbeddedBus

FOR_PEOPLE = (TOPIC_SPANS, TOPIC_METRICS, TOPIC_LOGS)
RANKS = 2


class Job:
    """Two ranks, and agents of their node one after the other."""

    def __init__(self, directory: Path, stack: Stack) -> None:
        self.name = fresh_job()
        self._stack = stack
        self._rings = directory
        self._rings.mkdir(mode=0o700)
        self.ranks = [RankProcess(self._rings, rank, RANKS) for rank in range(RANKS)]
        self.sent: dict[str, list[bytes]] = {}
        for rank in self.ranks:
            rank.say(f"token {self.name}")

    def agent(self) -> Agent:
        return Agent(
            ring_directory=self._rings,
            publish=None,
            publish_ranked=self._publish,
            identity=Identity(cluster="lab", job=self.name, run=self.name, node="node-a"),
            job_name="llama",
            settings=AgentSettings(tell_people=True, metrics_period_s=0.5, spans_period_s=0.5, take_stacks=False),
        )

    def _publish(self, topic: str, key: str, value: bytes, priority: Priority) -> None:
        self.sent.setdefault(topic, []).append(value)
        if topic in FOR_PEOPLE:
            publish(self._stack.kafka, topic, value)

    def make_steps(self, count: int) -> None:
        for rank in self.ranks:
            for _ in range(count):
                rank.say(f"phase {int(Phase.FORWARD)}")
                rank.say("collectives 3")
                rank.say("step 2.5")

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()


@pytest.fixture
def job(stack: Stack, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path / "rings", stack)
    yield made
    made.end()


def poll(agent: Agent, until: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + 120
    while not until():
        assert time.monotonic() < deadline_s, what
        agent.wait(0.05)
        agent.poll()


def numbers(stack: Stack, promql: str) -> dict[str, float]:
    """The answer by rank."""
    return {row["metric"]["whichrank_rank"]: float(row["value"][1]) for row in stack.prometheus.query(promql)}


def test_what_ranks_do_answers_in_promql_over_a_restart_of_the_agent(stack: Stack, job: Job) -> None:
    mine = f'{{whichrank_job_id="{job.name}"}}'

    def counted(metric: str, by_rank: float) -> Callable[[], bool]:
        question = f"sum by (whichrank_rank) (histogram_count({metric}{mine}))"
        return lambda: numbers(stack, question) == {"0": by_rank, "1": by_rank}

    first = job.agent()
    poll(first, lambda: first.health.rings_found == RANKS, "the agent finds the rings")
    job.make_steps(5)
    first.close()
    eventually(counted("whichrank_step_duration_seconds", 5), what="five steps of each rank are counted")
    eventually(counted("whichrank_collective_duration_seconds", 15), what="and their collectives")
    forward = f'whichrank_step_phase_duration_seconds{{whichrank_job_id="{job.name}", whichrank_step_phase="forward"}}'
    assert numbers(stack, f"histogram_count({forward})") == {"0": 5, "1": 5}
    waits = numbers(stack, f"whichrank_rank_wait_seconds_total{mine}")
    assert set(waits) == {"0", "1"}
    assert min(waits.values()) > 0
    (row, _) = stack.prometheus.query(f"whichrank_rank_step{mine}")
    assert (row["metric"]["job"], row["metric"]["instance"]) == ("llama", "node-a")

    second = job.agent()
    poll(second, lambda: second.health.rings_found == RANKS, "the second agent finds the rings")
    job.make_steps(2)
    second.close()
    eventually(counted("whichrank_step_duration_seconds", 2), what="the second agent counts from its own begin")
    assert set(numbers(stack, f"resets(whichrank_rank_wait_seconds_total{mine}[10m])").values()) <= {0.0, 1.0}
    assert not [reason for reason in first.health.drops + second.health.drops if reason != "rings_of_the_past"]


def test_a_death_is_told_with_its_trace_and_its_gauge_ends(stack: Stack, job: Job, tmp_path: Path) -> None:
    agent = job.agent()
    poll(agent, lambda: agent.health.rings_found == RANKS, "the agent finds the rings")
    job.make_steps(3)
    poll(agent, lambda: TOPIC_SPANS in job.sent, "spans are sent")
    job.ranks[0].say("enter")
    job.ranks[1].kill(signal.SIGKILL)
    poll(agent, lambda: agent.health.rings_closed, "the death is told")
    agent.close()

    people = ProcessorExporter(cluster="lab", instance="processors-0", node="node-p", started_ns=time.time_ns())
    documents: list[Any] = []

    def on_output(record: Record) -> None:
        if isinstance(record.payload, Incident):
            documents.append(record.payload.document)
            people.incident(read_incident(record.payload.document), record.stamp_ns, time.time_ns())

    bus = EmbeddedBus(tmp_path / "bus")
    operators: list[Operator] = [JobOperator(), ClusterOperator()]
    runner = EmbeddedRunner(
        bus, None, operators, on_output, live=True, on_input=lambda record: people.see(record.payload, record.stamp_ns)
    )
    for value in job.sent[TOPIC_BLOCKS]:
        bus.append(TOPIC_BLOCKS, job.name, value)
    eventually(lambda: runner.drain() >= 0 and bool(documents), what="the operators conclude")
    assert (documents[0]["kind"], documents[0]["job"]["name"]) == ("rank_died", "llama")
    tell(stack, people)
    runner.close()
    bus.close()

    mine = f'whichrank_incident_active{{whichrank_job_id="{job.name}"}}'
    eventually(lambda: bool(stack.prometheus.query(f"{mine} == 1")), what="the gauge answers")
    (gauge,) = stack.prometheus.query(f"{mine} == 1")
    assert gauge["metric"]["whichrank_incident_suspect_rank"] == "1"

    told: list[dict[str, str]] = []

    def is_told() -> bool:
        told[:] = stack.logs.query(f'whichrank.job.id:="{job.name}" whichrank.incident.state:=open')
        return bool(told)

    eventually(is_told, what="the event is in VictoriaLogs")
    trace_id = told[0]["trace_id"]
    step = documents[0]["first_bad"]["step"]
    assert trace_id == step_trace_id(job.name, attempt_word(launch="", token=job.name, restart_count=0), step).hex()

    def spans() -> list[dict[str, Any]]:
        return stack.jaeger.spans_of_trace(trace_id)

    eventually(lambda: bool(spans()), what="the line leads to spans")
    waits = [span for span in spans() if span["name"] == "all_reduce"]
    assert [span["resource"]["whichrank.rank"] for span in waits] == ["0"], "the innocent, who waits for the dead"

    resolved = {**documents[-1], "revision": 99, "change": "resolved", "state": "resolved"}
    resolved["times"] = {**resolved["times"], "resolved": time.time()}
    people.incident(read_incident(resolved), 0, time.time_ns())
    tell(stack, people)
    eventually(lambda: bool(stack.prometheus.query(f"{mine} == 0")), what="the gauge goes to zero")

    def life() -> list[dict[str, Any]]:
        return [span for span in stack.jaeger.spans_of_job(job.name) if span["name"] == "incident rank_died"]

    eventually(lambda: bool(life()), what="its life is a span")
    (span,) = life()
    assert span["links"] == [trace_id]


def tell(stack: Stack, people: ProcessorExporter) -> None:
    for telling in people.take(time.time_ns(), PipelineCounts):
        publish(stack.kafka, telling.topic, telling.value)
    assert people.failures == 0
