"""The published straggler trace: read from parquet, judged against its authors' figures, SHORT where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.diagnosis.phase_times.test_what_if_replay import run_on_paper
from whichrank.evaluation.bench.straggler_trace import TRACE, read_operations, straggler_trace_lines

COLUMNS = {
    "rank": "worker",
    "dp_rank": "data_rank",
    "stage": "stage",
    "step": "step",
    "optype": "name",
    "start_ts": "start_s",
    "duration": "duration_s",
    "seq_id": "sequence",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job whose last stage has half as much again to do."""
    pyarrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    operations = run_on_paper(lambda stage, data, sample: 0.15 if stage == 3 else 0.1)
    table = {column: [getattr(each, name) for each in operations] for column, name in COLUMNS.items()}
    parquet.write_table(pyarrow.table(table), tmp_path / TRACE)
    return tmp_path


def test_operations_come_back_as_they_were_written(folder: Path) -> None:
    assert read_operations(folder / TRACE) == run_on_paper(lambda stage, data, sample: 0.15 if stage == 3 else 0.1)


def test_another_jobs_figures_are_short_and_its_last_stage_is_still_found(folder: Path) -> None:
    slowdown, _, verdict, worker = straggler_trace_lines(folder)
    assert not slowdown.ok
    assert slowdown.share == "0 of 1"
    assert (verdict.measured, verdict.ok, worker.ok) == ("last_stage", True, True)


def test_without_the_trace_nothing_is_measured_and_a_bad_one_is_short(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (line,) = straggler_trace_lines(tmp_path)
    assert (line.is_run, line.ok) == (False, False)
    assert TRACE in line.share
    (tmp_path / TRACE).write_bytes(b"no parquet")
    (line,) = straggler_trace_lines(tmp_path)
    assert (line.is_run, line.ok) == (True, False)
