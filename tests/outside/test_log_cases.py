"""The scorer itself: what it takes as named, as silent, as wrong; and that it ends with a count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.outside.assertions import flight_recorder, job_log, kernel_log, ranks_of
from tests.outside.log_cases import cases_in, judge_all, main

DOCUMENT = {
    "class": "collective_stall",
    "is_cause": True,
    "confidence": 0.6,
    "why": "some ranks did not submit; what it names is rank 3",
    "primary": {"text": "missing ranks: 3", "exception": None, "rank": None, "node": "gpu-1", "device": "2"},
    "suspects": {"ranks": "3", "nodes": ["gpu-7"], "devices": []},
    "missing": "3",
    "consequences": [{"rank": 9, "peer": "gpu-9"}],
    "advice": {"action": "ask_a_human", "restart": "unknown", "text": "look at rank 3"},
    "progress": {"last": {"step": 40}},
}


@pytest.mark.parametrize(
    ("must", "is_right"),
    [
        ({"class": {"any": [".*stall.*"]}}, True),
        ({"class": {"any": ["stall"]}}, False),
        ({"class": {"not": [".*stall"]}}, False),
        ({"silent": True}, False),
        ({"silent": False}, True),
        ({"names_rank": [3]}, True),
        ({"names_rank": [9]}, False),
        ({"names_node": ["gpu-7"]}, True),
        ({"names_node": ["gpu-9"]}, False),
        ({"names_device": [2]}, True),
        ({"not_node": ["gpu-1"]}, False),
        ({"not_rank": [3]}, True),
        ({"action": {"any": ["restart"]}}, False),
        ({"restart": ["no", "unknown"]}, True),
        ({"confidence_max": 0.5}, False),
        ({"primary": {"any": ["MISSING"]}}, True),
        ({"says": {"not": ["batch"]}}, True),
        ({"step": [40, 41]}, True),
        ({"step": 41}, False),
        ({"any_of": [{"step": 41}, {"is_cause": True}]}, True),
        ({"no_such": 1}, False),
    ],
)
def test_assertions_of_a_job_log(must: dict[str, object], is_right: bool) -> None:
    assert (job_log(DOCUMENT, must) == []) is is_right


def test_ranks_are_read_in_every_shape() -> None:
    assert ranks_of("0-2,7") == {0, 1, 2, 7}
    assert ranks_of({"ranks": ["3", 4]}) == {3, 4}
    assert ranks_of(True) == set()


def test_assertions_of_kernel_logs_and_dumps() -> None:
    rows = {"events": [{"event": "xid", "code": "79", "device": "0000:3b:00", "domain": "hardware"}]}
    assert (
        kernel_log(rows, {"events": [[{"code": ["79"], "device": "0000:3b:00(\\.0)?"}]], "none": [{"event": "oom"}]})
        == []
    )
    assert kernel_log(rows, {"rows_max": {"of": {"event": "xid"}, "n": 0}}) != []
    assert flight_recorder({"kind": "x", "suspects": [{"rank": 1}]}, {"kind": ["x"], "suspects": [1]}) == []
    assert flight_recorder({"kind": "x", "suspects": []}, {"suspects": [1]}) != []


def test_a_folder_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / "rank_7"
    case.mkdir()
    (case / "log.txt").write_text("[rank1]: ValueError: bad value\n")
    (case / "expect.json").write_text(
        json.dumps({"command": "job-log", "classes": [9], "must": {"names_rank": [1], "not_rank": [7]}})
    )
    table = tmp_path / "table"
    table.mkdir()
    (table / "a.log").write_text("step 1 loss 2.0\n")
    (table / "b.log").write_text("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n")
    (table / "expect.json").write_text(
        json.dumps(
            {
                "a.log": {"command": "job-log", "must": {"silent": True}},
                "b.log": {"command": "kernel-log", "must": {"none": [{"code": ["79"]}]}},
            }
        )
    )
    results = dict(zip((case.name for case in cases_in(tmp_path)), judge_all(cases_in(tmp_path)), strict=True))
    assert {name: not result.problems for name, result in results.items()} == {
        "rank_7": True,
        "table/a.log": True,
        "table/b.log": False,
    }
    assert main([str(tmp_path), "--classes", "--only", "rank_7"]) == 0
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "class 9: 1 of 1" in printed
    assert printed.endswith("2 of 3 right\n")
