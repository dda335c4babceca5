"""Where a report's records come from: a run's folder, or Kafka's topics. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.topics import TOPIC_FINDINGS
from ...transport.bus import TOPIC_BLOCKS
from ...transport.kafka import make_client
from ...transport.kafka_client import Client
from ...transport.kafka_read import read_whole
from ..incidents.kafka_source import KafkaSource
from ..incidents.run_source import RunSource, newest_run
from ..run_folder.losses import CountedLosses, Losses, describe_losses
from ..run_folder.run_directory import RunDirectory, Unusable
from ..settings.settings import TopicsOptions, load_settings
from .reading import JobReading, messages_of, read_messages
from .verdict import last_revisions, worst_job


def of_run(path: Path | None, job: str) -> tuple[JobReading, list[IncidentDocument]]:
    """What a run's folder tells of a job, and the last revisions of its incidents. Raises Unusable.

    path None: the newest run. job "": that of the worst incident.
    """
    directory = RunDirectory(path or newest_run())
    source = RunSource(directory.path)
    documents = _revisions(source, directory)
    reading = JobReading(job=job or worst_job(documents), where=str(directory.path))
    run = source.run()
    read_messages(reading, messages_of(directory, reading))
    for problem in source.problems:
        reading.report(problem)
    if run is not None and run.losses is not None:
        reading.losses.clear()  # the run has counted all of them, at its end
        for line in _losses(run.losses):
            reading.report(line)
    if not reading.messages:
        raise Unusable(f"{directory.capture}: holds no message that can be read; nothing to report")
    return reading, last_revisions(documents, reading.job)


def of_kafka(
    brokers: str, job: str, minutes: float, pairs: Sequence[str], config: Path | None
) -> tuple[JobReading, list[IncidentDocument]]:
    """What Kafka tells of a job in the last minutes, and the last revisions of its incidents.

    job "": that of the worst incident. Raises KafkaTrouble, SettingsError, Unusable.
    """
    settings, _ = load_settings(TopicsOptions, {"kafka": brokers}, config, pairs)
    client = make_client(settings.kafka_settings())
    source = KafkaSource(client, brokers)
    documents = source.revisions()
    reading = JobReading(job=job or worst_job(documents), where=f"Kafka at {brokers}, the last {minutes:g} minutes")
    since_ns = int((time.time() - 60.0 * minutes) * 1e9)
    read_messages(reading, _newer(client, since_ns))
    for problem in source.problems:
        reading.report(problem)
    if not reading.job or not reading.steps.attempts:
        wanted = f" of job {reading.job}" if reading.job else ""
        raise Unusable(f"{brokers}: nothing{wanted} in the last {minutes:g} minutes; more: --minutes")
    return reading, last_revisions(documents, reading.job)


def _newer(client: Client, since_ns: int) -> Iterator[tuple[str, bytes, int]]:
    """A partition's messages are in order, those of several are not: ranks of one job share one."""
    for topic in (TOPIC_BLOCKS, TOPIC_FINDINGS):
        for message in read_whole(client, topic):
            if message.stamp_ns >= since_ns:
                yield message.topic, message.value, message.stamp_ns


def _revisions(source: RunSource, directory: RunDirectory) -> list[IncidentDocument]:
    """A run that was cut off early has no incidents.jsonl, and a capture all the same."""
    if not directory.incidents.exists() and directory.capture.is_dir():
        source.problems.append(f"{directory.incidents}: not there; whichrank replay judges the capture again")
        return []
    return source.revisions()


def _losses(counted: CountedLosses) -> list[str]:
    known = {name: value for name, value in counted.items() if name in Losses.__slots__}
    try:
        return describe_losses(Losses(**known))  # type: ignore[arg-type]
    except (TypeError, ValueError, AttributeError):  # of another release
        return [f"{name}: {value}" for name, value in counted.items()]
