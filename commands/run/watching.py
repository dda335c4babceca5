"""The loop of ``whichrank run`` from the start of the command to the summary: look, conclude, show.

Imported only after the command was started, because numpy and the rest take a while to load.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ...agents.base.priority import Priority
from ...telemetry.identity import read_pod_labels, resolve_identity, resolve_job_name
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident
from ...telemetry.otlp import decode_logs
from ...telemetry.records import Block, Event, Incident
from ...telemetry.redaction import redact
from ...telemetry.ring_layout import cut_text
from ...telemetry.vocabulary import Bucket, EventName, IncidentState, Severity
from ...transport.bus import TOPIC_BLOCKS, TOPIC_LOGS
from ..embedded.embedded_watch import EmbeddedWatch, with_job
from ..incident_text.incident_panel import incident_panel
from ..incident_text.incident_view import printable
from ..live_view.job_status import JobStatus, describe_ranks
from ..live_view.status_view import JobView, JsonView, LineView, LiveView
from ..multi_node.peer_setup import PeerSetup
from ..multi_node.peers import OTHERS_END_S, FollowerPeers, Peers, join_peers
from ..otlp_out.environment import use_endpoint
from ..run_folder.losses import describe_losses
from ..run_folder.run_description import PeerRole, RunDescription
from ..run_folder.run_directory import RunDirectory, remove_ring_directory
from ..settings.settings import RunSettings, ViewChoice
from ..supervise.nodes import SUPERVISED
from ..support.stderr import say
from .foreground_command import ForegroundCommand
from .job import Job, describe_run
from .otlp_export import OtlpExport
from .supervised import EXIT_TERMINATED, AnySupervisor, drained, make_supervisor, start_next, tell_start

if TYPE_CHECKING:
    from ...agents.publish.kafka_publisher import KafkaPublisher

#: Ranks of other nodes that are not seen by then are told of.
UNSEEN_S = 15.0
#: With ``--kafka``: what it has not taken, in the run's folder, and how long the end waits for it.
SPOOL_FOLDER, SPOOL_BYTES, KAFKA_PATIENCE_S = "spool", 256 << 20, 3.0
#: Longer names of jobs are cut.
MAX_NAME = 120
#: Signals by which people, not schedulers, end a job.
FROM_PEOPLE = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}


def watch(
    child: ForegroundCommand,
    job: Job,
    directory: RunDirectory,
    rings: Path,
    settings: RunSettings,
    started_ns: int,
    setup: PeerSetup,
) -> None:
    """Watches the command until it has ended and everything about it is concluded, saved and shown."""
    peers = join_peers(setup, job.id, say)
    identity = with_job(resolve_identity(os.environ, hostname=socket.gethostname()), job.id)
    if setup.several:
        identity = replace(identity, node=peers.node if isinstance(peers, FollowerPeers) else setup.node)
    name = name_job(settings.job_name, job.script)
    description = describe_run(job, rings, name=name, identity=identity, pid=child.pid, started_ns=started_ns)
    if setup.several:
        role = PeerRole(role=setup.role.value, nodes=setup.plan.nodes, why=setup.plan.why)
        description = replace(description, peers=role)
    _write_run(directory, description, "written")
    running_s = (time.time_ns() - started_ns) / 1e9
    use_endpoint(settings.otlp, os.environ)  # the command has begun with its own
    shown = _Shown(_Guarded(choose_view(settings, name, running_s=running_s)), identity.node)
    publisher = start_publisher(settings, directory)
    watcher = EmbeddedWatch(
        collect=settings.node_options(),
        directory=directory,
        ring_directory=rings,
        identity=identity,
        on_incident=shown.incident,
        on_published=shown.published,
        on_foreign_incident=shown.foreign_incident,
        say=say,
        capture_limit_bytes=settings.capture_limit or None,
        peers=peers,
        publisher=publisher,
        on_request=shown.export.request if shown.export.wants_requests else None,
        job_name=name,
        since_ns=child.started_mono_ns,
    )
    tell = _Feed(publisher, shown.export, job.id).tell
    shown.supervisor = make_supervisor(
        settings, job, directory, rings, identity=identity, peers=peers, nodes=setup.plan.nodes, tell=tell
    )
    more = {SUPERVISED: 1} if shown.supervisor is not None else {}
    more |= {"nodes": setup.plan.nodes} if setup.several else {}
    tell_start(watcher, job.command, name, child.pid, **more)
    _go_on(child, watcher, peers, shown, name)
    if publisher is not None:
        end_publisher(publisher)
    shown.close()
    _put_away(rings, shown, keep=settings.keep_rings or watcher.broken is not None)
    losses = watcher.losses(started_ns)
    for line in describe_losses(losses):
        say(line)
    description = replace(description, ended=time.time(), exit_code=child.exit_code, losses=losses.as_json())
    _write_run(directory, description, "updated")
    if not settings.json_lines:
        print_summary(shown.incidents, shown.foreign, shown.status, directory)


def _put_away(rings: Path, shown: _Shown, *, keep: bool) -> None:
    """Removes the rings, unless somebody still writes or reads them."""
    survivors = shown.status.living()
    if survivors:
        say(f"{describe_ranks(survivors)} still run though the command has ended; their rings stay in {rings}")
    elif not keep:
        remove_ring_directory(rings)


def _go_on(child: ForegroundCommand, watcher: EmbeddedWatch, peers: Peers, shown: _Shown, name: str) -> None:
    """To the end of the command's last attempt, and until what it has left behind is concluded."""

    def turn() -> None:
        _tell_signals(child, watcher, shown.supervisor)
        watcher.turn()
        shown.view.update(shown.status)

    while True:
        _watch_attempt(child, watcher, peers, shown, turn)
        supervisor = shown.supervisor
        if supervisor is None or not start_next(child, watcher, shown.status, supervisor, job_name=name, turn=turn):
            break
    if supervisor is not None:
        supervisor.close()
    watcher.wait_for_peers(OTHERS_END_S)
    watcher.settle(abnormal=child.exit_code != 0)
    watcher.close()


