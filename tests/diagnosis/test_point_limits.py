"""Limits and peers: the tables are sound, and each limit holds on its own side only."""

from __future__ import annotations

from math import inf

import pytest

from whichrank.commands.check.expected import Expected
from whichrank.commands.check.finding import Family
from whichrank.diagnosis.health_checks.outcome import CheckStatus
from whichrank.diagnosis.health_checks.point_limits import Limit, Peer, judge_peers, judge_points, limits, peers
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.records import Point

ALL = [family.value for family in Family]


def point(metric: str, value: float, gpu: int | None = None, **labels: str) -> Point:
    where = {} if gpu is None else {"hw.name": f"GPU {gpu}"}
    return Point(name=metric, value=value, attributes={**where, **labels}, time_ns=1)


def nothing(key: str) -> float | None:
    return None


def test_tables_name_families_metrics_and_expectations_that_there_are() -> None:
    entries: list[Limit | Peer] = [*limits(), *peers()]
    for entry in entries:
        assert entry.family in ALL
        assert entry.metric in node_metrics()
        assert entry.remedy
    for limit in limits():
        assert not (limit.critical_above < limit.warn_above < inf)
        assert not (-inf < limit.warn_below < limit.critical_below)
        if limit.expected:
            Expected().number(limit.expected)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (83.0, CheckStatus.OK),
        (84.0, CheckStatus.OK),
        (85.0, CheckStatus.WARN),
        (92.0, CheckStatus.WARN),
        (92.5, CheckStatus.CRITICAL),
    ],
)
def test_a_limit_is_the_last_value_that_is_well(value: float, status: CheckStatus) -> None:
    hot = point("hw.temperature", value, 3, **{"hw.sensor_location": "gpu"})
    (judged,) = judge_points([hot], ["gpu"], nothing)
    assert (judged.status, judged.device) == (status, "GPU 3")


def test_what_is_expected_takes_the_place_of_both_limits() -> None:
    hot = point("hw.temperature", 70.0, 3, **{"hw.sensor_location": "gpu"})
    warm = point("hw.temperature", 88.0, 4, **{"hw.sensor_location": "gpu"})
    wanted = {"gpu.temperature_c": 60.0}
    assert [each.status for each in judge_points([hot], ["gpu"], wanted.get)] == [CheckStatus.CRITICAL]
    assert [each.status for each in judge_points([warm], ["gpu"], {"gpu.temperature_c": 90.0}.get)] == [CheckStatus.OK]


def test_one_that_differs_is_told_and_two_that_differ_are_both_told() -> None:
    lanes = [point("whichrank.gpu.pcie.lanes", 16.0, gpu) for gpu in range(7)]
    odd = [*lanes, point("whichrank.gpu.pcie.lanes", 8.0, 7)]
    assert [(each.device, each.status) for each in judge_peers(odd, ["gpu"])] == [("GPU 7", CheckStatus.WARN)]
    pair = [odd[0], odd[7]]
    assert {each.device for each in judge_peers(pair, ["gpu"])} == {"GPU 0", "GPU 7"}
    assert judge_peers(lanes, ["gpu"]) == []


def test_a_small_difference_within_the_tolerance_is_none() -> None:
    sizes = [point("hw.gpu.memory.limit", 80e9 + gpu * 1e6, gpu) for gpu in range(8)]
    assert judge_peers(sizes, ["gpu"]) == []


def test_no_family_no_judgement() -> None:
    assert judge_points([point("system.uptime", 5.0)], [], nothing) == []
