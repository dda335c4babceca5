"""Large jobs on devices: of most steps only sums come, and they are as good as the calls themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.processors.job.synthetic_device_job import DeviceJob
from tests.processors.job.synthetic_job import drive
from whichrank.processors.job.detectors.slow.device_wait_time import stood_by_step
from whichrank.processors.job.state.state_rows import load_job
from whichrank.telemetry.records import Block, Record
from whichrank.telemetry.tables import COLLECTIVES, DEVICE_STEPS
from whichrank.telemetry.vocabulary import EventName

EVERY = 4


def summed(records: list[Record], calls: int) -> list[Record]:
    """The same with sums in place of the calls of all but every fourth step, as agents of large jobs tell them.

    calls: of a step. What is shipped while it is open is shipped again when it has ended.
    """
    out: list[Record] = []
    done: dict[tuple[int, int], dict[int, int]] = {}  # (rank, step) -> sequence -> ns
    opened: set[tuple[int, int]] = set()
    for record in records:
        block = record.payload
        if not isinstance(block, Block) or block.name is not EventName.BLOCK_COLLECTIVES:
            out.append(record)
            continue
        rows, sums, sent = block.rows, [], []
        for row in rows:
            key, at = (int(row["rank"]), int(row["seq"])), (int(row["rank"]), int(row["step"]))
            if row["done_ns"] > 0 and row["step"] % EVERY:
                stood = int(row["done_ns"] - row["started_ns"]) if row["started_ns"] else 0
                ended = done.setdefault(at, {})
                ended[key[1]] = stood
                if len(ended) == calls:
                    sums.append((at[0], 0, 0, calls, at[1], sum(ended.values()), 0, 0))
            sent.append(row["step"] % EVERY == 0 or row["done_ns"] == 0 or key in opened)
            if row["done_ns"] == 0:
                opened.add(key)
        for name, part in (
            (EventName.BLOCK_DEVICE_STEPS, np.array(sums, DEVICE_STEPS)),
            (EventName.BLOCK_COLLECTIVES, rows[np.array(sent, bool)].astype(COLLECTIVES)),
        ):
            if part.size:
                out.append(replace(record, payload=replace(block, name=name, rows=part)))
    return out


@pytest.mark.parametrize("fresh_each_time", [False, True])
def test_steps_are_measured_by_sums_as_by_their_calls(fresh_each_time: bool) -> None:
    records = DeviceJob(ranks=4, steps=30, ahead=2, seed=3).records()
    measured = []
    for part in (records, summed(records, 2)):
        context = drive(part, batches=[3], fresh_each_time=fresh_each_time)
        job = load_job(context.tables["job"])
        assert job is not None
        measured.append(job)
    whole, by_sums = measured
    assert whole.steps.times.steps.tolist() == by_sums.steps.times.steps.tolist()
    assert whole.steps.times.steps.size >= 24
    np.testing.assert_array_equal(whole.steps.times.self_ns, by_sums.steps.times.self_ns)
    np.testing.assert_allclose(
        whole.steps.window.looks[:, 6:].sum(axis=0), by_sums.steps.window.looks[:, 6:].sum(axis=0)
    )
    assert set(by_sums.open_steps.on_device.all()["step"].tolist()) <= {
        by_sums.steps.closed_step + 1
    }  # the last one is open


def test_a_slow_device_is_told_from_sums() -> None:
    job = DeviceJob(ranks=8, steps=90, kernel=lambda rank, step: 1.5 if (rank, step >= 50) == (3, True) else 1.0)
    found = [each.body for each in drive(summed(job.records(), 2)).final().values()]
    assert [(body["kind"], [who["rank"] for who in body["suspects"]]) for body in found] == [("rank_slow", [3])]


def test_sums_of_groups_add_up_and_what_comes_twice_counts_once() -> None:
    told = [(1, 0, 5, 70), (1, 3, 5, 7), (9, 0, 5, 80), (1, 0, 4, 90), (0, 0, 6, 0), (1, 0, 5, 70)]
    sums = np.array([(rank, group, 0, 2, step, ns, 0, 0) for rank, group, step, ns in told], DEVICE_STEPS)
    assert stood_by_step(sums, np.array([0, 1]), np.array([5, 6])).tolist() == [[-1, 77], [0, -1]]
