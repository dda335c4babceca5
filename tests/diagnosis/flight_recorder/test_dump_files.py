"""Files as people have them: names, forms, versions, several ranks in one, damage."""

from __future__ import annotations

import json
import pickle
import random
import time
from typing import Any

import pytest

from tests.diagnosis.flight_recorder.played_job import OPEN, PlayedJob, diagnose, named
from whichrank.diagnosis.flight_recorder.analysis import analyse
from whichrank.diagnosis.flight_recorder.dump_files import BadDump, DumpFiles, rank_in_name
from whichrank.diagnosis.flight_recorder.rank_dump import decode_dump, ranks_of, user_frame


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("_dump_3", 3),
        ("comm_lib_trace_rank_4095", 4095),
        ("node07_rank3_trace.json", 3),
        ("rank-2.pickle", 2),
        ("host-9/dump7.pkl", 7),
        ("11", 11),
        ("trace", None),
        ("trace_20251122", None),
    ],
)
def test_the_rank_is_at_the_end_of_a_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def hung_job() -> PlayedJob:
    job = PlayedJob(4)
    job.call("0")
    job.call("0", by=[0, 1, 3], state=OPEN)
    return job


@pytest.mark.parametrize(
    "together",
    [
        lambda dumps: {str(rank): dump for rank, dump in dumps.items()},
        lambda dumps: {f"dump_file_rank_{rank}": {**dump, "rank": rank} for rank, dump in dumps.items()},
        lambda dumps: [{**dump, "rank": rank} for rank, dump in dumps.items()],
        lambda dumps: list(dumps.values()),
        lambda dumps: {"dumps": {str(rank): dump for rank, dump in dumps.items()}},
    ],
)
def test_one_json_may_hold_all_ranks(together: Any) -> None:
    dumps = {rank: hung_job().dump(rank) for rank in range(4)}
    assert named(diagnose({"all.json": json.dumps(together(dumps)).encode()})) == [2]


def test_dumps_of_older_torch_have_one_number_and_no_group_name() -> None:
    """Torch 2.2: ``seq_id`` alone, and later releases' keys are missing."""
    job = hung_job()
    files = {}
    for rank in range(4):
        entries = []
        for entry in job.dump(rank)["entries"]:
            old = {key: entry[key] for key in ("record_id", "pg_id", "profiling_name", "state", "input_sizes")}
            entries.append({**old, "seq_id": entry["collective_seq_id"], "retired": False})
        files[f"rank_{rank}"] = pickle.dumps(entries if rank % 2 else {"version": "1.1", "entries": entries}, 2)
    assert named(diagnose(files)) == [2]


def test_the_newer_of_two_dumps_of_one_rank_counts() -> None:
    job = hung_job()
    collected = DumpFiles(6)
    for name, data in job.files().items():
        collected.add(name, data)
    late, early = job.dump(2), PlayedJob(4).dump(2)
    collected.add("copy/nccl_trace_rank_2", pickle.dumps(early, 2))
    assert "rank 2 is in" in collected.notes[0]
    assert len(collected.dumps[2].entries) == len(late["entries"])
    assert named(analyse(collected.dumps)) == [2]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"{", "cut or no JSON"),
        (b'{"version": "2.10", "entries": [', "cut or no JSON"),
        (b"[" * 100_000, "JSON"),
        (b"[1, 2, 3]", "no flight-recorder dump"),
        (b'{"a": {"b": 1}}', "no flight-recorder dump"),
        (b'{"entries": [' + b"9" * 100_000 + b"]}", "JSON"),
        (b"[" + b"{}," * 4_100_000 + b"{}]", "more than"),
        (b"some text that is neither", "refused"),
        (b"\x00" * 1000, "refused"),
    ],
)
def test_what_is_no_dump_is_refused_with_one_line(data: bytes, why: str) -> None:
    with pytest.raises(BadDump) as refused:
        DumpFiles(1).add("rank_0", data)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_dump_of_nobody_says_how_to_name_it() -> None:
    with pytest.raises(BadDump, match="of which rank"):
        DumpFiles(1).add("trace", json.dumps(hung_job().dump(0)).encode())


