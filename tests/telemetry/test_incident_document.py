"""Incident documents as fields: ours come back byte for byte, and nothing that anybody writes raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.same_incidents.kept import read_lines
from tests.telemetry.test_incident import EXAMPLE
from whichrank.telemetry.incident import FIELDS, WHERE_KNOWN, canonical_line, complete_document
from whichrank.telemetry.incident_document import IncidentDocument, IncidentLabel, word_of
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.incident_writing import write_incident
from whichrank.telemetry.vocabulary import Action, Kind, Scope

GOLDEN = Path(__file__).parent.parent / "golden"
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*FIELDS, *WHERE_KNOWN]) | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=20,
)
#: Documents whose fields hold anything.
HOSTILE = st.dictionaries(
    st.sampled_from([*FIELDS, *WHERE_KNOWN, "later"]),
    ANY_JSON
    | st.dictionaries(st.sampled_from(["id", "rank", "where", "fact", "time", "value", "by", "retry"]), ANY_JSON)
    | st.lists(st.dictionaries(st.sampled_from(["rank", "where", "fact", "victims", "cost", "value"]), ANY_JSON)),
)


def back(document: object) -> Any:
    return write_incident(read_incident(document))


def assert_same(document: dict[str, Any]) -> None:
    assert canonical_line(back(document)) == canonical_line(document)
    complete = complete_document(document)
    assert json.dumps(back(complete)) == json.dumps(complete), "also as a row of state, which nobody puts in order"


@pytest.mark.parametrize("name", ["simulated", "captures"])
def test_what_was_judged_comes_back(name: str) -> None:
    """Golden lines have their keys in another order; ``tests/same_incidents`` asks for the bytes of what it judges."""
    revisions = [each for line in read_lines(name).values() for each in json.loads(line)["revisions"]]
    assert len(revisions) > 100
    for document in revisions:
        told = with_sentences(document)
        assert json.loads(canonical_line(back(told))) == json.loads(canonical_line(told))


def with_sentences(facts: dict[str, Any]) -> dict[str, Any]:
    """Golden lines leave them out."""
    told: dict[str, tuple[str, ...]] = {"evidence": ("shows",), "ruled_out": ("looks_guilty", "because")}
    rows = {name: [{**dict.fromkeys(texts, "t"), **row} for row in facts.get(name, ())] for name, texts in told.items()}
    return {**facts, **rows}


def test_what_earlier_releases_published_comes_back_byte_for_byte() -> None:
    revisions = [each for path in GOLDEN.glob("*/facts.json") for each in json.loads(path.read_text())["revisions"]]
    assert revisions
    for document in revisions:
        assert_same(document)


def test_the_designs_document_is_read_into_types() -> None:
    assert_same(EXAMPLE)
    incident = read_incident(EXAMPLE)
    assert incident.kind is Kind.RANK_NOT_ENTERED
    assert incident.suspects[0].where is not None
    assert (incident.suspects[0].scope, incident.suspects[0].line) == (Scope.RANK, 88)
    assert incident.advice is not None
    assert incident.advice.action is Action.RESTART_WITHOUT_NODE
    assert incident.jobs[0].victims is None


def test_what_only_a_later_release_knows_is_kept() -> None:
    suspect = {
        **EXAMPLE["suspects"][0],
        "rack": {"row": 3},
        "where": {"file": "a", "line": 1, "phase": "x", "column": 7},
    }
    later = {**EXAMPLE, "suspects": [suspect], "kind": "gremlins", "weather": ["rain"], "hold": {"until": 1, "why": 2}}
    told = back(later)
    assert told["suspects"][0]["rack"] == {"row": 3}
    assert told["suspects"][0]["where"]["column"] == 7
    assert (told["kind"], told["weather"]) == ("gremlins", ["rain"])
    assert told["hold"] == {"until": 1, "because": None, "why": 2}
    assert read_incident(later).kind == "gremlins"
    assert word_of(Kind.DESYNC) == "desync"


def test_a_label_is_repeated_as_it_was_said() -> None:
    said = {"cause": None, "wrong": False, "acknowledged": {"by": "ann", "time": 1.5}, "closed": None, "by": "ann"}
    assert_same({**EXAMPLE, "label": {**said, "time": 1.5, "cluster": "c"}})
    made = IncidentLabel(cause="node=n1", by="bob", wrong=True, time_s=2.0)
    assert write_incident(IncidentDocument(label=made))["label"] == {
        "cause": "node=n1",
        "wrong": True,
        "by": "bob",
        "time": 2.0,
    }


def test_what_is_of_another_type_is_unknown() -> None:
    incident = read_incident({"id": [7], "suspects": [{"rank": "three"}, 5], "times": {"onset": "now"}, "advice": "?"})
    assert (incident.id, incident.suspects[0].rank, len(incident.suspects)) == ("", None, 1)
    assert (incident.times.onset_s, incident.advice) == (0.0, None)


@given(ANY_JSON | HOSTILE)
def test_any_json_is_read_and_written(document: object) -> None:
    incident = read_incident(document)
    written = write_incident(incident)
    assert tuple(written)[: len(FIELDS)] == FIELDS
    canonical_line(written)
    assert back(written) == written or "NaN" in json.dumps(written)
