"""``whichrank diagnose flight-recorder``: what people and programs get, and one line for what cannot be read."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.diagnosis.flight_recorder.played_job import OPEN, PlayedJob
from tests.diagnosis.test_nccl_ras import TROUBLE
from whichrank.commands.diagnose import diagnose_app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight ranks, of which rank 3 does not come to the second call; a log and a damaged dump lie beside the dumps."""
    job = PlayedJob(8)
    job.call("0")
    job.call("0", by=[rank for rank in range(8) if rank != 3], state=OPEN, line=88)
    for name, data in job.files(without=[6]).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "nccl_trace_rank_6").write_bytes(job.files()["nccl_trace_rank_6"][:200])
    (tmp_path / "train.log").write_text("not a dump")
    (tmp_path / "ras.status").write_text(TROUBLE)
    return tmp_path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(diagnose_app, ["flight-recorder", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_people_read_who_it_was_what_everybody_did_and_who_only_looks_guilty(folder: Path) -> None:
    code, out, err = run(str(folder))
    assert code == 0
    words = " ".join(out.split())
    assert "rank 3 did not enter what the others wait in [communication_hang / rank_not_entered]" in words
    assert "not guilty ranks 0-2,4-5,7" in words
    assert "no dump ranks 6" in words
    assert "7 of 8 ranks" in words
    assert "all_reduce 2 of default_pg" in words
    assert "train.py:88 in step" in words
    assert "NCCL RAS DEAD" in words
    assert "nccl_trace_rank_6" in err
    assert "cut or damaged" in err
    assert "Traceback" not in out + err


def test_programs_get_one_document(folder: Path) -> None:
    code, out, _ = run(str(folder), "--json")
    document: dict[str, Any] = json.loads(out)
    assert code == 0
    assert document["schema"] == 1
    assert (document["verdict"], document["kind"], document["bucket"]) == (
        "not_entered",
        "rank_not_entered",
        "communication_hang",
    )
    assert [suspect["rank"] for suspect in document["suspects"]] == [3]
    assert document["suspects"][0]["doing"]["last"]["sequence"] == 1
    assert document["group"]["missing"] == "3"
    assert document["victims"] == {"count": 6, "ranks": "0-2,4-5,7"}
    assert document["coverage"] == {"ranks_seen": 7, "ranks_expected": 8}
    assert document["no_dump"] == "6"
    assert document["ranks"][0]["doing"]["where"] == {"file": "/home/user/train.py", "line": 88, "function": "step"}
    assert document["nccl_ras"][1]["communicator_ranks"] == "13"
    assert document["advice"]["action"] == "restart"


def test_files_may_be_named_one_by_one(folder: Path) -> None:
    code, out, _ = run("--json", *(str(path) for path in sorted(folder.glob("nccl_trace_rank_[0-5]*"))))
    assert code == 0
    assert [suspect["rank"] for suspect in json.loads(out)["suspects"]] == [3]


@pytest.mark.parametrize("what", ["missing", "empty", "no dumps"])
def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path: Path, what: str) -> None:
    where = tmp_path / "dumps"
    if what != "missing":
        where.mkdir()
    if what == "no dumps":
        (where / "rank_0").write_text("hello")
    code, out, err = run(str(where))
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert str(where) in err


def test_a_hostile_dump_runs_nothing_and_moves_no_cursor(tmp_path: Path) -> None:
    proof = tmp_path / "ran"

    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {proof}",)

    dumps = tmp_path / "dumps"
    dumps.mkdir()
    job = PlayedJob(3)
    job.call("0", "all_reduce\x1b[2J\x07", by=[0, 1], state=OPEN)
    for rank in (0, 1):
        (dumps / f"rank_{rank}").write_bytes(pickle.dumps(job.dump(rank), 2))
    (dumps / "rank_2").write_bytes(pickle.dumps({"version": "2.10", "entries": [Runs()]}, 2))
    code, out, err = run(str(dumps))
    assert code == 0
    assert not proof.exists()
    assert "refused" in err
    assert "\x1b" not in out + err
    assert "\x07" not in out + err
