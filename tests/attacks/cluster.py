"""Two nodes whose agents are root's, users with rings on them, and one judge for all: the product's own parts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.attacks.users import living_as
from whichrank.agents.base.priority import Priority
from whichrank.agents.node_agent import NodeAgent
from whichrank.commands.respond.hooks import slurm
from whichrank.commands.respond.planning.acts import ActionPlan, Refusal
from whichrank.commands.respond.planning.plan import Policy, plan
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.entity.operator import EntityOperator
from whichrank.processors.job.operator import JobOperator
from whichrank.processors.operator import Operator
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.incident_document import IncidentDocument
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Event, Identity, Incident, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.embedded import EmbeddedBus

#: What ``respond --act --hooks slurm`` may do with its defaults.
POLICY = Policy(
    actions=frozenset({"retry", "restart", "restart_without_node", "drain_after_job"}),
    scopes=frozenset({"rank", "gpu", "node", "link"}),
    confidence=0.9,
    max_age_s=900.0,
    hooks={"slurm": slurm.Slurm.can},
)


class Cluster:
    """Everything that two agents publish goes to one judge."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus = EmbeddedBus(folder / "capture")
        self.documents: list[IncidentDocument] = []
        self.requests: list[Event] = []
        operators: list[Operator] = [JobOperator(listens=True), EntityOperator(), ClusterOperator()]
        self.runner = EmbeddedRunner(self.bus, folder / "state.sqlite", operators, self._take, live=True)
        self.agents: dict[str, NodeAgent] = {}
        self.events: list[Event] = []

    def node(self, name: str) -> Path:
        """A node whose agent watches from now on; where its users' folders are."""
        rings = self.folder / name
        rings.mkdir()
        rings.chmod(0o1777)
        own = Identity(cluster="c", node=name)
        self.agents[name] = NodeAgent(rings=rings, own=own, publish_ranked=self._publish)
        return rings

    def _publish(self, topic: str, key: str, value: bytes, priority: Priority) -> None:
        if topic == TOPIC_BLOCKS:
            self.events += [each for each in decode_logs(topic, value) if isinstance(each, Event)]
            self.bus.append(topic, key, value)

    def _take(self, record: Record) -> None:
        if isinstance(record.payload, Incident):
            self.documents.append(read_incident(record.payload.document))
        elif isinstance(record.payload, Event):
            self.requests.append(record.payload)

    def tell(self, *payloads: bytes) -> None:
        """More for the judge, as an agent of root's sends it."""
        for value in payloads:
            self.bus.append(TOPIC_BLOCKS, "key", value)

    def until(self, condition: Callable[[], object], patience_s: float = 15.0) -> bool:
        """Lets agents and judge work until it holds, or the patience is at its end."""
        end_s = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            for agent in self.agents.values():
                agent.turn()
            self.runner.drain()
            time.sleep(0.05)
        return True

    def started(self) -> list[Event]:
        return [event for event in self.events if event.name is EventName.RANK_STARTED]

    def last(self) -> dict[str, IncidentDocument]:
        """Each incident's last revision."""
        return {document.id: document for document in self.documents}

    def plans(self) -> list[ActionPlan | Refusal]:
        """What respond would do for each revision, by its defaults."""
        return [plan(document, POLICY, age_s=0.0) for document in self.documents]

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close(2.0)
        self.runner.close()


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def rank_of(uid: int, rings: Path, rank: int, world: int, **claims: str) -> Iterator[int]:
    """A rank of that user with a ring of his own, in a folder of his own; it lives until the end of the block."""
    job = rings / f"{uid}-job"
    if not job.exists():
        job.mkdir()
        os.chown(job, uid, uid)

    def act() -> None:
        writer = RingWriter.create(
            job,
            rank=rank,
            local_rank=rank,
            world_size=world,
            identity={"launcher_pid": os.getppid(), "launcher_start_ticks": 7, "host": "here", **claims},
        )
        writer.define_group(
            {"name": "default_pg", "ranks": f"0-{world - 1}", "size": world, "backend": "gloo", "ordinal": 0,
             "timeout_s": 1800}
        )  # fmt: skip
        globals()["_ring"] = writer  # its lock is held as long as it lives

    with living_as(uid, act) as pid:
        yield pid
