"""What repeats say: one fault or many, hardware or application, over or not."""

from __future__ import annotations

import pytest

from whichrank.diagnosis.kernel_log import KernelLogReader
from whichrank.diagnosis.kernel_log.recurrence import (
    Sighting,
    bursts,
    cancelled,
    coalesced,
    conclusions,
    sighting_of,
)


def seen(time_s: float, code: str, device: str = "a", **more: object) -> Sighting:
    values: dict[str, object] = {"time_s": time_s, "node": "n", "code": code, "device": device} | more
    return Sighting(**values)  # type: ignore[arg-type]


def rules(*history: Sighting) -> set[str]:
    return {conclusion.rule for conclusion in conclusions(history)}


def test_five_bursts_of_one_code_on_one_gpu_are_the_hardware() -> None:
    history = [seen(at, "120") for at in (0, 10, 300, 600, 900, 1200)]
    (found,) = conclusions(history)
    assert (found.rule, found.count, found.device, found.domain.value) == ("repeated_xid_on_gpu", 5, "a", "hardware")
    assert rules(*history[:-1]) == set()
    assert rules(*history[:-1], seen(1200, "120", "b")) == set()
    assert rules(*history[:-1], seen(1200, "119")) == set()


def test_a_burst_before_the_last_day_does_not_count() -> None:
    history = [seen(at, "120") for at in (0, 90_000, 90_300, 90_600, 90_900)]
    assert rules(*history) == set()


def test_a_sticky_code_keeps_its_burst_open() -> None:
    assert len(bursts([seen(at, "79") for at in (0, 3000, 6000)])) == 1
    assert len(bursts([seen(at, "120") for at in (0, 3000, 6000)])) == 3
    assert len(bursts([seen(0, "79"), seen(20_000, "79")])) == 2


def test_page_faults_on_one_gpu_are_its_own_on_several_the_applications() -> None:
    assert rules(seen(0, "31")) == {"single_xid"}
    assert rules(seen(0, "31"), seen(600, "31")) == {"repeated_mmu_fault_on_gpu"}
    assert rules(seen(0, "31"), seen(10, "31", "b")) == {"mmu_faults_on_several_gpus", "single_xid"}


def test_exceptions_are_compared_by_processor() -> None:
    first, same, other = (seen(at, "13", place=place) for at, place in ((0, "1/2"), (600, "1/2"), (600, "1/3")))
    assert "repeated_exception_on_processor" in rules(first, same)
    assert "exceptions_on_several_processors" in rules(first, other)
    assert "exceptions_on_several_processors" not in rules(seen(0, "13"), seen(600, "13"))


def test_an_nvlink_error_is_judged_by_register_and_link() -> None:
    def link(time_s: float, name: str, register: int, bit: int) -> Sighting:
        return seen(time_s, "74", link=name, registers=tuple(1 << bit if n == register else 0 for n in range(7)))

    assert "nvlink_parity_error" in rules(link(0, "3", 0, 4), link(10, "3", 0, 5))
    assert "nvlink_parity_error" not in rules(link(0, "3", 0, 4), link(10, "4", 0, 4))
    assert rules(link(0, "3", 0, 20)) == {"nvlink_secondary_error_alone"}
    assert rules(seen(0, "48"), link(5, "3", 0, 20)) == set()


def test_a_recovery_ends_its_own_fault_on_its_own_device_only() -> None:
    active = [seen(0, "163"), seen(0, "163", "b"), seen(0, "98")]
    assert cancelled(seen(5, "162"), active) == active[:1]


def test_repeats_within_a_minute_are_one() -> None:
    history = [seen(0, "31"), seen(50, "31"), seen(100, "31"), seen(100, "31", "b"), seen(200, "31")]
    assert [(s.time_s, s.device, n) for s, n in coalesced(history)] == [(0, "a", 3), (100, "b", 1), (200, "a", 1)]


@pytest.mark.parametrize(
    ("line", "place", "link", "registers"),
    [
        ("13, pid=1, name=x, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Illegal", "1/2", "", ()),
        ("74, pid=1, name=x, NVLink: fatal error detected on link 5(0x10, 0x0, 0x4)", "", "5", (16, 0, 4)),
    ],
)
def test_a_line_becomes_a_sighting(line: str, place: str, link: str, registers: tuple[int, ...]) -> None:
    (event,) = KernelLogReader().read(f"[7.0] NVRM: Xid (PCI:0000:1b:00.0): {line}")
    sighting = sighting_of(event, "n")
    assert sighting is not None
    assert (sighting.device, sighting.place, sighting.link, sighting.registers) == (
        "0000:1b:00",
        place,
        link,
        registers,
    )
