"""What open findings remember is what they remembered, after a restart and after an upgrade in the middle of one."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from whichrank.processors.job.detectors.numeric.bad_numbers import BadNumber
from whichrank.processors.job.detectors.slow.straggler_memory import StragglerMemory
from whichrank.processors.job.state.finding_memory import (
    AllSilentMemory,
    AskedCall,
    DriftMemory,
    FindingDetail,
    FindingMemory,
    LateMemory,
    NumberMemory,
    PaceMemory,
    SilentNodeMemory,
    SlowWriterMemory,
    StallMemory,
)
from whichrank.processors.job.state.finding_rows import read_detail, write_detail

BAD = BadNumber(step=4, what="loss", value="NaN", ranks=(1, 2), all_ranks=(0, 1, 2), onset_ns=7)
MEMORIES: list[FindingMemory | None] = [
    None,
    StragglerMemory(rank=2, step=40, excess=0.3, usual=0.0, noise=0.02, based=False, company=(3, 4)),
    LateMemory(rank=1, usual_step_ns=100, late_step_ns=130),
    SlowWriterMemory(rank=0, before_ns=5, now_ns=9),
    DriftMemory(rank=3, rise=0.2, usual=0.01),
    PaceMemory(before_ns=100, after_ns=140, wanders=True),
    StallMemory(pause_steps=12),
    NumberMemory(bad=BAD, usual=2.5, good=1),
    SilentNodeMemory(node="node-4"),
    AllSilentMemory(since_ns=12),
]


def test_each_memory_is_tried() -> None:
    assert {type(memory) for memory in MEMORIES if memory is not None} == set(get_args(FindingMemory))


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: type(memory).__name__)
def test_it_comes_back_as_it_was_written(memory: FindingMemory | None) -> None:
    calls = (AskedCall(1, 0, False, 66), AskedCall(2, 1, True, -1))
    detail = FindingDetail(memory=memory, calls=calls, by_device=True, is_crash=True)
    assert read_detail(json.loads(json.dumps(write_detail(detail)))) == detail


@pytest.mark.parametrize(
    ("written", "detail"),
    [
        ({}, FindingDetail()),
        ({"crash": True}, FindingDetail(is_crash=True)),
        (
            {"calls": [[1, 0, False, 66]], "by_device": True},
            FindingDetail(calls=(AskedCall(1, 0, False, 66),), by_device=True),
        ),
        (
            {"rank": 2, "step": 40, "excess": 0.3, "usual": 0.1, "noise": 0.02},
            FindingDetail(memory=StragglerMemory(rank=2, step=40, excess=0.3, usual=0.1, noise=0.02)),
        ),
        (
            {"rank": 1, "usual_step_ns": 100, "late_step_ns": 130},
            FindingDetail(memory=LateMemory(rank=1, usual_step_ns=100, late_step_ns=130)),
        ),
        (
            {"rank": 0, "before_ns": 5, "now_ns": 9},
            FindingDetail(memory=SlowWriterMemory(rank=0, before_ns=5, now_ns=9)),
        ),
        ({"rank": 3, "rise": 0.2, "usual": 0.0}, FindingDetail(memory=DriftMemory(rank=3, rise=0.2, usual=0.0))),
        (
            {"before_ns": 100, "after_ns": 140, "wanders": True},
            FindingDetail(memory=PaceMemory(before_ns=100, after_ns=140, wanders=True)),
        ),
        ({"pause_steps": 12}, FindingDetail(memory=StallMemory(pause_steps=12))),
        (
            {
                "bad": {
                    **{"step": 4, "what": "loss", "value": "NaN", "ranks": [1, 2], "all_ranks": [0, 1, 2]},
                    "onset_ns": 7,
                },
                "usual": 2.5,
                "good": 1,
            },
            FindingDetail(memory=NumberMemory(bad=BAD, usual=2.5, good=1)),
        ),
        ({"good": 2}, FindingDetail(memory=NumberMemory(bad=None, good=2))),
        ({"node": "node-4"}, FindingDetail(memory=SilentNodeMemory(node="node-4"))),
        ({"since_ns": 12}, FindingDetail(memory=AllSilentMemory(since_ns=12))),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_an_earlier_release_has_written_is_known_by_what_stands_in_it(
    written: dict[str, Any], detail: FindingDetail
) -> None:
    assert read_detail(written) == detail
