"""Findings and incidents in words that this release does not know: passed over, said once, and the judge goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.processors.cluster.conftest import START_S, Court, make_finding
from whichrank.processors.cluster.case_row import published_documents
from whichrank.processors.cluster.operator import ClusterOperator
from whichrank.processors.told_finding import read_told
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.records import Incident, Record
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


def test_a_published_incident_of_another_release_is_no_case() -> None:
    court = Court()
    court.hear(make_finding(Kind.RANK_DIED, 2, at=1.0))
    (known,) = incidents_of(court)
    fresh = Court()
    stamp_ns = round((START_S + 9.0) * 1e9)
    for document in ({**known, "kind": "quantum_flip"}, known):
        record = Record(
            topic="whichrank.incidents", key="local", stamp_ns=stamp_ns, payload=Incident(document=document)
        )
        ClusterOperator(frozenset()).process([record], fresh)
    adopted = published_documents(fresh.table("incidents").rows())
    assert [incident.id for incident in adopted] == [known["id"]]


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
