"""NCCL's RAS status: dead processes, ranks that did not answer, ranks that are behind."""

from __future__ import annotations

import json
import random

import pytest

from whichrank.diagnosis.nccl_ras import BadRas, RasProblem, RasProcess, is_ras, parse_ras

HEAD = """NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          8            1         16       16

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         8        16        16   RUNNING  {}

"""
WELL = HEAD.format("OK")
TROUBLE = (
    HEAD.format("INCOMPLETE")
    + """Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 90211 on node 10.1.0.7 managing GPU 5

#0-0 (5ae81d7c0b9f3312) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 13

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (5ae81d7c0b9f3312) MISMATCH
  Communicator ranks have different collective operation counts
  14 ranks have launched up to operation 4812
  1 rank has launched up to operation 4811
  Rank 3 -- GPU 3 managed by process 88120 on node 10.1.0.6
"""
)


def test_a_sound_job_has_no_findings() -> None:
    assert is_ras(WELL.encode())
    assert parse_ras(WELL.encode()) == ()


def test_every_problem_names_its_ranks_and_processes() -> None:
    dead, incomplete, timeout, mismatch = parse_ras(TROUBLE.encode())
    assert (dead.problem, dead.processes) == (RasProblem.DEAD, (RasProcess(90211, "10.1.0.7", 5),))
    assert (incomplete.problem, incomplete.ranks) == (RasProblem.INCOMPLETE, (13,))
    assert incomplete.communicator == "5ae81d7c0b9f3312"
    assert (timeout.problem, timeout.ranks) == (RasProblem.TIMEOUT, ())
    assert (mismatch.problem, mismatch.ranks) == (RasProblem.MISMATCH, (3,))
    assert mismatch.processes == (RasProcess(88120, "10.1.0.6", 3),)
    assert mismatch.says.startswith("Communicator ranks have different")


def test_the_few_that_are_ahead_are_not_behind() -> None:
    ahead = TROUBLE.replace(
        "14 ranks have launched up to operation 4812", "14 ranks have launched up to operation 4810"
    )
    assert parse_ras(ahead.encode())[-1].ranks == ()


def as_json(behind: int) -> bytes:
    ranks = [
        {
            "rank": rank,
            "host": "n0",
            "pid": 100 + rank,
            "cuda_dev": rank,
            "coll_op_counts": {"AllReduce": 50, "Broadcast": 2},
        }
        for rank in range(8)
        if rank != 6
    ]
    ranks[behind]["coll_op_counts"] = {"AllReduce": 49, "Broadcast": 2}
    document = {
        "nccl_version": "2.28.9",
        "communicators": [{"hash": "0xabc", "ranks": ranks, "missing_ranks": [{"rank": 6, "host": "n0", "pid": 106}]}],
    }
    return json.dumps(document).encode()


def test_the_json_says_the_same() -> None:
    assert is_ras(as_json(2))
    incomplete, mismatch = parse_ras(as_json(2))
    assert (incomplete.problem, incomplete.ranks, incomplete.communicator) == (RasProblem.INCOMPLETE, (6,), "0xabc")
    assert (mismatch.problem, mismatch.ranks) == (RasProblem.MISMATCH, (2,))
    assert mismatch.processes == (RasProcess(102, "n0", 2),)


@pytest.mark.parametrize("data", [b"", b"{", b"hello", b"{" * 100_000, b"\xff" * 1000])
def test_what_is_no_status_is_refused(data: bytes) -> None:
    with pytest.raises(BadRas) as refused:
        parse_ras(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seed", range(30))
def test_damage_never_raises_anything_else(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(TROUBLE.encode() if seed % 2 else as_json(1))
    for _ in range(20):
        at = chance.randrange(60, len(data))
        data[at : at + chance.randrange(4)] = chance.choice([b"\x00", b"99999999999999999999", b"\n", b"{", b'"', b"-"])
    try:
        findings = parse_ras(bytes(data[: chance.randrange(60, len(data))]))
    except BadRas:
        return
    assert all(len(finding.ranks) < 1 << 20 for finding in findings)
