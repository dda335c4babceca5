"""Readings against expectations, and the readings out of tools' words."""

from __future__ import annotations

import random

import pytest

from whichrank.diagnosis.health_checks import readings
from whichrank.diagnosis.health_checks.expectations import ExpectationKind, expectations, expecting, judge
from whichrank.diagnosis.health_checks.outcome import EXIT_CODES, CheckOutcome, CheckStatus, outcome, worst

OK, WARN, CRITICAL, UNKNOWN = CheckStatus.OK, CheckStatus.WARN, CheckStatus.CRITICAL, CheckStatus.UNKNOWN


def test_every_check_of_the_table_can_fail_and_says_why() -> None:
    for check, entry in expectations().items():
        assert entry.shows, check
        assert judge(entry, None).status in (WARN, CRITICAL), check
        reasons = judge(entry, 1e12).reasons
        assert entry.shows in reasons[0], check
        if entry.rule is ExpectationKind.SHARE:
            assert judge(entry, entry.warn).status is OK, check
            assert judge(entry, entry.warn + 1).status is WARN, check
            assert judge(entry, entry.critical + 1).status is CRITICAL, check
        elif entry.expected is not None:
            assert judge(entry, entry.expected).status is OK, check
            statuses = {judge(entry, reading).status for reading in (-1e12, 1e12, "nonsense")}
            assert statuses & {WARN, CRITICAL}, check
        else:
            assert judge(entry, 1.0).status is UNKNOWN, check


@pytest.mark.parametrize(
    ("check", "expected", "reading", "status"),
    [
        ("gpu_count", 8, 8, OK),
        ("gpu_count", 8, 7, CRITICAL),
        ("hca_count", 4, 3, CRITICAL),
        ("hca_count", 4, 5, WARN),
        ("uptime", 600, 599.0, WARN),
        ("processor_frequency", 1400, 1399.9, CRITICAL),
        ("frequency_governor", "performance", "performance\n", OK),
        ("frequency_governor", "performance", "powersave", CRITICAL),
        ("vbios", "86.00", "", CRITICAL),
        ("retired_pages", 10, 10, OK),
        ("retired_pages", 10, 11, CRITICAL),
        ("gpu_count", 8, float("nan"), CRITICAL),
    ],
)
def test_rules(check: str, expected: float | str, reading: float | str, status: CheckStatus) -> None:
    assert judge(expecting(check, expected), reading).status is status


@pytest.mark.parametrize(
    ("operator", "held", "broken"), [(">", 4, 3), ("<", 2, 3), (">=", 3, 2), ("<=", 3, 4), ("=", 3, 4), ("==", 3, 2)]
)
def test_operators(operator: str, held: float, broken: float) -> None:
    assert judge(expecting("disk_size", 3, operator=operator), held).status is OK
    assert judge(expecting("disk_size", 3, operator=operator), broken).status is CRITICAL


def test_a_second_higher_limit_warns() -> None:
    expectation = expecting("bus_bandwidth", 200, warn=210)
    assert [judge(expectation, value).status for value in (199.0, 200.0, 209.0, 210.0)] == [CRITICAL, WARN, WARN, OK]


def test_which_of_several_is_named() -> None:
    assert judge(expecting("gpu_temperature"), 99.0, what="GPU 3").reasons == (
        "GPU 3: temperature of a GPU: 99.0 C, expected at most 84 C",
    )


def test_what_outweighs_what() -> None:
    assert worst([OK, UNKNOWN]) is UNKNOWN
    assert worst([UNKNOWN, WARN]) is WARN
    assert worst([CRITICAL, WARN, UNKNOWN]) is CRITICAL
    assert worst([]) is UNKNOWN
    assert sorted(EXIT_CODES.values()) == [0, 1, 2, 3]
    assert outcome("x", [], "fine") == CheckOutcome(check="x", status=OK, reasons=("fine",))


def test_readings() -> None:
    assert readings.number(" 12.5\n") == 12.5
    assert readings.number("12 apples") is None
    assert readings.first_number("350735.47 234388.90\n") == 350735.47
    assert readings.first_number("") is None
    assert readings.numbers("32 64", 2) == (32.0, 64.0)
    assert readings.numbers("32", 2) is None
    assert readings.percents("Use% IUse%\n 40%   3%") == (40, 3)
    assert readings.size_bytes("2T") == 2 * 2**40
    assert readings.size_bytes("512 MiB") == 512 * 2**20
    assert readings.size_bytes("big") is None
    assert readings.hca_count("1 HCA found:\n\tmlx5_0\n") == 1
    assert readings.link_words("  State: Active\n  Physical state: LinkUp\n", "State") == ("active",)
    assert readings.nodes_by_state("  12 IDLE\n 3 DOWN+DRAIN\nnonsense\n") == {"IDLE": 12, "DOWN+DRAIN": 3}
    assert readings.mounted("srv:/home on /home type nfs4 (rw)\n") == {"/home": "nfs4"}
    assert readings.counts_of("Module Size Used by\nmlx5_core 1 2 a,b\n") == {"mlx5_core": 2}


def test_any_text_is_survived() -> None:
    draw = random.Random(12)
    pieces = [
        "gpuId 0:\n",
        "U U D",
        "State: ",
        "12 IDLE\n",
        "{}",
        '{"body": {"a": 1}}',
        "40%",
        "\0",
        "\xff" * 50,
        "[" * 3000,
    ]
    texts = ["".join(draw.choice(pieces) for _ in range(draw.randrange(9))) for _ in range(300)] + ["9" * 10**6]
    readers = [getattr(readings, name) for name in ("number", "first_number", "percents", "size_bytes", "hca_count")]
    readers += [getattr(readings, name) for name in ("nvlink_states", "nvlink_errors", "nodes_by_state", "mounted")]
    for text in texts:
        for read in readers:
            read(text)
            read(None)
        readings.link_words(text, "State")
        readings.counts_of(text)
