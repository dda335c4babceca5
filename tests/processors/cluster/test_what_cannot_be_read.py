"""Findings and incidents in words that this release does not know: passed over, said once, and the judge goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.processors.cluster.conftest import START_S, Court, make_finding
from whichrank.commands.run_folder.maintenance_plans import finding_of_odd_line
from whichrank.processors.cluster import case_book
from whichrank.processors.cluster.case_row import unpack_case
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.doubts import SET_ASIDE
from whichrank.processors.told_finding import read_told
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.records import Finding, Incident, Record
from whichrank.telemetry.vocabulary import Kind


def incidents_of(court: Court) -> list[dict[str, Any]]:
    return [dict(record.payload.document) for record in court.emitted if isinstance(record.payload, Incident)]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "quantum_flip"},
        {"kind": 7},
        {"stalls": [1, 2]},
        {"steps_before": "x"},
    ],
    ids=str,
)
@pytest.mark.parametrize("cleared", [False, True])
def test_a_finding_that_cannot_be_read_ends_nothing(change: dict[str, Any], cleared: bool) -> None:
    court = Court()
    sound = make_finding(Kind.RANK_DIED, 2, at=1.0)
    court.hear(replace(sound, body={**sound.body, **change}, cleared=cleared))
    said = incidents_of(court)
    assert {document["kind"] for document in said} == {Kind.TELEMETRY_FAULT.value}
    assert "is passed over" in str(said)
    court.hear(sound)
    assert Kind.RANK_DIED.value in {document["kind"] for document in incidents_of(court)}


def test_a_published_incident_of_another_release_is_no_case_and_is_told_once() -> None:
    court = Court()
    court.hear(make_finding(Kind.RANK_DIED, 2, at=1.0))
    (known,) = incidents_of(court)
    fresh = Court()
    stamp_ns = round((START_S + 9.0) * 1e9)
    for document in ({**known, "kind": "quantum_flip"}, {**known, "kind": "quantum_flip"}, known):
        record = Record(
            topic="whichrank.incidents", key="local", stamp_ns=stamp_ns, payload=Incident(document=document)
        )
        ClusterOperator(frozenset()).process([record], fresh)
    adopted = [incident for _, row in fresh.table("incidents").rows() if (incident := unpack_case(row).told)]
    told = [incident for incident in adopted if incident.bucket == "telemetry"]
    assert [incident.id for incident in adopted if incident not in told] == [known["id"]]
    (doubted,) = told
    assert known["id"] in doubted.evidence[0].shows


def test_a_line_of_a_plan_that_cannot_be_read_is_told() -> None:
    court = Court()
    court.hear(finding_of_odd_line("plans.jsonl, byte 12", "no JSON", "local", round((START_S + 9.0) * 1e9)))
    (told,) = {document["id"]: document for document in incidents_of(court)}.values()
    assert "plans.jsonl, byte 12 is passed over: ValueError: no JSON" in str(told["evidence"])


def test_a_job_whose_state_was_set_aside_has_no_open_incident() -> None:
    court = Court()
    sound = make_finding(Kind.RANK_NOT_ENTERED, 2, at=1.0)
    court.hear(sound)
    away = Finding(identity=sound.identity, key="set_aside/job/j", cleared=True, time_ns=sound.time_ns + 10**9,
                   body={SET_ASIDE: {"because": "KeyError"}})  # fmt: skip
    court.hear(away)
    opened, ended = incidents_of(court)
    assert (opened["state"], ended["state"], ended["id"]) == ("open", "resolved", opened["id"])
    assert "is not known" in ended["evidence"][-1]["shows"]
    court.hear(replace(sound, time_ns=sound.time_ns + 2 * 10**9))
    assert incidents_of(court)[-1]["state"] == "open"


def test_of_too_many_incidents_the_owner_who_has_most_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_book, "MAX_INCIDENTS", 8)
    court = Court()
    court.owners = {"quiet": "quinn"}
    for number, job in enumerate(["quiet", *(f"many-{n}" for n in range(20))]):
        sound = make_finding(Kind.RANK_DIED, 2, at=1.0 + number)
        court.hear(replace(sound, identity=replace(sound.identity, job=job)))
    kept = {unpack_case(row).job for _, row in court.table("incidents").rows()}
    assert len(kept) == 8
    assert {"quiet", "many-19"} <= kept
    assert "many-0" not in kept
    last = {document["job"]["id"]: document["state"] for document in incidents_of(court)}
    assert last["many-0"] != "open"
    assert last["quiet"] == "open"


@pytest.mark.parametrize("onset", ["999", float("nan"), None, True])
def test_an_onset_that_is_no_number_is_when_it_was_seen(onset: object) -> None:
    body = make_finding(Kind.RANK_DIED, 2, at=1.0).body
    told = read_told({**body, "times": {"onset": onset, "detected": 1234.5}})
    assert told.onset_s == told.detected_s == 1234.5


def test_numbers_of_other_peoples_json() -> None:
    document = {
        "job": {"id": 77, "attempt": 3},
        "first_bad": {"step": 12.0},
        "suspects": [{"scope": "rank", "id": 3, "rank": 3.0}],
    }
    incident = read_incident(document)
    assert (incident.job.id, incident.job.attempt) == ("77", "3")
    assert incident.first_bad.step == 12
    assert (incident.suspects[0].id, incident.suspects[0].rank) == ("3", 3)


def of_job(job: str, at: float) -> Finding:
    sound = make_finding(Kind.RANK_DIED, 2, at=at)
    return replace(sound, identity=replace(sound.identity, job=job))


class Containing(Court):
    """What is attempted and fails is contained, as the runner does it."""

    def attempt(self, act: Callable[[], None], about: Record | str) -> bool:
        try:
            act()
        except (ValueError, TypeError, AttributeError, KeyError):
            return False
        return True


def court_with_a_past() -> Court:
    """Jobs that run on nodes, end, and were told of; one of their nodes was to blame."""
    court = Containing()
    for number, job in enumerate(["one", "two"]):
        begin = number * 100.0
        place = {"job": job, "attempt": "a1", "run": job, "owner": "o", "begin": START_S + begin, "world": 8}
        told = {**place, "nodes": {"n1": "0-3", "n2": "4-7"}, "end": None}
        who = make_finding(Kind.RANK_DIED, 2, at=begin).identity
        for end in (None, START_S + begin + 50.0):
            court.hear(Finding(identity=replace(who, job=job), key=f"placement/{job}/a1", cleared=False,
                               time_ns=round((START_S + begin + (50.0 if end else 1.0)) * 1e9),
                               body={"placement": {**told, "end": end}}))  # fmt: skip
        court.hear(of_job(job, begin + 40.0))
        court.pass_time(begin + 60.0)
    return court


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 16, b"", b"[]", b"null", b"\xff\xfe", b'{"a":1}', b"-1", b"1e999"], ids=repr
)
def test_whichever_row_of_the_state_is_garbled_the_next_job_is_told_of(garbage: bytes) -> None:
    rows = [(name, row) for name, table in court_with_a_past().tables.items() for row, _ in table.rows()]
    assert {name for name, _ in rows} >= {"incidents", "sums", "shared", "troubles", "placements"}
    for name, row in rows:
        court = court_with_a_past()
        court.table(name).put(row, garbage)
        court.hear(of_job("new", 300.0))
        court.pass_time(320.0)
        assert "new" in {document["job"]["id"] for document in court.revisions}, (name, row)
