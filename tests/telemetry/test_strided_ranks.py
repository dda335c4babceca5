"""Long lists of ranks travel as runs with a stride, come back as they were, and exhaust nobody's memory."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from whichrank.telemetry import attributes as names
from whichrank.telemetry.block import MAX_RANK
from whichrank.telemetry.otlp import MAX_RANKS_TEXT, decode_logs
from whichrank.telemetry.otlp_encode import encode_payloads
from whichrank.telemetry.records import Block, Broken, Group, Identity
from whichrank.telemetry.ring_layout import format_ranks
from whichrank.telemetry.strided_ranks import lengthen, shorten
from whichrank.telemetry.tables import STEP_GROUPS
from whichrank.telemetry.vocabulary import EventName

STRIDED = format_ranks(list(range(3, 16_384, 8)))


def back(runs: str) -> str:
    return lengthen(runs, MAX_RANK, MAX_RANKS_TEXT)


@pytest.mark.parametrize(
    ("members", "runs"),
    [
        (list(range(0, 32, 8)), "0-24/8"),
        ([0, 1, 2, 3], "0-3"),
        ([7], "7"),
        ([0, 8], "0,8"),
        ([0, 1, 8, 16, 24, 25, 26], "0-1,8-24/8,25-26"),
        ([*range(0, 64, 8), *range(1024, 1088, 8)], "0-56/8,1024-1080/8"),
    ],
)
def test_runs_are_short(members: list[int], runs: str) -> None:
    assert shorten(format_ranks(members)) == runs
    assert back(runs) == format_ranks(members)


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(1, 9))
def test_every_list_comes_back(members: set[int], stride: int) -> None:
    text = format_ranks([member * stride for member in members])
    assert back(shorten(text)) == text


@pytest.mark.parametrize("ranks", ["3,1", "0-1,2-3", "a", "5-2", "1,1"])
def test_what_would_come_back_otherwise_is_not_shortened(ranks: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        shorten(ranks)


@pytest.mark.parametrize(
    "runs",
    ["", "a", "0-8/0", "8-0/2", "0-4194303", f"0-{1 << 22}/1000000", "0-999999999/2", "1-2/3/4", "1-", "-5", "0,,1"],
)
def test_damage_is_refused(runs: str) -> None:
    with pytest.raises(ValueError, match=r"run of ranks|characters"):
        back(runs)


def block_with(ranks: str, size: int) -> Block:
    group = Group(uid="u", name="dp", ranks=ranks, size=size, backend="nccl")
    rows = np.zeros(3, STEP_GROUPS)
    return Block(name=EventName.BLOCK_STEP_GROUPS, identity=Identity(job="j"), rows=rows, groups=(group,))


def test_a_block_of_a_large_job_is_small_and_names_all_members() -> None:
    value = encode_payloads([block_with(STRIDED, 2048)])
    assert len(STRIDED) > 10_000
    assert len(value) < 1000
    (block,) = decode_logs("t", value)
    assert isinstance(block, Block)
    assert block.groups == block_with(STRIDED, 2048).groups


@pytest.mark.parametrize("ranks", ["0-7", "0,8,16,24", format_ranks([n * n for n in range(300)]), ""])
def test_short_and_irregular_lists_are_written_as_ever(ranks: str) -> None:
    value = encode_payloads([block_with(ranks, 4)])
    assert json.dumps(ranks).encode() in value
    (block,) = decode_logs("t", value)
    assert isinstance(block, Block)
    assert block.groups[0].ranks == ranks


@pytest.mark.parametrize("runs", ["0-4194303/1", "0-8/0", "nonsense"])
def test_a_damaged_run_makes_the_block_unreadable_and_nothing_else(runs: str) -> None:
    value = encode_payloads([block_with(STRIDED, 2048)])
    text = f'"runs":"{shorten(STRIDED)}"'.encode()
    assert text in value
    request = ExportLogsServiceRequest.FromString(value)
    for pair in request.resource_logs[0].scope_logs[0].log_records[0].attributes:
        if pair.key == names.BLOCK_GROUPS:
            pair.value.string_value = pair.value.string_value.replace(shorten(STRIDED), runs)
    (broken,) = decode_logs("t", request.SerializeToString())
    assert isinstance(broken, Broken)
