"""Four jobs that never ran, streamed as an agent ships them, in real time; and what an unfaulted embedded run says.

Every message carries a number of its own, as one more log record that whichrank passes over, so that it can be told
which of them lie on Kafka.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.processors.job.synthetic_job import FOREVER, WALL_NS, Action, Call, SyntheticJob
from tests.processors.runner_examples import Clock
from whichrank.agents.base.priority import Priority, priority_of
from whichrank.commands.embedded.embedded_operators import make_operators
from whichrank.processors.runner import EmbeddedRunner
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Block, Event, Incident, Record
from whichrank.telemetry.topics import TOPIC_BLOCKS
from whichrank.telemetry.vocabulary import EventName, ExitState, Phase
from whichrank.transport.embedded import EmbeddedBus

NUMBER_EVENT = "test.number"
SECOND = 1_000_000_000
#: Unix time at which the drawn jobs begin.
BEGIN_NS = WALL_NS + 100 * SECOND
TURN_S = 0.25
#: Two verdicts whose onsets lie further apart are not the same.
ONSET_S = 1.0
#: (job, kind, ranks named) -> onset in seconds.
Verdicts = Mapping[tuple[str, str, tuple[int, ...]], float]


def _skip(rank: int, step: int, actions: list[Action]) -> list[Action]:
    if (rank, step) != (1, 25):
        return actions
    return [action for action in actions if not (isinstance(action, Call) and action.bytes == 8000)]


def jobs() -> dict[str, SyntheticJob]:
    """Of about twenty seconds: a hang, a crash, a skipped collective, and one in which nothing is wrong."""
    dead = {"signal": 9, "exit_state": int(ExitState.RUNNING)}
    aborted = {"type": "RuntimeError", "message": "Connection closed by peer", "communication": True}
    return {
        "hangs": SyntheticJob(
            steps=40,
            after_s=12.0,
            delays=[lambda rank, step, phase: FOREVER if (rank, step, phase) == (2, 25, Phase.FORWARD) else 0.0],
        ),
        "crashes": SyntheticJob(
            steps=60,
            after_s=6.0,
            ends={2: 7.4},
            events=[
                (7.39, EventName.RANK_EXCEPTION, 0, aborted),
                (7.4, EventName.RANK_EXIT, 2, dead),
                (7.6, EventName.RANK_EXCEPTION, 1, aborted),
                (7.7, EventName.RANK_EXCEPTION, 3, aborted),
            ],
        ),
        "skips": SyntheticJob(steps=60, after_s=8.0, edit=_skip),
        "is well": SyntheticJob(steps=90, after_s=0.5),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sendable:
    """A record with when it is sent, seconds after the beginning."""

    after_s: float
    job: str
    payload: Block | Event


def stream() -> list[Sendable]:
    """The records of all jobs, in order of time."""
    sendables = []
    for name, job in jobs().items():
        records = job.records()
        begin_ns = records[0].stamp_ns
        for record in records:
            assert isinstance(record.payload, Block | Event)
            own = replace(record.payload.identity, job=name, run=name, attempt=f"{name}/a1")
            sendables.append(
                Sendable(
                    after_s=(record.stamp_ns - begin_ns) / SECOND,
                    job=name,
                    payload=replace(record.payload, identity=own),
                )
            )
    return sorted(sendables, key=lambda each: each.after_s)


def at(payload: Block | Event, shift_ns: int) -> Block | Event:
    """The same with its Unix times moved: the jobs were drawn for another day."""
    if isinstance(payload, Block):
        return replace(payload, clock_offset_ns=payload.clock_offset_ns + shift_ns, time_ns=payload.time_ns + shift_ns)
    return replace(payload, time_ns=payload.time_ns + shift_ns)


def numbered(value: bytes, number: int, priority: Priority) -> bytes:
    """A serialized request with its number: two serialized messages side by side are one with the parts of both."""
    extra = ExportLogsServiceRequest()
    record = extra.resource_logs.add().scope_logs.add().log_records.add(event_name=NUMBER_EVENT)
    record.time_unix_nano = number
    record.severity_number = int(priority) + 1  # type: ignore[assignment]
    return value + extra.SerializeToString()


def numbers_in(value: bytes) -> Iterator[tuple[int, Priority]]:
    """The numbers of a message; none in what somebody else has sent."""
    try:
        request = ExportLogsServiceRequest.FromString(value)
    except ValueError:
        return
    except Exception:  # protobuf's own error has no common name over its versions
        return
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                if record.event_name == NUMBER_EVENT:
                    yield record.time_unix_nano, Priority(record.severity_number - 1)


Send = Callable[[str, bytes, Priority], None]


def play(
    sendables: Sequence[Sendable],
    send: Send,
    *,
    began_s: float,
    shift_ns: Callable[[Sendable], int],
    over: Callable[[], bool],
) -> int:
    """Send each in its time, numbered from 1; the count. began_s: monotonic; what was due by now goes at once."""
    number = 0
    for each in sendables:
        while (left := began_s + each.after_s - time.monotonic()) > 0:
            if over():
                return number
            time.sleep(min(left, 0.1))
        number += 1
        priority = priority_of(each.payload)
        send(each.job, numbered(encode_payloads([at(each.payload, shift_ns(each))]), number, priority), priority)
    return number


@functools.cache
def twin() -> Verdicts:
    """What an embedded run concludes of the same records, sent at the same times and faulted by nobody."""
    with tempfile.TemporaryDirectory(prefix="stack-faults-twin-") as folder:
        return _concluded(stream(), Path(folder))


def _concluded(sendables: Sequence[Sendable], folder: Path) -> Verdicts:
    clock = Clock()
    bus = EmbeddedBus(folder, start_wall_ns=BEGIN_NS, monotonic_ns=clock)
    last: dict[str, Mapping[str, Any]] = {}

    def note(record: Record) -> None:
        if isinstance(record.payload, Incident):
            last[str(record.payload.document["id"])] = record.payload.document

    runner = EmbeddedRunner(bus, None, make_operators(), note, live=True)
    position = 0
    turns = round((sendables[-1].after_s + 30.0) / TURN_S)
    for turn in range(1, turns):
        until_s = turn * TURN_S
        while position < len(sendables) and sendables[position].after_s <= until_s:
            each = sendables[position]
            clock.ns = max(clock.ns, round(each.after_s * SECOND))
            bus.append(TOPIC_BLOCKS, each.job, encode_payloads([each.payload]))
            position += 1
        clock.ns = round(until_s * SECOND)
        runner.drain()
    runner.close()
    bus.close()
    return verdicts(last.values())


def verdicts(documents: Iterator[Mapping[str, Any]] | Any) -> Verdicts:
    """What is compared of incidents; what is said of the telemetry itself is not."""
    found = {}
    for document in documents:
        if document["bucket"] == "telemetry":
            continue
        ranks = tuple(sorted(suspect["rank"] for suspect in document["suspects"] if suspect["rank"] is not None))
        found[document["job"]["id"], document["kind"], ranks] = float(document["times"]["onset"])
    return found


def differences(expected: Verdicts, found: Verdicts) -> list[str]:
    """A line for each verdict that is missing, not asked for, or of another time."""
    lines = [f"missing: {_words(key)}" for key in expected if key not in found]
    lines += [f"not in the twin: {_words(key)}" for key in found if key not in expected]
    lines += [
        f"{_words(key)}: onset {found[key] - onset:+.2f} s"
        for key, onset in expected.items()
        if key in found and abs(found[key] - onset) > ONSET_S
    ]
    return lines


def _words(key: tuple[str, str, tuple[int, ...]]) -> str:
    return f"{key[1]} naming {list(key[2])} in the job that {key[0]}"
