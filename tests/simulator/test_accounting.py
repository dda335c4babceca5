"""The operators' accounting is the simulator's truth, over hours with all that it must tell apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.long_runs import LONG
from whichrank.evaluation.bench.accounting_run import JOB, LongRun, compare, lines_of, long_run
from whichrank.simulator.ground_truth import TimeUse
from whichrank.telemetry.vocabulary import TimeBucket

HOURS = 3.0

pytestmark = LONG


@pytest.fixture(scope="module")
def run() -> LongRun:
    return long_run(1, HOURS)


def test_every_bucket_ettr_and_what_is_unknown_are_within_their_limits(run: LongRun) -> None:
    assert [row for row in run.rows if not row.is_ok] == []


def test_the_run_has_all_that_is_to_be_told_apart(run: LongRun) -> None:
    """Else the comparison would say nothing."""
    truth = run.ledger.sums_ns(JOB)
    assert {bucket for bucket in TimeUse if bucket is not TimeUse.QUEUED} == {b for b, ns in truth.items() if ns > 0}
    assert len({span.attempt for span in run.ledger.spans}) == 5
    assert len(run.found.interruptions) == 4
    assert [each.planned for each in run.found.interruptions] == [False, False, True, False]


def test_what_is_in_the_wrong_bucket_is_told(run: LongRun) -> None:
    wall_ns = (run.ledger.reach_ns(JOB) or 0) - run.ledger.begin_ns(JOB)
    moved = wall_ns // 400
    ns = dict(run.found.ns)
    ns[TimeBucket.PRODUCTIVE] -= moved
    ns[TimeBucket.RESTARTING] += moved
    wrong = compare(run.ledger.sums_ns(JOB), wall_ns, replace(run.found, ns=ns))
    said = {row.name for row in wrong if not row.is_ok}
    assert {"productive", "restarting"} <= said
    (line,) = [line for line in lines_of([run, replace(run, rows=tuple(wrong))]) if line.name.endswith("productive")]
    assert (line.share, line.ok) == ("1 of 2", False)
    hours, interruptions, *_ = lines_of([run])
    assert not hours.ok, "some hours of one job are too few"
    assert (interruptions.measured, interruptions.ok) == ("4", True)