def _watch_attempt(
    child: ForegroundCommand, watcher: EmbeddedWatch, peers: Peers, shown: _Shown, turn: Callable[[], None]
) -> None:
    """To the end of the command that runs, which is then told."""
    began, told_unseen, supervisor = time.monotonic(), False, shown.supervisor
    while not child.poll():
        watcher.wait()
        turn()
        if supervisor is not None:
            supervisor.turn(child.pid, shown.status.attempt)
        if not told_unseen and peers.is_partial() and time.monotonic() - began > UNSEEN_S:
            told_unseen = _tell_unseen(shown.status)
    turn()  # a rank that is the command itself ends with it: its exit comes before the job's
    exit_code = child.exit_code
    if supervisor is not None and supervisor.has_ended_it:
        exit_code = exit_code or EXIT_TERMINATED
    watcher.tell(EventName.JOB_FINISHED, exit_code=exit_code, signal=child.signal_number)
    watcher.turn()  # what is known by now is concluded, and goes out while the rest settles
    shown.export.flush()


def _write_run(directory: RunDirectory, description: RunDescription, verb: str) -> None:
    try:
        directory.write_run(description)
    except OSError as error:
        say(f"{directory.path}: run.json not {verb}: {error.strerror}")


def start_publisher(settings: RunSettings, directory: RunDirectory) -> KafkaPublisher | None:
    """A publisher to Kafka beside the embedded bus, started.

    None where none was asked for, or it fails, which is said.
    """
    if not settings.kafka:
        return None
    try:
        from ..services.kafka_service import make_publisher  # brings a Kafka client along

        publisher, _ = make_publisher(settings, "whichrank-run", directory.path / SPOOL_FOLDER, SPOOL_BYTES)
        publisher.start()
    except Exception as error:  # edge: the job is watched without it
        say(f"nothing goes to Kafka: {error}")
        return None
    return publisher


def end_publisher(publisher: KafkaPublisher) -> None:
    """Ends the publisher, waits some seconds for Kafka, and says what became of what was to go there."""
    from ...agents.publish.kafka_publisher import describe_stats

    publisher.close(KAFKA_PATIENCE_S)
    say(f"Kafka: {describe_stats(publisher.stats)}")


def name_job(chosen: str, script: str) -> str:
    """What people call the job: what was chosen, else the scheduler's word, else the script; cut to one line."""
    pod_labels = read_pod_labels(os.environ)
    named = chosen or resolve_job_name(os.environ, pod_labels=pod_labels, hostname=socket.gethostname())
    return cut_text(" ".join(printable(redact(named or script)).split()), MAX_NAME)


def choose_view(settings: RunSettings, job: str, running_s: float) -> JobView:
    """A live block on a terminal, lines elsewhere, JSON when asked for. running_s: since the command began."""
    if settings.json_lines:
        return JsonView()
    wants_live = settings.view is ViewChoice.live or (
        settings.view is ViewChoice.auto and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    )
    if wants_live:
        try:
            return LiveView(job, running_s=running_s)
        except OSError:
            pass
    return LineView((lambda line: None) if settings.view is ViewChoice.none else say)


