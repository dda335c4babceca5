"""The incident document: schema, canonical line, light check."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from whichrank.telemetry.incident import (
    FIELDS,
    NESTED,
    SCHEMA_PATH,
    WHERE_KNOWN,
    canonical_line,
    check_document,
    complete_document,
    incident_id,
    read_line,
)
from whichrank.telemetry.vocabulary import Action, Bucket, Change, IncidentState, Kind, Phase, Scope, Severity

SCHEMA = json.loads(SCHEMA_PATH.read_text())
VALIDATOR = Draft202012Validator(SCHEMA)

#: The document printed in the design, with the enumerations settled.
EXAMPLE: dict[str, Any] = {
    "schema": 1,
    "id": "a1",
    "revision": 3,
    "change": "updated",
    "state": "open",
    "merged_into": None,
    "severity": "page",
    "cluster": "c",
    "job": {"run": "r", "id": "j", "name": "n", "attempt": "1", "owner": "o", "now": "running"},
    "jobs": [{"id": "j", "attempt": "1", "role": "culprit", "victims": {}, "cost": {}}],
    "bucket": "communication_hang",
    "kind": "rank_not_entered",
    "scope": "rank",
    "suspects": [
        {
            "scope": "rank",
            "id": "13",
            "rank": 13,
            "node": "node-02",
            "gpu": "GPU-5c",
            "pid": 4711,
            "where": {"file": "train.py", "line": 88, "phase": "forward"},
            "probability": 0.97,
        }
    ],
    "victims": {"count": 4095, "ranks": "0-12,14-4095"},
    "coverage": {"ranks_seen": 4096, "ranks_expected": 4096},
    "first_bad": {"step": 41, "group": "dp", "sequence": 97, "operation": "all_reduce"},
    "times": {"onset": 0.0, "detected": 0.0, "attributed": 0.0, "resolved": None},
    "evidence": [
        {
            "signal": "kernel.xid",
            "source": "node-02",
            "time": 0.0,
            "value": "79",
            "shows": "GPU 5 fell off the bus 0.8 s before rank 13 stopped",
        }
    ],
    "ruled_out": [{"who": "ranks 0-12", "looks_guilty": "printed a timeout", "because": "they wait in all_reduce 97"}],
    "history": {"suspect_incidents": 2, "last_change": None},
    "confidence": 0.97,
    "advice": {"action": "restart_without_node", "by": "automatic", "text": "t"},
    "cost": {"gpu_seconds": 0.0},
}
LEAST = {
    "id": "a1",
    "revision": 1,
    "change": Change.OPENED,
    "state": IncidentState.OPEN,
    "severity": Severity.PAGE,
    "bucket": Bucket.IMMEDIATE_CRASH,
    "kind": Kind.RANK_DIED,
    "scope": Scope.RANK,
    "times": {"onset": 1.5},
}


def errors(document: dict[str, Any]) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(document)]


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(EXAMPLE)
    *parents, last = path.split(".")
    target = document
    for parent in parents:
        target = target[parent]
    target[last] = value
    return document


def test_the_schema_is_a_schema_and_the_designs_document_holds_it() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert errors(EXAMPLE) == []
    assert check_document(EXAMPLE) == []


def test_a_document_of_the_least_that_is_known_is_complete_and_valid() -> None:
    document = complete_document(LEAST)
    assert errors(document) == []
    assert check_document(document) == []
    assert tuple(document) == FIELDS
    assert document["suspects"] == []
    assert document["advice"] is None
    assert document["job"] == dict.fromkeys(NESTED["job"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("change", "exploded"),
        ("state", "asleep"),
        ("severity", "loud"),
        ("bucket", "other"),
        ("kind", "gremlins"),
        ("scope", "planet"),
        ("id", ""),
        ("revision", 0),
        ("merged_into", "b2"),
        ("confidence", 1.5),
        ("times.onset", None),
        ("advice.action", "pray"),
        ("suspects", None),
    ],
)
def test_schema_and_light_check_both_refuse(path: str, value: Any) -> None:
    document = changed(path, value)
    assert errors(document)
    assert check_document(document)


def test_a_missing_field_is_refused_and_an_added_one_is_not() -> None:
    document = copy.deepcopy(EXAMPLE)
    del document["ruled_out"]
    assert errors(document)
    assert check_document(document)
    document = changed("suspects", [{**EXAMPLE["suspects"][0], "firmware": "1.2"}])
    document["mood"] = "bad"
    assert errors(document) == []
    assert check_document(document) == []


def test_the_schemas_closed_sets_are_the_vocabulary() -> None:
    properties = SCHEMA["properties"]
    for name, members in (
        ("change", Change),
        ("state", IncidentState),
        ("severity", Severity),
        ("bucket", Bucket),
        ("kind", Kind),
        ("scope", Scope),
    ):
        assert [value for value in properties[name]["enum"] if value is not None] == [m.value for m in members]
    assert properties["advice"]["properties"]["action"]["enum"] == [m.value for m in Action]
    where = properties["suspects"]["items"]["properties"]["where"]["properties"]
    assert where["phase"]["enum"] == [*(phase.name.lower() for phase in Phase), None]
    assert list(properties) == [*FIELDS, *WHERE_KNOWN]


def test_the_canonical_line_does_not_depend_on_order_types_or_tails_of_floats() -> None:
    shuffled = dict(reversed(list(copy.deepcopy(EXAMPLE).items())))
    shuffled["times"] = {"resolved": None, "attributed": 0.0, "detected": 1e-9, "onset": np.float64(0.0)}
    shuffled["suspects"] = tuple(dict(reversed(list(s.items()))) for s in EXAMPLE["suspects"])
    shuffled["bucket"] = Bucket.COMMUNICATION_HANG
    shuffled["revision"] = np.int64(3)
    assert canonical_line(shuffled) == canonical_line(EXAMPLE)
    assert canonical_line(EXAMPLE).count(b"\n") == 1


def test_times_keep_their_microseconds_and_nan_is_null() -> None:
    document = complete_document({**LEAST, "times": {"onset": 1790000000.1234567, "detected": float("nan")}})
    assert document["times"]["onset"] == 1790000000.123457
    assert document["times"]["detected"] is None
    assert json.loads(canonical_line(document))["times"]["onset"] == 1790000000.123457


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
        max_leaves=10,
    )
)
def test_canonical_lines_read_back_and_are_a_fixed_point(extra: Any) -> None:
    line = canonical_line({**LEAST, "notes": extra})
    assert canonical_line(read_line(line)) == line


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_lines_that_are_no_incident_are_refused_in_one_line(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_line(line)
    assert "\n" not in str(caught.value)


def test_an_id_is_fixed_by_what_opened_the_incident() -> None:
    ids = {
        incident_id(job, attempt, kind, place)
        for job in ("j", "j1")
        for attempt in ("", "1")
        for kind in (Kind.RANK_DIED, Kind.DESYNC)
        for place in ("", "dp 97")
    }
    assert len(ids) == 16
    assert incident_id("j", "a", Kind.RANK_DIED, "rank 2") == "49b33342386c32ad"
