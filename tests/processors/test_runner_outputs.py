"""Each output once for its consumer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.processors.runner_examples import rank_event
from whichrank.processors import runner_outputs
from whichrank.processors.runner_outputs import OncePerRevision
from whichrank.telemetry.records import Broken, Finding, Incident, Payload, Record
from whichrank.telemetry.vocabulary import EventName

FINDING = Finding(identity=rank_event(1).identity, key="k", cleared=False, time_ns=5, body={"kind": "rank_died"})


def record(payload: Payload, stamp_ns: int = 1) -> Record:
    return Record(topic="t", key="k", stamp_ns=stamp_ns, payload=payload)


def incident(revision: int) -> Record:
    return record(Incident(document={"id": "i", "revision": revision}))


def request(name: str) -> Record:
    return record(replace(rank_event(1, EventName.EVIDENCE_REQUEST), attributes={"id": name, "rank": 1}))


def test_repeats_are_held_back_and_news_passed_on() -> None:
    seen: list[Record] = []
    once = OncePerRevision(seen.append, seen=[("i", 1)])
    news = [
        incident(2),
        incident(3),
        request("a"),
        request("b"),
        record(FINDING),
        record(replace(FINDING, body={"kind": "rank_raised"})),
        record(FINDING, stamp_ns=2),
    ]
    for item in [incident(1), *news, *news]:
        once(item)
    assert seen == news
    assert once.repeats == 1 + len(news)


def test_what_may_be_repeated_is() -> None:
    seen: list[Record] = []
    once = OncePerRevision(seen.append)
    broken = record(Broken(topic="t", reason="r", value=b""))
    once(broken)
    once(broken)
    assert seen == [broken, broken]


def test_an_output_that_was_refused_is_tried_again() -> None:
    seen: list[Record] = []

    def deliver(item: Record) -> None:
        seen.append(item)
        if len(seen) == 1:
            raise OSError("full")

    once = OncePerRevision(deliver)
    with pytest.raises(OSError, match="full"):
        once(incident(1))
    once(incident(1))
    once(incident(1))
    assert len(seen) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_outputs, "MAX_REMEMBERED", 10)
    seen: list[Record] = []
    once = OncePerRevision(seen.append)
    for revision in range(1, 31):
        once(incident(revision))
    once(incident(30))
    assert len(seen) == 30
    once(incident(1))
    assert len(seen) == 31, "long forgotten"