def print_summary(
    incidents: dict[str, IncidentDocument],
    foreign: dict[str, IncidentDocument],
    status: JobStatus,
    directory: RunDirectory,
) -> None:
    """Prints what happened, for a person, after the command's own last line.

    foreign: incidents of the node that judges.

    A wait that was noticed and has passed is counted, and has been a line when it was; it is in ``incidents.jsonl``.
    """
    console = Console(stderr=True)
    try:
        passed = [id_ for id_, incident in incidents.items() if _is_passed_wait(incident)]
        told = {id_: incident for id_, incident in incidents.items() if id_ not in passed}
        for incident in (*foreign.values(), *told.values()):
            console.print(incident_panel(incident))
        count = sum(1 for incident in told.values() if incident.state is not IncidentState.MERGED)
        found = "no incident" if not count else f"{count} incident{'s' if count != 1 else ''}"
        if passed:
            found += f", {len(passed)} wait{'s' if len(passed) != 1 else ''} that passed"
        if foreign:
            found += f" here, {len(foreign)} where the job is judged"
        ranks = f"{len(status.ranks)} rank{'s' if len(status.ranks) != 1 else ''}"
        seen = f"{ranks} seen, step {status.step}" if status.ranks else "no rank was seen"
        say(f"{found}; {seen}; kept in {directory.path}")
    except OSError:
        pass  # nobody listens any more


def _is_passed_wait(incident: IncidentDocument) -> bool:
    """Nobody was called for it, and it ended by itself."""
    return (
        incident.severity is Severity.INFO
        and incident.bucket is Bucket.COMMUNICATION_HANG
        and incident.state is IncidentState.RESOLVED
    )


class _Shown:
    """What the person and the endpoint for telemetry are shown of what is judged here, and elsewhere."""

    def __init__(self, view: _Guarded, node: str) -> None:
        self.status = JobStatus(node=node)
        self.incidents: dict[str, IncidentDocument] = {}
        self.foreign: dict[str, IncidentDocument] = {}
        self.export = OtlpExport(os.environ)
        self.view, self._node = view, node
        self.supervisor: AnySupervisor | None = None
        self._report_problem()

    def incident(self, incident: Incident) -> None:
        document = read_incident(incident.document)
        self.incidents[document.id] = document
        if self.supervisor is not None:
            self.supervisor.saw(document)
        self.view.incident(document)
        self.export.incident(incident)

    def foreign_incident(self, incident: Incident) -> None:
        document = read_incident(incident.document)
        self.foreign[document.id] = document
        self.view.incident(document)

    def published(self, topic: str, key: str, value: bytes) -> None:
        if topic == TOPIC_BLOCKS:
            for payload in decode_logs(topic, value):
                self.status.update(payload)
                if self.supervisor is not None and isinstance(payload, Event):
                    self.supervisor.heard(payload)
                # Other nodes' instances export theirs.
                is_own = payload.identity.node in ("", self._node) if isinstance(payload, Block) else False
                if isinstance(payload, Block) and payload.name is EventName.BLOCK_STEPS and is_own:
                    self.export.step_metrics(payload)

    def close(self) -> None:
        self.view.close()
        self.export.close()
        self._report_problem()

    def _report_problem(self) -> None:
        if self.export.problem:
            say(self.export.problem)


class _Feed:
    """Events of what is done to the job: to Kafka and to the user's endpoint, never to what judges."""

    def __init__(self, publisher: KafkaPublisher | None, export: OtlpExport, job: str) -> None:
        self._publisher, self._export, self._job = publisher, export, job

    def tell(self, value: bytes) -> None:
        """Takes an OTLP request of logs."""
        if self._publisher is not None:
            self._publisher.publish(TOPIC_LOGS, self._job, value, Priority.COPIES)
        self._export.request(TOPIC_LOGS, value)


class _Guarded:
    """A view that is given up, with one line, at its first failure."""

    def __init__(self, view: JobView) -> None:
        self._view: JobView | None = view

    def incident(self, incident: IncidentDocument) -> None:
        self._call("incident", incident)

    def update(self, status: JobStatus) -> None:
        self._call("update", status)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: object) -> None:
        if self._view is None:
            return
        try:
            getattr(self._view, method)(*arguments)
        except Exception as error:  # edge: showing is never worth the watching
            self._view = None
            say(f"the view is off: {type(error).__name__}: {error}")


def _tell_unseen(status: JobStatus) -> bool:
    """Which ranks of other nodes cannot be seen; False while it is not known how many there are."""
    unseen = [rank for rank in range(status.world_size) if rank not in status.ranks]
    if not status.ranks or not unseen:
        return False
    verb = "are" if len(unseen) > 1 else "is"
    say(f"{describe_ranks(unseen)} {verb} not visible here: nothing comes from the other nodes; they are not judged")
    return True


def _tell_signals(child: ForegroundCommand, watcher: EmbeddedWatch, supervisor: AnySupervisor | None) -> None:
    for number, mono_ns in drained(child):
        origin = "user" if number in FROM_PEOPLE else "scheduler"
        watcher.tell(EventName.JOB_SIGNALLED, mono_ns=mono_ns, signal=number, origin=origin)
        if supervisor is not None:
            supervisor.signalled(number)
