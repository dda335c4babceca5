"""What incidents are charged with, when it is told, and what remains of jobs that are over."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.processors.cluster.conftest import START_S, Court
from whichrank.diagnosis.goodput.interval import Interval, Part, as_body, as_lost
from whichrank.processors.cluster.case_book import KEPT_NS
from whichrank.processors.cluster.charged_accounts import Account, Accounts
from whichrank.processors.cluster.folding import FOLD_NS
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.records import Finding, Identity
from whichrank.telemetry.vocabulary import Kind, TimeBucket

B = TimeBucket
S = 1_000_000_000
Maker = Callable[..., Finding]


def told(interval: Interval, job: str = "j") -> Finding:
    """As the job operator tells it, at its end."""
    identity = Identity(cluster="local", run="r", job=job, attempt="a1")
    body = {"interval": as_body(interval)}
    key = f"a1/interval/{interval.world}.{interval.number}"
    return Finding(identity=identity, key=key, cleared=False, time_ns=interval.end_ns, body=body)


def interval(begin_s: float, end_s: float, number: int, *parts: Part, **values: Any) -> Interval:
    begin_ns, end_ns = (round((START_S + at) * S) for at in (begin_s, end_s))
    return Interval(begin_ns=begin_ns, end_ns=end_ns, number=number, gpus=8, parts=parts, **values)


def fault(begin_s: float, end_s: float, number: int, cause: str) -> Finding:
    part = Part(B.FAULT_AFTER_DETECTION, round((end_s - begin_s) * S), cause)
    return told(interval(begin_s, end_s, number, part))


def steps(number: int, first: int, saved: int = 0, seconds: int = 60) -> Interval:
    begin = 60.0 * number
    part = Part(B.PRODUCTIVE, seconds * S)
    return interval(
        begin, begin + seconds, number, part, steps=30, first_step=first, last_step=first + 29, saved_step=saved
    )


def costs(court: Court) -> list[float | None]:
    return [(document["cost"] or {}).get("gpu_seconds") for document in court.revisions]


def test_a_cost_that_grows_each_minute_is_told_each_time_it_has_doubled(finding: Maker) -> None:
    court, hang = Court(), finding(Kind.RANK_NOT_ENTERED, 3, at=0.0)
    court.hear(hang)
    for minute in range(120):
        court.hear(fault(60.0 * minute, 60.0 * minute + 60, minute, hang.key))
        court.pass_time(60.0 * minute + 62)
    told_costs = [cost for cost in costs(court) if cost]
    assert 5 <= len(told_costs) <= 8, "two hours, not 120 revisions"
    assert all(later > 2 * earlier for earlier, later in itertools.pairwise(told_costs))
    last = court.revisions[-1]
    assert last["jobs"][0]["cost"] == last["cost"]
    assert [document["change"] for document in court.revisions[1:]] == ["updated"] * (len(court.revisions) - 1)


def test_pieces_of_one_moment_are_one_revision_and_the_end_is_exact(finding: Maker) -> None:
    court, death = Court(), finding(Kind.RANK_DIED, 3, at=0.0)
    court.hear(death)
    court.hear(replace(death, cleared=True, time_ns=death.time_ns + 50 * S))
    before = len(court.revisions)
    court.hear(*(fault(10.0 * part, 10.0 * part + 10, part, death.key) for part in range(4)))
    court.pass_time(100.0)
    assert len(court.revisions) == before + 1
    assert court.revisions[-1]["cost"] == {"gpu_seconds": 8 * 40.0}
    assert court.revisions[-1]["state"] == "resolved"


def test_an_interval_that_comes_again_replaces_what_it_was(finding: Maker) -> None:
    court, death = Court(), finding(Kind.RANK_DIED, 3, at=0.0)
    intervals = [steps(number, 30 * number) for number in range(4)]
    court.hear(death, *(told(each) for each in intervals))
    lost = [as_lost(each, death.key) for each in intervals[2:]]
    court.hear(*(told(each) for each in lost), *(told(each) for each in lost))
    account = Account.unpack(court.table("accounts").get("j"))
    assert account.ns == {"productive": 120 * S, "rework": 120 * S}
    assert account.gpu_ns["rework"] == account.charged[death.key] == 8 * 120 * S
    assert account.missing == 0


def test_what_may_not_change_any_more_is_forgotten_and_not_counted_twice() -> None:
    court = Court()
    intervals = [steps(number, 30 * number, saved=30 * number) for number in range(100)]
    court.hear(*(told(each) for each in intervals))
    account = Account.unpack(court.table("accounts").get("j"))
    assert len(account.kept) < 20
    court.hear(told(intervals[0]))
    assert Account.unpack(court.table("accounts").get("j")).ns == {"productive": 6000 * S}


def test_intervals_that_never_came_are_counted() -> None:
    court = Court()
    court.hear(told(steps(0, 0)), told(steps(3, 90)))
    assert Account.unpack(court.table("accounts").get("j")).missing == 2


def test_a_charge_of_another_release_costs_nothing_and_breaks_nothing(finding: Maker) -> None:
    court = Court()
    broken = told(steps(0, 0))
    court.hear(finding(Kind.RANK_DIED, 3, at=0.0), replace(broken, body={"interval": {"parts": "none"}}))
    assert court.table("accounts").get("j") is None
    assert costs(court) == [None]


def test_jobs_of_last_week_are_sums(finding: Maker) -> None:
    """With and without incidents: by bucket, kind and node."""
    court, death = Court(), finding(Kind.RANK_DIED, 3, at=0.0)
    court.hear(death, fault(0, 100, 0, death.key))
    court.hear(told(replace(steps(0, 0), gpus=2), job="quiet"))
    court.pass_time(110.0)
    accounts = Accounts(court.table("accounts"), court.table("account_sums"))
    documents = {"j": list(map(read_incident, court.incidents.values()))}
    live = accounts.totals(documents)
    court.hear(replace(death, cleared=True, time_ns=death.time_ns + 200 * S))
    court.pass_time((KEPT_NS + 3 * FOLD_NS) / S + 1000)
    assert list(court.table("accounts").rows()) == []
    folded = accounts.totals({})
    assert folded == live
    assert folded["bucket/productive"] == 2 * 60 * S
    assert folded["bucket/fault_after_detection"] == folded["kind/rank_died"] == 800 * S
    assert "fold" not in court.timers, "nothing is left to look after"
