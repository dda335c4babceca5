"""Two entries, one answer: PyTorch's match states, and the table that they follow."""

from __future__ import annotations

from typing import Any

import pytest

from whichrank.diagnosis.flight_recorder.entry_matching import (
    ANY_OPERATION,
    MatchState,
    match_state,
    operation_rules,
    rule_of,
)
from whichrank.diagnosis.flight_recorder.rank_dump import DumpEntry, decode_dump

S = MatchState


def entry(
    op: str, sizes: Any = ((4, 4),), out: Any = None, *, dtype: str = "Float", out_dtype: str = "", **more: Any
) -> DumpEntry:
    raw = {
        "profiling_name": f"nccl:{op}",
        "state": "completed",
        "process_group": ("0", "default_pg"),
        "input_sizes": sizes,
        "output_sizes": sizes if out is None else out,
        "input_dtypes": [dtype],
        "output_dtypes": [out_dtype or dtype],
        **more,
    }
    return decode_dump({"entries": [raw]}, 0, "", keep=1).entries[0]


@pytest.mark.parametrize(
    ("one", "other", "state"),
    [
        (entry("all_reduce"), entry("all_reduce"), S.FULLY_MATCHED),
        (entry("all_reduce"), entry("broadcast"), S.COLLECTIVE_TYPE_MISMATCH),
        (entry("all_reduce"), entry("all_reduce", ((5, 4),)), S.SIZE_OR_SYNTAX_MISMATCH),
        (entry("all_reduce", out=((9,),)), entry("all_reduce", out=((9,),)), S.SIZE_OR_SYNTAX_MISMATCH),
        (entry("all_reduce"), entry("all_reduce", dtype="Half"), S.COLLECTIVE_DTYPE_MISMATCH),
        (entry("all_reduce"), entry("all_reduce", state="scheduled"), S.COLLECTIVE_STATE_MISMATCH),
        (entry("_all_gather_base", out=((8, 4),)), entry("_all_gather_base", out=((8, 4),)), S.FULLY_MATCHED),
        (entry("_all_gather_base", out=((9, 4),)), entry("_all_gather_base", out=((9, 4),)), S.SIZE_OR_SYNTAX_MISMATCH),
        (entry("all_gather", out=((4, 4), (4, 4))), entry("all_gather", out=((4, 4), (4, 4))), S.FULLY_MATCHED),
        (entry("reduce_scatter", ((8, 4),), ((4, 4),)), entry("reduce_scatter", ((8, 4),), ((4, 4),)), S.FULLY_MATCHED),
        (entry("_reduce_scatter_base"), entry("_reduce_scatter_base"), S.SIZE_OR_SYNTAX_MISMATCH),
        (entry("gather", out=((4, 4), (4, 4))), entry("gather", out=((),), out_dtype="None"), S.FULLY_MATCHED),
        (entry("scatter", ((4, 4), (4, 4)), ((4, 4),)), entry("scatter", ((),), ((4, 4),)), S.FULLY_MATCHED),
        (entry("broadcast"), entry("broadcast", dtype="Half", out_dtype="Float"), S.FULLY_MATCHED),
        (entry("all_to_all", ((3,),), ((5,),)), entry("all_to_all", ((9,),), ((1,),)), S.UNDECIDED),
        (entry("barrier", (), ()), entry("barrier", (), ()), S.FULLY_MATCHED),
        (entry("coalesced", ((),)), entry("coalesced", ((7,),)), S.FULLY_MATCHED),
        (entry("ALLGATHER_coalesced", ((),)), entry("all_reduce"), S.SIZE_OR_SYNTAX_MISMATCH),
        (entry("send 0->1"), entry("recv 1<-0"), S.FULLY_MATCHED),
        (entry("recv 1<-0"), entry("send 0->1"), S.FULLY_MATCHED),
        (entry("recv 1<-?"), entry("send 0->1"), S.FULLY_MATCHED),
        (entry("send 0->1"), entry("recv 1<-2"), S.SIZE_OR_SYNTAX_MISMATCH),
        (entry("send 0->1"), entry("recv 1<-0", ((7,),)), S.SIZE_OR_SYNTAX_MISMATCH),
        (entry("something_new"), entry("something_new", ((7,),)), S.FULLY_MATCHED),
    ],
)
def test_match_states(one: DumpEntry, other: DumpEntry, state: MatchState) -> None:
    assert match_state(one, other, 2) is state


def test_the_table_has_a_row_for_whatever_is_not_in_it() -> None:
    rules = operation_rules()
    assert ANY_OPERATION in rules
    assert rule_of("never heard of") == rules[ANY_OPERATION]
    assert not rules[ANY_OPERATION].synchronises


def test_only_operations_that_need_all_members_are_said_to_synchronise() -> None:
    synchronising = {name for name, rule in operation_rules().items() if rule.synchronises}
    assert {"all_reduce", "barrier", "_all_gather_base", "_reduce_scatter_base", "all_to_all"} <= synchronising
    assert not synchronising & {"broadcast", "reduce", "gather", "scatter", "send", "recv"}
