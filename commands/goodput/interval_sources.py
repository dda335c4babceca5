"""Where ``whichrank goodput`` gets intervals and incidents from: a run's capture, a file, Kafka. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...diagnosis.goodput import resiliency_events
from ...diagnosis.goodput.interval import Interval, interval_of
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_reading import read_incident
from ...telemetry.otlp import decode_logs
from ...telemetry.records import Finding, Incident
from ...telemetry.topics import TOPIC_FINDINGS, TOPIC_INCIDENTS
from ...transport.kafka import make_client
from ...transport.kafka_read import read_whole
from ..diagnose.input_file import Unreadable, bounded_lines
from ..diagnose.packed_file import opened_text
from ..embedded.replay import replay_run
from ..incidents.run_source import newest_run
from ..run_folder.run_directory import RunDirectory, Unusable
from ..settings.settings import TopicsOptions, load_settings
from .event_lines import read_intervals, read_steps
from .injected_faults import InjectedFault, read_injected

#: Of lines that may hold events; each takes some times as much once it is read.
MOST_EVENT_CHARACTERS = 64_000_000
RUN, INTERVALS, CHECKPOINT_LOG, STEP_LOG, KAFKA = "run", "intervals", "checkpoint_log", "step_log", "kafka"


@dataclass(slots=True, kw_only=True)
class GoodputInput:
    """kind: one of the words above. incidents: their newest revisions. published: a checkpoint log's figure by
    its source's own formula. injected: faults that were put into the run on purpose."""

    where: str
    kind: str
    intervals: list[Interval] = field(default_factory=list)
    incidents: list[IncidentDocument] = field(default_factory=list)
    published: resiliency_events.Published | None = None
    problems: list[str] = field(default_factory=list)
    injected: list[InjectedFault] = field(default_factory=list)


def of_run(path: Path | None) -> GoodputInput:
    """Intervals and incidents by the operators once more over a run's capture. path None: the newest run.

    Raises Unusable.
    """
    directory = RunDirectory(path or newest_run())
    replayed = replay_run(directory)
    return GoodputInput(
        where=str(directory.path),
        kind=RUN,
        intervals=replayed.intervals,
        incidents=list(replayed.incidents.values()),
        problems=replayed.problems,
        injected=read_injected(directory),
    )


def of_kafka(brokers: str, pairs: Sequence[str], config: Path | None) -> GoodputInput:
    """Intervals and incidents on Kafka, as far back as retention has left them.

    pairs: settings as KEY=VALUE. Raises KafkaTrouble, SettingsError.
    """
    settings, _ = load_settings(TopicsOptions, {"kafka": brokers}, config, pairs)
    client = make_client(settings.kafka_settings())
    found = GoodputInput(where=f"Kafka at {brokers}", kind=KAFKA)
    for message in read_whole(client, TOPIC_FINDINGS):
        for payload in decode_logs(TOPIC_FINDINGS, message.value):
            if isinstance(payload, Finding) and (interval := interval_of(payload)):
                found.intervals.append(interval)
    newest: dict[str, IncidentDocument] = {}
    for message in read_whole(client, TOPIC_INCIDENTS):
        for payload in decode_logs(TOPIC_INCIDENTS, message.value):
            if isinstance(payload, Incident):
                newest[str(payload.document.get("id"))] = read_incident(payload.document)
    found.incidents = list(newest.values())
    return found


def of_file(path: Path, *, until_s: float | None, reference_step_s: float | None) -> GoodputInput:
    """Intervals in a file of JSON lines of one of the three kinds; other lines are passed over. Raises Unusable.

    until_s: when a job that goes on was looked at; reference_step_s: a step's length, for the source's own figure.
    """
    try:
        with opened_text(str(path), path) as file:
            lines = list(_with_events(bounded_lines(file), path))
    except Unreadable as error:
        raise Unusable(str(error)) from error
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}; name a run's folder or a file of events") from error
    found = GoodputInput(where=str(path), kind="")
    if (told := read_intervals(lines)) is not None:
        found.kind, found.intervals, found.incidents = INTERVALS, told.intervals, told.incidents
        if told.unreadable:
            found.problems.append(f"{found.where}: {told.unreadable} intervals cannot be read, and are left out")
    elif events := [event for line in lines if (event := resiliency_events.parse_event(line))]:
        found.kind = CHECKPOINT_LOG
        ordered = resiliency_events.one_of_each(events)
        found.intervals = resiliency_events.intervals_of(ordered)
        if reference_step_s is not None:
            found.published = resiliency_events.published(ordered, reference_step_s)
    else:
        try:
            steps = read_steps(lines, until_s=until_s, job=path.stem)
        except (TypeError, ValueError, KeyError) as error:
            raise Unusable(f"{path}: an event without its time or number ({error})") from error
        if steps is None:
            raise Unusable(f"{path}: holds no event that is known here; see docs/accounting.md for the formats")
        found.kind, found.intervals = STEP_LOG, steps
    if not found.intervals:
        raise Unusable(f"{path}: its events span no time")
    return found


def _with_events(lines: Iterable[str], path: Path) -> Iterator[str]:
    """Lines that may hold an object. Raises Unusable where they are too many."""
    left = MOST_EVENT_CHARACTERS
    for line in lines:
        if "{" in line or "[" in line:
            left -= len(line)
            if left < 0:
                raise Unusable(
                    f"{path}: holds more than {MOST_EVENT_CHARACTERS:,} characters of events; give it in parts"
                )
            yield line
