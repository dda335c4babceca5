"""The window of a large job in rows, one per step: what is written is read, and nothing is written twice."""

from __future__ import annotations

import numpy as np
import pytest

from tests.processors.job.synthetic_job import MemoryTable
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.processors.job.state.job_state import JobState
from whichrank.processors.job.state.state_rows import load_job, save_job
from whichrank.processors.job.state.step_rows import FEWEST_RANKS, tables_of
from whichrank.telemetry.vocabulary import Phase

RANKS = np.arange(FEWEST_RANKS)


def add(job: JobState, *steps: int) -> None:
    count, draw = len(steps), np.random.default_rng(steps[0])
    own = draw.integers(1, 1000, (count, RANKS.size))
    times = StepTimes(
        ranks=RANKS,
        steps=np.array(steps),
        begin_ns=np.array(steps) * 1000,
        duration_ns=np.full(count, 900),
        self_ns=own,
        starved_ns=own // 2,
        phase_self_ns=draw.integers(1, 1000, (count, RANKS.size, len(Phase))),
    )
    history = job.steps
    history.add(times, own[:, 0], own[:, 0], own[:, 0])
    history.norms = np.concatenate([history.norms, own.astype(float)])
    history.losses = np.concatenate([history.losses, own / 2])
    history.norm_steps = np.concatenate([history.norm_steps, np.stack([times.steps, times.begin_ns], axis=1)])
    inner = np.concatenate([times.steps[:, None], own], axis=1)
    history.window.inner = np.concatenate([history.window.inner, inner])


def rows_of(table: MemoryTable) -> dict[str, bytes]:
    return {name: value for name, value in table.rows() if name.startswith("step/")}


def assert_same(job: JobState, table: MemoryTable) -> JobState:
    loaded = load_job(table)
    assert loaded is not None
    for name, (numbers, lines) in tables_of(job.steps).items():
        again, same = tables_of(loaded.steps)[name]
        assert np.array_equal(again, numbers), name
        assert np.array_equal(same, lines), name
        assert same.dtype == lines.dtype
    return loaded


def test_what_is_written_is_read_and_a_closed_step_is_written_once() -> None:
    job, table = JobState(job="j"), MemoryTable()
    add(job, 3, 4, 5)
    save_job(job, table)
    before = rows_of(table)
    assert [int(name[5:]) for name in before] == [3, 4, 5]
    loaded = assert_same(job, table)
    add(job, 6)
    save_job(job, table)
    after = rows_of(table)
    assert all(after[name] is value for name, value in before.items())
    assert_same(job, table)
    add(loaded, 6)
    loaded.unsaved.revision = job.unsaved.revision
    save_job(loaded, table)
    kept = rows_of(table)
    assert all(kept[name] is value for name, value in before.items()), "nor after a restart"


def test_steps_that_leave_the_window_leave_their_rows() -> None:
    job, table = JobState(job="j"), MemoryTable()
    for step in range(40):
        add(job, step)
        save_job(job, table)
    assert len(job.steps.times.phase_self_ns) < 40, "of older steps no phases are kept"
    assert_same(job, table)
    job.steps.drop(10, 19)
    save_job(job, table)
    assert_same(job, table)
    assert not {step for step in map(int, (name[5:] for name in rows_of(table))) if 10 <= step < 20} - set(
        job.steps.norm_steps[:, 0].tolist()
    )


@pytest.mark.parametrize("ranks", [8, FEWEST_RANKS])
def test_a_new_attempt_writes_its_steps_though_they_have_the_same_numbers(ranks: int) -> None:
    job, table = JobState(job="j"), MemoryTable()
    add(job, 1, 2)
    save_job(job, table)
    job.begin_attempt("again")
    job.steps.begin_window(np.arange(ranks))
    save_job(job, table)
    assert not rows_of(table)
    add(job, 2, 3)
    save_job(job, table)
    assert_same(job, table)
    assert [int(name[5:]) for name in rows_of(table)] == [2, 3]
