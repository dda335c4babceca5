"""``whichrank process``: the processors as a service on Kafka.

The main thread reads, judges and publishes; it ends with SIGTERM after the commit at hand. SIGHUP, or a change of the
settings file, makes it read again which kinds of incidents are disabled; everything else asks for a restart.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...processors.cluster.operator import ClusterOperator
from ...processors.entity.operator import EntityOperator
from ...processors.entity.rules import load_rules
from ...processors.job.operator import JobOperator
from ...processors.runner import EmbeddedRunner
from ...processors.runner_seeds import published_incidents
from ...processors.runner_service import FIRST_PAUSE_S, LONGEST_PAUSE_S, Service
from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.incident_reading import read_incident
from ...telemetry.records import Incident, Record
from ...telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS
from ...transport.kafka import make_client
from ...transport.kafka_client import Client, KafkaTrouble
from ...transport.kafka_log import KafkaLog
from ...transport.kafka_topics import check_topics, identity_of
from ..run_folder.incident_log import IncidentLog
from ..settings.settings import ProcessOptions, SettingsError, kinds_of
from ..support.addresses import split_address
from ..support.ending import EndRequest
from ..support.gc_tuning import search_seldom
from ..support.health_server import HealthServer
from ..support.stderr import SayHandler, say
from .observability_feed import ObservabilityFeed

EXIT_USAGE = 2
DEFAULT_PORT = 8461
STATE_FILE = "state.sqlite"
SHADOW_FILE = "shadow-incidents.jsonl"
#: What is read. Blocks that somebody's collector has carried lie in the logs topic.
INPUTS = (TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS)
#: One at a time publishes; the broker refuses the others.
TRANSACTIONAL_ID = "whichrank-process"
SETTINGS_PERIOD_S = 2.0

Reload = Callable[[], ProcessOptions]
T = TypeVar("T")


def process(options: ProcessOptions, reload: Reload, settings_file: Path | None) -> int:
    """Runs ``whichrank process`` until SIGTERM or SIGINT; the exit status: 0; 2 where it cannot start.

    reload: reads the settings again, raises SettingsError; settings_file: whose change makes it do so, None none.
    """
    logger = logging.getLogger("whichrank")
    logger.addHandler(SayHandler())
    logger.propagate = False
    ending = EndRequest()
    try:
        options.state.mkdir(parents=True, exist_ok=True)
        client = make_client(options.kafka_settings(client_id=f"whichrank-process-{options.instance}"))
    except OSError as error:
        say(str(error) if isinstance(error, KafkaTrouble) else f"{options.state}: {error.strerror}")
        return EXIT_USAGE
    parts = contextlib.ExitStack()
    with parts:
        try:
            log = _when_kafka_answers(lambda: _open_log(client, options), ending)
            if log is None:
                return 0
            parts.callback(log.close)
            cluster = ClusterOperator(kinds_of(options.disable), asks_for_files=True)
            people = ObservabilityFeed(client, cluster=options.cluster, instance=options.instance)
            parts.callback(people.close)
            runner = _when_kafka_answers(lambda: _make_runner(client, log, options, cluster, people), ending)
            if runner is None:
                return 0
            parts.callback(runner.close)
        except KafkaTrouble as trouble:
            for line in str(trouble).splitlines():
                say(line)
            return EXIT_USAGE
        except OSError as error:
            say(f"{options.state}: {error.strerror or error}; is another whichrank process using it?")
            return EXIT_USAGE
        service = Service(runner, log, shadow=options.shadow, report=say)
        if options.health:
            try:
                server = HealthServer(*split_address(options.health, DEFAULT_PORT), service.health)
            except OSError as error:
                say(f"health at {options.health}: {error.strerror or error}; choose another with --health")
                return EXIT_USAGE
            parts.callback(server.close)
        say(f"processes {' and '.join(INPUTS)} of Kafka at {options.kafka} as {options.instance}")
        watch = _SettingsWatch(settings_file, reload, cluster, options)
        while not ending.asked:
            pause_s = service.turn()
            people.turn(service.role, runner, service.health)
            watch.turn(ending)
            ending.wait(pause_s)
    say("ends; what it knows is committed")
    return 0


def _when_kafka_answers(open_: Callable[[], T], ending: EndRequest) -> T | None:
    """Try until it works; None if the end is asked for meanwhile. Raises KafkaTrouble that no waiting can mend."""
    pause_s, said = FIRST_PAUSE_S, ""
    while not ending.asked:
        try:
            return open_()
        except KafkaTrouble as trouble:
            if trouble.lasting:
                raise
            if str(trouble) != said:
                said = str(trouble)
                say(f"{said}; trying again")
        ending.wait(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2.0)
    return None


def _open_log(client: Client, options: ProcessOptions) -> KafkaLog:
    admin = client.admin()
    try:
        identity = identity_of(admin, check_topics(admin))
    finally:
        admin.close()
    name = options.instance + ("/shadow" if options.shadow else "")
    return KafkaLog(client, INPUTS, instance=name, transactional_id=TRANSACTIONAL_ID, identity=identity, report=say)


def _make_runner(
    client: Client, log: KafkaLog, options: ProcessOptions, cluster: ClusterOperator, people: ObservabilityFeed
) -> EmbeddedRunner:
    """With its state; where that is new, with the incidents that were published. Raises OSError."""
    known = IncidentLog(options.state / SHADOW_FILE) if options.shadow else None

    def hand_out(record: Record) -> None:
        if not isinstance(record.payload, Incident):
            return
        incident = read_incident(record.payload.document)
        if known is None:
            people.incident(incident, record.stamp_ns)
        else:
            try:
                known.append(record.payload)
            except OSError as error:
                say(f"{known.path}: {error.strerror}; incidents are kept until there is room")
        say(_one_line(incident))

    search_seldom()
    runner = EmbeddedRunner(
        log,
        options.state / STATE_FILE,
        [JobOperator(listens=True), EntityOperator(), cluster],
        hand_out,
        live=False,
        start_after=log.start_position(),
        input_topics=INPUTS,
        metrics=load_rules().wanted,
        on_input=None if options.shadow else people.see,
        report=say,
    )
    if runner.is_fresh:
        published = published_incidents(client)
        runner.seed(published)
        if published:
            say(f"no state of an earlier life: {len(published)} published incidents are known, the rest is read again")
    return runner


def _one_line(incident: IncidentDocument) -> str:
    """A revision for the service's own log."""
    suspects = ", ".join(
        f"{word_of(suspect.scope)} {suspect.id}" + (f" on {suspect.node}" if suspect.node else "")
        for suspect in incident.suspects
    )
    words = " ".join(word_of(word) for word in (incident.severity, incident.kind, incident.change))
    return (
        f"{words}: {suspects or 'nobody'}, job {incident.job.name or incident.job.id}, "
        f"incident {incident.id} revision {incident.revision}"
    )