def test_entries_that_make_no_sense_are_counted_and_the_rest_is_read() -> None:
    raw = hung_job().dump(1)
    raw["entries"] += [None, 7, {"state": "scheduled"}, {"profiling_name": "nccl:"}]
    dump = decode_dump(raw, 1, "x", keep=100)
    assert (len(dump.entries), dump.unread) == (2, 4)


def test_only_so_many_entries_are_kept_and_the_open_ones_among_them() -> None:
    job = PlayedJob(2)
    job.call("0", by=[0], state=OPEN)
    for _ in range(500):
        job.call("0", by=[0])
    dump = decode_dump(job.dump(0), 0, "x", keep=64)
    assert len(dump.entries) == 64
    assert dump.entries[0].is_open
    assert dump.is_wrapped


def test_members_are_read_from_text_and_lists_and_garbage_is_nobody() -> None:
    assert ranks_of("[3, 1, 2]") == (1, 2, 3)
    assert ranks_of([2, 0]) == (0, 2)
    assert ranks_of("[99999999999, 4]")[-1] < 1 << 20
    assert ranks_of({"a": 1}) == ()


def test_the_users_frame_is_the_innermost_that_is_not_torchs() -> None:
    raw = hung_job().dump(0)
    dump = decode_dump(raw, 0, "x", keep=9)
    frame = user_frame(dump.entries[-1].frames)
    assert frame is not None
    assert (frame.file, frame.function) == ("/home/user/train.py", "step")


def mutated(value: Any, chance: random.Random) -> Any:
    """A dump in which any value may have become another: type, sign, size."""
    if chance.random() < 0.03:
        return chance.choice(
            [None, -1, 2**80, "x" * 1000, "\x00\x1b[2J", [], {}, [[]], True, 1e308, "9" * 19, -(2**63), [None] * 50]
        )
    if isinstance(value, dict):
        return {key if chance.random() > 0.02 else "odd": mutated(one, chance) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [mutated(one, chance) for one in value]
    return value


@pytest.mark.parametrize("seed", range(60))
def test_any_value_may_be_any_other_and_nothing_raises(seed: int) -> None:
    chance = random.Random(seed)
    job = PlayedJob(4, {"1": ("TP", [0, 1]), "2": ("TP", [2, 3])})
    for name in ("1", "2", "0"):
        job.call(name)
    job.call("0", "all_to_all", sizes=((7,),), out=((7,),))
    job.pair("0", 0, 1)
    job.pair("0", 2, 3, sent=OPEN, received=None)
    job.call("0", by=[0, 1, 3], state=OPEN)
    collected = DumpFiles(4)
    for rank in range(4):
        raw = mutated(job.dump(rank), chance)
        try:
            collected.add(f"rank_{rank}", json.dumps(raw).encode() if seed % 2 else pickle.dumps(raw, 2))
        except BadDump:
            continue
    diagnosis = analyse(collected.dumps)
    assert all(0 <= suspect.probability <= 1 for suspect in diagnosis.suspects)


def test_a_large_job_is_read_and_judged_in_seconds() -> None:
    """512 ranks with 40 entries each, in one JSON."""
    job = PlayedJob(512, {str(n + 1): ("TP", list(range(8 * n, 8 * n + 8))) for n in range(64)})
    for _ in range(18):
        for name in job.groups:
            job.call(name)
    job.call("0", by=[rank for rank in range(512) if rank != 300], state=OPEN)
    data = json.dumps({str(rank): job.dump(rank) for rank in range(512)}).encode()
    began = time.monotonic()
    assert named(diagnose({"all.json": data})) == [300]
    assert time.monotonic() - began < 20
