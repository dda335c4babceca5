"""Dumps of real gloo jobs, on the newest torch and the oldest supported one."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from tests.diagnosis.flight_recorder.played_job import diagnose, named
from whichrank.diagnosis.flight_recorder.analysis import Diagnosis
from whichrank.telemetry.vocabulary import Kind

JOB = Path(__file__).with_name("dumping_job.py")
OLDEST = Path(__file__).parents[3] / ".venv-oldest" / "bin" / "python"
SCENARIOS = ("rank_0_sleeps", "nested_1_sleeps", "rank_3_skips", "other_order")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return dumped_by(sys.executable, tmp_path_factory.mktemp("dumps"), SCENARIOS)


def dumped_by(python: str, folder: Path, scenarios: tuple[str, ...]) -> Path:
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    environment.pop("PYTHONPATH", None)
    subprocess.run(
        [python, str(JOB), str(folder), *scenarios], check=True, timeout=300, env=environment, stderr=subprocess.DEVNULL
    )
    return folder


@lru_cache(maxsize=16)
def diagnosis_of(folder: Path) -> Diagnosis:
    return diagnose({path.name: path.read_bytes() for path in sorted(folder.iterdir())})


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize(
    ("scenario", "kind", "ranks"),
    [
        ("rank_0_sleeps", Kind.RANK_NOT_ENTERED, [0]),
        ("nested_1_sleeps", Kind.RANK_NOT_ENTERED, [1]),
        ("rank_3_skips", Kind.DESYNC, [3]),
        ("other_order", Kind.DEADLOCK, []),
    ],
)
def test_real_dumps_name_who_did_it(dumps: Path, form: str, scenario: str, kind: Kind, ranks: list[int]) -> None:
    diagnosis = diagnosis_of(dumps / scenario / form)
    assert (diagnosis.kind, named(diagnosis)) == (kind, ranks)


def test_real_pickles_say_which_line_each_rank_is_at(dumps: Path) -> None:
    """torch's JSON has no stacks."""
    waiting = diagnosis_of(dumps / "nested_1_sleeps" / "pickle").activities[0]
    assert waiting.where is not None
    assert waiting.where.file == str(JOB)
    assert waiting.where.function == "train"
    assert waiting.open is not None
    assert (waiting.open.name, waiting.open.group) == ("all_reduce", "half")


def test_the_oldest_torch_does_not_record_gloo_and_the_verdict_says_so(tmp_path: Path) -> None:
    if not OLDEST.exists():
        pytest.skip("no .venv-oldest here: make setup-oldest")
    folder = dumped_by(str(OLDEST), tmp_path, ("rank_0_sleeps",)) / "rank_0_sleeps"
    for form in ("pickle", "json"):
        diagnosis = diagnosis_of(folder / form)
        assert diagnosis.kind is None
        assert "hold no calls" in diagnosis.summary
