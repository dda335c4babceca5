"""Small operators, a settable clock and helpers for the runner's tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from whichrank.processors.operator import Context, Operator, Timer
from whichrank.telemetry.incident import canonical_line
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Event, Finding, Identity, Incident, Record
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.embedded import EmbeddedBus

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND


class Clock:
    """A monotonic clock that stands until it is moved."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def advance(self, seconds: float) -> None:
        self.ns += round(seconds * SECOND)


def open_bus(directory: Path, clock: Clock) -> EmbeddedBus:
    return EmbeddedBus(directory, start_wall_ns=START_NS, monotonic_ns=clock)


def rank_event(rank: int, name: EventName = EventName.RANK_CONTINUED, job: str = "j", at: int = 0) -> Event:
    return Event(name=name, identity=Identity(cluster="c", job=job, attempt="a", node="n", rank=rank), time_ns=at)


def encode_events(*events: Event) -> bytes:
    return encode_payloads(events)


class Watcher:
    """Per job: counts each rank's events; 3 s without one is a finding, a RANK_EXIT is one at once."""

    name = "watcher"
    contains_itself = False
    keys_are_jobs = True
    most_keys = 100
    ABSENCE_NS = 3 * SECOND

    def __init__(self) -> None:
        #: What this instance was called with, for the tests alone: (what, key, now, details).
        self.calls: list[tuple[str, str, int, object]] = []

    def spare(self, ctx: Context) -> bool:
        return False

    def let_go(self, key: str) -> None:
        """It holds no working copy."""

    def forget(self, ctx: Context) -> None:
        for row, _ in list(ctx.state.table("counts").rows()):
            ctx.state.table("counts").delete(row)

    def key_of(self, record: Record) -> str | None:
        payload = record.payload
        return payload.identity.job if isinstance(payload, Event) and payload.identity.rank >= 0 else None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        self.calls.append(("process", ctx.key, ctx.now, len(records)))
        counts = ctx.state.table("counts")
        for record in records:
            event = record.payload
            assert isinstance(event, Event)
            assert record.stamp_ns == ctx.now
            rank = event.identity.rank
            counts.put(str(rank), b"%d" % (int(counts.get(str(rank)) or b"0") + 1))
            if event.name is EventName.RANK_EXIT:
                ctx.clear_timer(f"absent {rank}")
                counts.delete(str(rank))
                self._find(ctx, event.identity, f"exit {rank}", False)
            else:
                ctx.set_timer(f"absent {rank}", ctx.now + self.ABSENCE_NS)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        self.calls.append(("timer", ctx.key, ctx.now, timer.name))
        rank = int(timer.name.split()[1])
        identity = Identity(cluster="c", job=ctx.key, attempt="a", rank=rank)
        self._find(ctx, identity, timer.name, False)
        ctx.set_timer(f"absent {rank}", ctx.now + 4 * self.ABSENCE_NS)

    def _find(self, ctx: Context, identity: Identity, key: str, cleared: bool) -> None:
        known = sorted(row for row, _ in ctx.state.table("counts").rows())
        body = {"kind": "rank_died", "known": known, "at": ctx.now}
        finding = Finding(identity=identity, key=key, cleared=cleared, time_ns=ctx.now, body=body)
        ctx.emit(Record(topic="", key="", stamp_ns=ctx.now, payload=finding))


class Docket:
    """Per cluster: one incident per finding key, a revision each time it is heard again, one request at the opening."""

    name = "docket"
    contains_itself = False
    keys_are_jobs = False
    most_keys = 100

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, object]] = []

    def spare(self, ctx: Context) -> bool:
        return False

    def let_go(self, key: str) -> None:
        """It holds no working copy."""

    def forget(self, ctx: Context) -> None:
        for row, _ in list(ctx.state.table("counts").rows()):
            ctx.state.table("counts").delete(row)

    def key_of(self, record: Record) -> str | None:
        payload = record.payload
        if isinstance(payload, Event) and payload.name is EventName.INPUT_SILENT:
            return payload.identity.cluster
        return payload.identity.cluster if isinstance(payload, Finding) else None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        self.calls.append(("process", ctx.key, ctx.now, len(records)))
        revisions = ctx.state.table("revisions")
        for record in records:
            payload = record.payload
            if isinstance(payload, Finding):
                name, body = f"{payload.identity.job} {payload.key}", dict(payload.body)
            else:
                name, body = "input silent", {}
            revision = int(revisions.get(name) or b"0") + 1
            revisions.put(name, b"%d" % revision)
            document = {"id": name, "revision": revision, "times": {"detected": ctx.now / 1e9}, "body": body}
            ctx.emit(Record(topic="", key="", stamp_ns=ctx.now, payload=Incident(document=document)))
            if revision == 1 and isinstance(payload, Finding):
                request = Event(
                    name=EventName.EVIDENCE_REQUEST,
                    identity=payload.identity,
                    time_ns=ctx.now,
                    attributes={"id": name, "action": "stack", "rank": payload.identity.rank, "node": "n"},
                )
                ctx.emit(Record(topic="", key="", stamp_ns=ctx.now, payload=request))

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        raise AssertionError("the docket sets no timer")


def make_operators() -> list[Operator]:
    return [Watcher(), Docket()]


def output_line(record: Record) -> bytes:
    """An output as bytes, for comparing runs."""
    payload = record.payload
    if isinstance(payload, Incident):
        return record.topic.encode() + b" " + canonical_line(payload.document)
    if isinstance(payload, Finding):
        body = json.dumps(payload.body, sort_keys=True)
        return f"{record.topic} {record.stamp_ns} {payload.identity} {payload.key} {body}\n".encode()
    return f"{record.topic} {record.stamp_ns} {payload}\n".encode()
