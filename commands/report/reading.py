"""What a report needs of a run's messages, in one pass over its capture or over Kafka's topics. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...diagnosis.goodput.interval import Interval, interval_of
from ...telemetry.otlp import decode_logs
from ...telemetry.records import Block, Broken, Event, Finding
from ...telemetry.regular_files import open_regular
from ...telemetry.vocabulary import EventName
from ...transport.bus import TOPIC_BLOCKS, TOPIC_FINDINGS
from ...transport.embedded import EmbeddedBus
from ..run_folder.losses import AGENT_LOSSES
from ..run_folder.run_directory import RunDirectory, Unusable
from .job_steps import JobSteps

_MESSAGES_AT_ONCE = 256
_KEPT_HAPPENINGS = 200
_TOLD = {
    EventName.JOB_STARTED: "job started",
    EventName.JOB_SIGNALLED: "job was asked to stop",
    EventName.JOB_FINISHED: "job ended",
}


@dataclass(slots=True, kw_only=True)
class JobReading:
    """What was read of one job. happenings: (Unix seconds, words)."""

    job: str
    name: str = ""
    where: str = ""
    steps: JobSteps = field(default_factory=JobSteps)
    intervals: list[Interval] = field(default_factory=list)
    happenings: list[tuple[float, str]] = field(default_factory=list)
    other_jobs: set[str] = field(default_factory=set)
    world_size: int = 0
    begin_s: float = 0.0
    end_s: float = 0.0
    messages: int = 0
    unreadable: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def report(self, line: str) -> None:
        """Adds a line to ``problems`` unless it is there."""
        if line not in self.problems:
            self.problems.append(line)


def read_messages(reading: JobReading, messages: Iterable[tuple[str, bytes, int]]) -> None:
    """Takes messages (topic, value, stamp in Unix ns) into ``reading``, to their end.

    Without a job's id it becomes that of the first block.
    """
    for topic, value, stamp_ns in messages:
        if topic not in (TOPIC_BLOCKS, TOPIC_FINDINGS):
            continue
        reading.messages += 1
        for payload in decode_logs(topic, value):
            _take(reading, payload, stamp_ns / 1e9)
    reading.steps.finish()


def messages_of(directory: RunDirectory, reading: JobReading) -> Iterator[tuple[str, bytes, int]]:
    """The messages in a run's capture, as (topic, value, stamp in Unix ns), a part at a time. Raises Unusable."""
    if not directory.capture.is_dir():
        raise Unusable(f"{directory.capture}: not there; is {directory.path} the folder of a run?")
    try:
        bus = EmbeddedBus(
            directory.capture,
            read_only=True,
            report=reading.report,
            open_file=partial(open_regular, owner=directory.owner),
        )
    except OSError as error:
        raise Unusable(f"{directory.capture}: {error.strerror or error}") from error
    try:
        first = bus.first_kept()
        if first is not None and first[0] > 1:
            reading.report(f"the capture's {first[0] - 1} oldest messages were dropped to stay within its limit")
        position = 0
        while messages := bus.read(position, _MESSAGES_AT_ONCE):
            position = messages[-1].position
            for message in messages:
                yield message.topic, message.value, message.stamp_ns
    finally:
        bus.close()


def _take(reading: JobReading, payload: Any, stamp_s: float) -> None:
    if isinstance(payload, Broken):
        reading.unreadable += 1
        return
    if not isinstance(payload, Block | Event | Finding) or not payload.identity.job:
        return
    if isinstance(payload, Block) and not reading.job:
        reading.job = payload.identity.job
    if reading.job and payload.identity.job != reading.job:
        reading.other_jobs.add(payload.identity.job)
        return
    reading.begin_s = min(reading.begin_s or stamp_s, stamp_s)
    reading.end_s = max(reading.end_s, stamp_s)
    if isinstance(payload, Block):
        reading.steps.take(payload)
    elif isinstance(payload, Finding):
        if interval := interval_of(payload):
            reading.intervals.append(interval)
    else:
        _take_event(reading, payload)


def _take_event(reading: JobReading, event: Event) -> None:
    values = event.attributes
    if event.name in (EventName.JOB_STARTED, EventName.RANK_STARTED):
        reading.name = str(values.get("job_name") or reading.name)
        reading.world_size = max(reading.world_size, int(values.get("world_size") or 0))
    if event.name is EventName.AGENT_HEALTH:
        for name, count in values.items():
            if name in AGENT_LOSSES and isinstance(count, int):
                reading.losses[name] = max(reading.losses.get(name, 0), count)
    if event.name is EventName.RANK_EXIT:
        reading.steps.end_rank(event.identity.attempt, event.identity.rank, event.time_ns / 1e9)
    if event.name in _TOLD and len(reading.happenings) < _KEPT_HAPPENINGS:
        reading.happenings.append((event.time_ns / 1e9, _words(event)))


def _words(event: Event) -> str:
    values = event.attributes
    if event.name is EventName.JOB_FINISHED:
        return f"job ended with exit code {values.get('exit_code')}"
    if event.name is EventName.JOB_SIGNALLED:
        return f"job was asked to stop by signal {values.get('signal')}"
    return _TOLD[event.name]
