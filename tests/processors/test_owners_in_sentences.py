"""A job whose id two owners claim is named alike in fields and in sentences, whoever was heard first."""

from __future__ import annotations

from tests.processors.job.synthetic_job import MemoryTable
from whichrank.processors.job_owners import JobOwners
from whichrank.telemetry.records import Event, Finding, Identity, Incident
from whichrank.telemetry.vocabulary import EventName


def started(owner: str, by: str) -> Event:
    identity = Identity(cluster="c", job="4711", attempt="a", rank=0, owner=owner)
    return Event(name=EventName.RANK_STARTED, identity=identity, time_ns=1, attributes={"pid": 1, "id_by": by})


def shown(owners: JobOwners, key: str) -> tuple[str, dict[str, object]]:
    identity = Identity(cluster="c", job=key, attempt="a")
    rows = [
        {"signal": "x", "source": f"job {key}", "shows": f"rank 1 of job {key}, and job 47112.", "value": f"job {key}"}
    ]
    said = owners.shown(Finding(identity=identity, key="k", cleared=False, time_ns=1, body={"evidence": rows}))
    assert isinstance(said, Finding)
    (row,) = said.body["evidence"]
    return said.identity.job, row


def test_sentences_say_what_fields_say() -> None:
    owners = JobOwners(MemoryTable())
    first = owners.keyed(started("1", "claimed"))
    second = owners.keyed(started("2", "claimed"))
    assert isinstance(first, Event)
    assert isinstance(second, Event)
    assert first.identity.job == "4711" != second.identity.job
    for key, name in ((first.identity.job, "4711@1"), (second.identity.job, "4711@2")):
        job, row = shown(owners, key)
        assert job == name
        assert (row["source"], row["shows"]) == (f"job {name}", f"rank 1 of job {name}, and job 47112.")


def test_who_is_confirmed_has_the_plain_id_everywhere() -> None:
    owners = JobOwners(MemoryTable())
    owners.keyed(started("1", "kernel"))
    owners.keyed(started("2", "claimed"))
    assert shown(owners, "4711")[1]["source"] == "job 4711"


def test_an_incident_read_back_is_named_once() -> None:
    owners = JobOwners(MemoryTable())
    owners.keyed(started("1", "claimed"))
    owners.keyed(started("2", "claimed"))
    document = {"id": "x", "job": {"id": "4711"}, "evidence": [{"source": "job 4711@1", "shows": "job 4711@1 waits"}]}
    again = owners.shown(Incident(document=document))
    assert isinstance(again, Incident)
    assert again.document["job"]["id"] == "4711@1"
    assert again.document["evidence"] == document["evidence"]
