"""The same small dumps to PyTorch's own analyser and to ours: an answer from people who did not write ours.

PyTorch takes the first rank for right, so where that one is odd it blames all the others; there we are held against the
fault that was put in.
"""

from __future__ import annotations

import copy
import json
import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.diagnosis.flight_recorder.played_job import diagnose, named

pytest.importorskip("torch.distributed.flight_recorder")

SIZES = {"all_reduce": [[4, 4]], "broadcast": [[4, 4]], "reduce": [[4, 4]], "all_to_all": [[4, 4]], "barrier": [[]]}
FAULTS = ("none", "type", "size", "dtype", "missing", "state")


def small_job(seed: int) -> tuple[dict[str, dict[str, Any]], str, int]:
    """(dumps as PyTorch's loader gives them, fault, guilty rank): up to three calls of three or four ranks."""
    chance = random.Random(seed)
    ranks, calls = chance.choice([3, 4]), chance.randrange(1, 4)
    program = [chance.choice(sorted(SIZES)) for _ in range(calls)]
    fault, guilty, at = FAULTS[seed % len(FAULTS)], chance.randrange(ranks), chance.randrange(calls)
    dumps = {}
    for rank in range(ranks):
        entries: list[dict[str, Any]] = []
        for number, op in enumerate(program):
            odd = fault if rank == guilty and number == at else "none"
            if fault == "missing" and rank == guilty and number == calls - 1:
                continue
            if odd == "type":
                op = "broadcast" if op == "reduce" else "reduce"
            sizes = [[5, 4]] if odd == "size" else SIZES[op]
            dtypes = "float16" if odd == "dtype" else "float32"
            entries.append(
                {
                    "profiling_name": f"nccl:{op}",
                    "state": "scheduled" if odd == "state" else "completed",
                    "process_group": ("0", "default"),
                    "input_sizes": sizes,
                    "output_sizes": sizes,
                    "input_dtypes": dtypes,
                    "output_dtypes": dtypes,
                    "collective_seq_id": number + 1,
                    "p2p_seq_id": 0,
                    "time_created_ns": 0,
                    "frames": [],
                    "record_id": number,
                    "is_p2p": False,
                }
            )
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
        dumps[f"dump_{rank}"] = {"entries": entries, "pg_config": config, "rank": rank, "version": "2.8"}
    return dumps, fault, guilty


def torch_says(dumps: dict[str, dict[str, Any]]) -> set[int]:
    """Ranks that PyTorch's analyser finds missing or differing in the first call that it does not let pass."""
    from torch.distributed.flight_recorder.components.builder import build_db

    logging.disable(logging.CRITICAL)
    options: Any = SimpleNamespace(
        verbose=False, just_print_entries=False, allow_incomplete_ranks=False, mismatch_cap=10
    )
    try:
        database = build_db(copy.deepcopy(dumps), options, "2.8")
    finally:
        logging.disable(logging.NOTSET)
    for call in database.collectives:
        ranks = set(call.mismatch_collectives or {}) | set(call.missing_ranks or ())
        if ranks:
            return ranks
    return set()


@pytest.mark.parametrize("seed", range(60))
def test_we_say_what_pytorch_says_and_the_truth_where_it_trusts_the_first_rank(seed: int) -> None:
    dumps, fault, guilty = small_job(seed)
    said = set(named(diagnose({"dumps.json": json.dumps(dumps).encode()})))
    assert said == (set() if is_harmless(dumps, fault) else {guilty})
    if guilty != 0:
        assert said == torch_says(dumps)


def is_harmless(dumps: dict[str, dict[str, Any]], fault: str) -> bool:
    """No fault, or one that the call does not show: a barrier has no data, and an all-to-all no common size."""
    return fault == "none" or not torch_says(dumps)