class _SettingsWatch:
    """Reads the settings again when their file changes, or on SIGHUP."""

    def __init__(self, path: Path | None, reload: Reload, cluster: ClusterOperator, options: ProcessOptions) -> None:
        self._path = path
        self._reload = reload
        self._cluster = cluster
        self._options = options
        self._stamp = self._stamp_now()
        self._looked_s = time.monotonic()

    def turn(self, ending: EndRequest) -> None:
        now_s = time.monotonic()
        if not ending.reload and now_s - self._looked_s < SETTINGS_PERIOD_S:
            return
        self._looked_s, asked, ending.reload = now_s, ending.reload, False
        stamp = self._stamp_now()
        if stamp == self._stamp and not asked:
            return
        self._stamp = stamp
        try:
            new = self._reload()
        except SettingsError as error:
            for line in str(error).splitlines():
                say(f"{line}; the settings stay as they were")
            return
        self._take(new)

    def _take(self, new: ProcessOptions) -> None:
        before, after = self._options.model_dump(), new.model_dump()
        changed = sorted(key for key in after if after[key] != before[key])
        self._cluster.disabled = kinds_of(new.disable)
        if "disable" in changed:
            say(f"kinds that are not opened from now on: {new.disable or 'none'}")
        if others := [key for key in changed if key != "disable"]:
            say(f"{', '.join(others)}: changed in the settings, takes effect at the next start")
        self._options = new

    def _stamp_now(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
