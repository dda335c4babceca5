"""Where ``whichrank goodput`` gets intervals and incidents from: a run's capture, a file, Kafka. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...diagnosis.goodput import ml_goodput_events, resiliency_events
from ...diagnosis.goodput.interval import Interval, interval_of, of_body
from ...telemetry.incident import Document
from ...telemetry.otlp import decode_logs
from ...telemetry.records import Finding, Incident
from ...telemetry.topics import TOPIC_FINDINGS, TOPIC_INCIDENTS
from ...transport.kafka import make_client
from ...transport.kafka_read import read_whole
from ..diagnose.input_file import bounded_lines
from ..embedded.replay import replay_run
from ..incidents.run_source import newest_run
from ..run_folder.run_directory import RunDirectory, Unusable
from ..settings.settings import TopicsOptions, load_settings

RUN, INTERVALS, CHECKPOINT_LOG, STEP_LOG, KAFKA = "run", "intervals", "checkpoint_log", "step_log", "kafka"


@dataclass(slots=True, kw_only=True)
class Found:
    """kind: one of the words above. documents: newest revisions of incidents. published: a checkpoint log's figure by
    its source's own formula."""

    where: str
    kind: str
    intervals: list[Interval] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    published: resiliency_events.Published | None = None
    problems: list[str] = field(default_factory=list)


def of_run(path: Path | None) -> Found:
    """The operators once more over what the run has captured. None: the newest run. Raises Unusable."""
    directory = RunDirectory(path or newest_run())
    replayed = replay_run(directory)
    return Found(
        where=str(directory.path),
        kind=RUN,
        intervals=replayed.intervals,
        documents=list(replayed.incidents.values()),
        problems=replayed.problems,
    )


def of_kafka(brokers: str, pairs: Sequence[str], config: Path | None) -> Found:
    """As far back as retention has left findings. Raises KafkaTrouble, SettingsError."""
    settings, _ = load_settings(TopicsOptions, {"kafka": brokers}, config, pairs)
    client = make_client(settings.kafka_settings())
    found = Found(where=f"Kafka at {brokers}", kind=KAFKA)
    for message in read_whole(client, TOPIC_FINDINGS):
        for payload in decode_logs(TOPIC_FINDINGS, message.value):
            if isinstance(payload, Finding) and (interval := interval_of(payload)):
                found.intervals.append(interval)
    newest: dict[str, Document] = {}
    for message in read_whole(client, TOPIC_INCIDENTS):
        for payload in decode_logs(TOPIC_INCIDENTS, message.value):
            if isinstance(payload, Incident):
                newest[str(payload.document.get("id"))] = dict(payload.document)
    found.documents = list(newest.values())
    return found


def of_file(path: Path, *, until_s: float | None, reference_step_s: float | None) -> Found:
    """JSON lines of one of the three kinds; other lines are passed over, and counted. Raises Unusable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = list(bounded_lines(file))
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}; name a run's folder or a file of events") from error
    records = [record for line in lines for record in _records(line)]
    found = Found(where=str(path), kind="")
    if any("interval" in record for record in records):
        found.kind = INTERVALS
        _take_intervals(found, records)
    elif events := [event for line in lines if (event := resiliency_events.parse_event(line))]:
        found.kind = CHECKPOINT_LOG
        ordered = resiliency_events.one_of_each(events)
        found.intervals = resiliency_events.intervals_of(ordered)
        if reference_step_s is not None:
            found.published = resiliency_events.published(ordered, reference_step_s)
    elif steps := [record for record in records if ml_goodput_events.is_record(record)]:
        found.kind = STEP_LOG
        try:
            found.intervals = ml_goodput_events.intervals_of(steps, until_s=until_s, job=path.stem)
        except (TypeError, ValueError, KeyError) as error:
            raise Unusable(f"{path}: an event without its time or number ({error})") from error
    else:
        raise Unusable(f"{path}: holds no event that is known here; see docs/accounting.md for the formats")
    if not found.intervals:
        raise Unusable(f"{path}: its events span no time")
    return found


def _records(line: str) -> Iterable[Mapping[str, Any]]:
    """Objects of a line; of a list all of them."""
    start = min((place for place in (line.find("{"), line.find("[")) if place >= 0), default=-1)
    if start < 0:
        return
    try:
        value: Any = json.loads(line[start:])
    except (ValueError, RecursionError):
        return
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each


def _take_intervals(found: Found, records: Iterable[Mapping[str, Any]]) -> None:
    bad = 0
    for record in records:
        if "interval" in record:
            try:
                found.intervals.append(
                    of_body(
                        record["interval"],
                        run=str(record.get("run") or ""),
                        job=str(record.get("job") or ""),
                        attempt=str(record.get("attempt") or ""),
                    )
                )
            except ValueError:
                bad += 1
        elif "revision" in record and "kind" in record:
            found.documents.append(dict(record))
    if bad:
        found.problems.append(f"{found.where}: {bad} intervals cannot be read, and are left out")
