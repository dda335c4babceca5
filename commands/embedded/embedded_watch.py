"""Agent, bus and operators embedded beside one command, in the thread that calls ``turn``.

Owns the order of things: look at the rings, append to the capture, run the operators, hand out what they concluded.
Never raises into the caller's loop for anything that storage, a ring or an operator does: it says one line, keeps what
still works, and the command goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...agents.base.priority import Priority
from ...agents.collectors.collector_plans import node_plans
from ...agents.collectors.options import NodeOptions
from ...agents.collectors.schedule import NodeTelemetry
from ...agents.job_agent import Agent
from ...agents.node_reports import NodeReports
from ...agents.privacy.redaction_filter import RedactionFilter
from ...processors.runner import EmbeddedRunner
from ...telemetry.missing_packages import in_words
from ...telemetry.otlp import encode_payloads
from ...telemetry.records import Event, Identity, Incident, Record
from ...telemetry.topics import KEY_OF_PEOPLE, TOPIC_FINDINGS, TOPIC_METRICS, TOPIC_SPANS
from ...telemetry.vocabulary import EventName
from ...transport.bus import TOPIC_BLOCKS, TOPIC_LOGS
from ...transport.embedded import EmbeddedBus
from ..multi_node.peers import NoPeers, Peers
from ..run_folder.incident_log import IncidentLog
from ..run_folder.labels import finding_of, read_labels
from ..run_folder.losses import AGENT_LOSSES, Losses
from ..run_folder.maintenance_plans import finding_of_odd_line, finding_of_plan, read_plans
from ..run_folder.run_directory import RunDirectory
from .embedded_agent import agent_settings
from .embedded_operators import INPUT_TOPICS, make_operators, wanted_metrics
from .near_end import NearEnd

if TYPE_CHECKING:
    from ...agents.publish.kafka_publisher import KafkaPublisher

logger = logging.getLogger("whichrank.commands")

#: How often operators and view get their turn; the agent knows itself when its next look is due.
TURN_S = 0.1
#: Between looks at what people have said.
SAID_PERIOD_S = 1.0
#: After the command ended badly: how long conclusions that are held back for a rival explanation may take, and for how
#: long at least what the node has to say of it (its kernel, its driver) is waited for where nothing is held back.
SETTLE_S, LEAST_SETTLE_S = 1.0, 0.5


class EmbeddedWatch:
    """Watches one ring directory and concludes incidents."""

    def __init__(
        self,
        *,
        directory: RunDirectory,
        ring_directory: Path,
        identity: Identity,
        on_incident: Callable[[Incident], None],
        on_published: Callable[[str, str, bytes], None],
        on_foreign_incident: Callable[[Incident], None] = lambda incident: None,
        say: Callable[[str], None],
        capture_limit_bytes: int | None = None,
        peers: Peers | None = None,
        publisher: KafkaPublisher | None = None,
        on_request: Callable[[str, bytes], None] | None = None,
        job_name: str = "",
        collect: NodeOptions | None = None,
        since_ns: int | None = None,
    ) -> None:
        """Raises OSError when capture or incidents.jsonl cannot be created.

        capture_limit_bytes: the oldest of the capture goes beyond this size; None keeps all.
        peers: the instances on the job's other nodes; None: it has one node.
        publisher: gets everything that is told of this node as well, started and closed by the caller.
        on_request: takes each request (topic, OTLP) of spans, and of what collectors measured; it must return at once.
        job_name: what people call the job, for what goes to Kafka, or to ``on_request``.
        collect: which of this node's own signals are collected; None: none is.
        since_ns: monotonic, when the command began: its ranks may be dead before we have loaded. None: now.
        """
        self._identity = replace(identity, attempt="")  # events of the job itself are of no attempt
        self._peers: Peers = peers or NoPeers()
        self._gate = RedactionFilter()  # of what is told here; agent and collectors have their own
        self._publisher, self._on_request = publisher, on_request
        self._on_incident = on_incident
        self._on_published = on_published
        self._on_foreign_incident = on_foreign_incident
        self._say = say
        self._said: set[str] = set()
        self._folder = directory.path
        self._labels_read, self._plans_read, self._said_due = 0, 0, 0.0
        self._broken: str | None = None
        self._bus = EmbeddedBus(directory.capture, retain_bytes=capture_limit_bytes, report=self._say_once)
        self._log = IncidentLog(directory.incidents)
        self._runner = self._runner_of(directory.state)
        self._agent = self._agent_of(directory.evidence, ring_directory, identity, job_name, collect, since_ns)
        self._near_end = NearEnd(ring_directory, report=logger.info)
        self._reports = self._reports_of(collect)
        self._reports.start()

    def _agent_of(
        self,
        evidence: Path,
        rings: Path,
        identity: Identity,
        job_name: str,
        collect: NodeOptions | None,
        since_ns: int | None,
    ) -> Agent:
        publisher = self._publisher
        settings = agent_settings(
            publishes=publisher is not None,
            tells_people=self._on_request is not None,
            kernel_log=collect.kernel_log if collect is not None else "",
            withheld=collect.withheld if collect is not None else frozenset(),
        )
        return Agent(
            ring_directory=rings,
            publish=self._publish_of_agent,
            identity=identity,
            evidence_directory=evidence,
            settings=settings,
            publish_ranked=self._publish_ranked if publisher is not None else None,
            more_health=(lambda: publisher.stats) if publisher is not None else dict,
            job_name=job_name if settings.tell_people else "",
            since_ns=since_ns,
        )

    def _runner_of(self, state: Path) -> EmbeddedRunner:
        """state: the file of the operators' state."""
        return EmbeddedRunner(
            self._bus,
            state,
            make_operators(),
            self._deliver,
            live=True,
            report=self._say_once,
            input_topics=INPUT_TOPICS,
            metrics=wanted_metrics(),
        )

    def _reports_of(self, collect: NodeOptions | None) -> NodeReports:
        """What this node's collectors see, as it goes out."""
        return NodeReports(
            NodeTelemetry(
                node_plans(collect, lambda: self._agent.rank_processes) if collect is not None else (),
                report=logger.info,  # a job's own terminal is no place for what a machine cannot tell
            ),
            self._identity,
            self._publish_of_node,
            rank_processes=lambda: self._agent.rank_processes,
            request_bytes=self._agent.settings.request_bytes,
            withheld=self._agent.settings.withheld,
            on_happening=self._near_end.take,
            metrics=wanted_metrics() if self._publisher is None and self._on_request is None else None,
        )

    @property
    def broken(self) -> str | None:
        """Why nothing is watched any more; None while it works."""
        return self._broken

    def wait(self) -> None:
        """Sleeps until the next turn is due or a rank's process changes state."""
        if self._broken is None:
            self._agent.wait(TURN_S)
        else:
            time.sleep(TURN_S)

    def turn(self) -> None:
        """Looks once, and concludes what can be concluded.

        Never raises: an error sets ``broken``, is said, and ends the watch.
        """
        if self._broken is not None:
            return
        try:
            self._agent.poll()
            self._reports.turn()
            self._near_end.look(time.time())
            self._peers.turn(self)
            self._take_what_people_say()
            self._runner.drain()
        except Exception as error:  # edge: whatever fails here must not reach the command
            self._broken = in_words(error, "agent")
            self._say_once(f"stopped watching: {self._broken}; the command goes on")
            self._peers.abandon()

    def _take_what_people_say(self) -> None:
        """Labels of this run's incidents, and plans, since the last look."""
        now = time.monotonic()
        if now < self._said_due:
            return
        self._said_due = now + SAID_PERIOD_S
        odd: list[tuple[str, str]] = []

        def note(place: str, why: str) -> None:
            self._say_once(f"{self._folder}/{place}: {why}; passed over: `whichrank plan` and `label` write such lines")
            odd.append((place, why))

        try:
            labels, self._labels_read = read_labels(self._folder, self._labels_read, note)
            plans, self._plans_read = read_plans(self._folder, self._plans_read, note)
        except OSError as error:
            self._say_once(f"{error.filename}: {error.strerror or error}; what people say is not read")
            return
        cluster = self._identity.cluster
        said = [finding_of(label, label.cluster or cluster) for label in labels]
        said += [finding_of_plan(plan, cluster) for plan in plans]
        said += [finding_of_odd_line(place, why, cluster, time.time_ns()) for place, why in odd]
        for finding in said:
            self._publish(TOPIC_FINDINGS, KEY_OF_PEOPLE, encode_payloads([finding]))

    def tell(self, name: EventName, *, mono_ns: int = 0, **attributes: str | int) -> None:
        """Puts an event of the job itself on the bus. mono_ns: when it happened; 0: now. Nothing once broken."""
        if self._broken is None:
            event = self._event(self._identity, name, attributes, mono_ns)
            for topic, priority in ((TOPIC_BLOCKS, Priority.RANK_EVENTS), (TOPIC_LOGS, Priority.COPIES)):
                value = encode_payloads([event], is_copy=topic == TOPIC_LOGS)
                self._gate.publish_ranked(self._publish_of_node)(topic, self._identity.job, value, priority)

    # --- for the instances on other nodes (peers.Bench) ---------------------------------------------------------------
    def append(self, topic: str, key: str, value: bytes) -> None:  # it has come through that node's gate
        """Puts a message of another node on the bus; its texts have come through that node's gate."""
        self._publish(topic, key, value)

    def tell_of(self, node: str, name: EventName, **attributes: str | int) -> None:
        """Puts an event about another node's instance on the bus, as this one has seen it."""
        event = self._event(replace(self._identity, node=node), name, attributes)
        for topic in (TOPIC_BLOCKS, TOPIC_LOGS):
            value = encode_payloads([event], is_copy=topic == TOPIC_LOGS)
            self._gate.publish(self._publish)(topic, self._identity.job, value)

    def show(self, incident: Incident) -> None:
        """Shows an incident that is judged, and kept, elsewhere."""
        self._on_foreign_incident(incident)

    def request(self, event: Event) -> None:
        """Hands the agent a request for evidence that the judge sent to this node."""
        self._agent.request(event)

    def rename(self, node: str) -> None:
        """Lets agent and collectors go on under another name, as the judge knows another node of theirs."""
        self._identity = replace(self._identity, node=node)
        self._agent.rename_node(node)
        self._reports.rename_node(node)

    def announce(self) -> None:
        """Lets the agent tell again which ranks are here, for who has lost the beginning."""
        self._agent.announce()

    def wait_for_peers(self, seconds: float) -> None:
        """Turns on for so long at most, until no other node is worth waiting for, then takes leave of them.

        After this node's command has ended: others end in the same moment, if they do.
        """
        deadline = time.monotonic() + seconds
        while self._broken is None and not self._peers.may_end() and time.monotonic() < deadline:
            self.turn()
            time.sleep(TURN_S)
        self._peers.leave(self)

    def _event(
        self, identity: Identity, name: EventName, attributes: Mapping[str, str | int], mono_ns: int = 0
    ) -> Event:
        now_ns = time.monotonic_ns()
        mono_ns = mono_ns or now_ns
        time_ns = time.time_ns() - (now_ns - mono_ns)
        return Event(name=name, identity=identity, time_ns=time_ns, mono_ns=mono_ns, attributes=attributes)

    def settle(self, abnormal: bool) -> None:
        """Turns on after the command ended, for the ranks' last events and the conclusions that waited for them.

        abnormal: it ended with an error, so there is more to wait for.
        """
        began = time.monotonic()
        deadline = began + (SETTLE_S if abnormal else TURN_S)
        while True:
            self.turn()
            now = time.monotonic()
            if now >= deadline or self._broken is not None:
                return
            if now >= began + LEAST_SETTLE_S and not self._decides_within(deadline - now):
                return
            time.sleep(TURN_S)

    def _decides_within(self, seconds: float) -> bool:
        _, due_ns = self._runner.timers()
        return due_ns is not None and due_ns <= self._bus.now_ns() + int(seconds * 1e9)

    def close(self) -> None:
        """Flushes and closes all parts, each in its turn; says what failed."""
        parts = (
            self._reports.close,
            self._agent.close,
            self._drain_rest,
            self._peers.close,
            self._runner.close,
            self._bus.close,
            self._log.close,
        )
        for close in parts:
            try:
                close()
            except Exception as error:  # edge: the command has ended, each part still gets its turn
                self._say_once(f"at the end: {type(error).__name__}: {error}")

    def losses(self, started_ns: int) -> Losses:
        """Counts of what was dropped, lost or not written; final after ``close``. started_ns: Unix, of the run."""
        begins_ns = started_ns
        if self._bus.trimmed:
            try:
                _, begins_ns = self._bus.first_kept() or (0, begins_ns)
            except OSError as error:
                self._say_once(f"{self._bus.directory}: cannot be read: {error.strerror or error}")
        health = self._agent.health
        agent = {name: getattr(health, name) for name in AGENT_LOSSES}
        return Losses(
            trimmed_messages=self._bus.trimmed,
            capture_begins_s=max(0.0, (begins_ns - started_ns) / 1e9),
            unsaved_messages=self._bus.dropped,
            unjudged_messages=self._bus.missed,
            unreadable_records=self._runner.broken,
            contained_records=self._runner.contained + self._runner.muted,
            failed_commits=self._runner.failed_commits,
            unwritten_revisions=self._log.unwritten,
            agent={**agent, **health.drops},
            peers=self._peers.losses,
        )

    def _drain_rest(self) -> None:
        if self._broken is None:
            self._runner.drain()

    def _publish_own(self, topic: str, key: str, value: bytes) -> None:
        self._publish(topic, key, value)
        self._peers.published(topic, key, value)

    def _publish_of_agent(self, topic: str, key: str, value: bytes) -> None:
        """What the agent tells people alone is nothing for the operators."""
        if topic == TOPIC_SPANS:
            self._tell_endpoint(topic, value)
        elif topic != TOPIC_METRICS:
            self._publish_own(topic, key, value)

    def _publish_ranked(self, topic: str, key: str, value: bytes, priority: Priority) -> None:
        assert self._publisher is not None
        self._publisher.publish(topic, key, value, priority)
        if topic == TOPIC_SPANS:
            self._tell_endpoint(topic, value)

    def _tell_endpoint(self, topic: str, value: bytes) -> None:
        if self._on_request is not None:
            self._on_request(topic, value)

    def _publish_of_node(self, topic: str, key: str, value: bytes, priority: Priority) -> None:
        self._publish_own(topic, key, value)
        if topic == TOPIC_METRICS:
            self._tell_endpoint(topic, value)
        if self._publisher is not None:
            self._publisher.publish(topic, key, value, priority)

    def _publish(self, topic: str, key: str, value: bytes) -> None:
        try:
            self._bus.append(topic, key, value)
        except OSError as error:  # said once by the bus, which keeps the message in memory and goes on
            self._say_once(f"{error.filename or 'capture'}: {error.strerror or error}")
        self._on_published(topic, key, value)

    def _deliver(self, record: Record) -> None:
        payload = record.payload
        if isinstance(payload, Incident):
            try:
                self._log.append(payload)
            except OSError as error:
                self._say_once(f"{self._log.path}: {error.strerror}; incidents are kept until there is room")
            self._on_incident(payload)
            self._peers.concluded(payload)
        elif (
            isinstance(payload, Event)
            and payload.name is EventName.EVIDENCE_REQUEST
            and not self._peers.request(payload)
        ):
            self._agent.request(payload)

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)


def with_job(identity: Identity, job: str) -> Identity:
    """The identity with this job's id, which is its run too where that is unknown."""
    return replace(identity, job=job, run=identity.run or job)
