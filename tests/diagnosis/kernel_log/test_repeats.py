"""Floods of one Xid: what is counted without being read is what reading every line says."""

from __future__ import annotations

import io
import random

import pytest

from tests.diagnosis.kernel_log.cases import READ_S
from whichrank.diagnosis.kernel_log import KernelLogReader
from whichrank.diagnosis.kernel_log.blocks import read_log
from whichrank.diagnosis.kernel_log.findings import Findings
from whichrank.diagnosis.kernel_log.repeats import RepeatLane
from whichrank.diagnosis.kernel_log.stamps import Calendar

Row = tuple[str, str, str, str, int]
STEP_S = {"dense": 0.02, "sparse": 1.7}


def grouped(log: bytes, *, by_lane: bool) -> tuple[list[Row], int, int, int]:
    findings = Findings()
    reader = KernelLogReader(calendar=Calendar(reference_s=READ_S))
    lane = RepeatLane(findings) if by_lane else None
    findings.collect(read_log(reader, io.BytesIO(log), lane))
    taken = lane.taken if lane is not None else 0
    rows = [(g.event.host, g.event.code, g.event.device, g.event.role.value, g.count) for g in findings.groups]
    return rows, findings.events + taken, findings.left_out, taken


def stamped(shape: str, at_s: float) -> str:
    if shape == "dmesg":
        return f"[{at_s:12.6f}]"
    minutes, seconds = divmod(int(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"Mar  {1 + hours // 24} {hours % 24:02d}:{minutes:02d}:{seconds:02d} gpu-07 kernel:"


@pytest.mark.parametrize("shape", ["dmesg", "syslog"])
@pytest.mark.parametrize("pace", STEP_S)
def test_a_flood_is_counted_as_it_would_be_read(shape: str, pace: str) -> None:
    draw = random.Random(5)
    at_s, lines = 100.0, []
    for number in range(3000):
        at_s += draw.random() * STEP_S[pace] * 2
        code = draw.choice((31, 31, 43, 45, 63, 79, 94))
        cause = " caused by previous Xid 149" if code == 45 and number % 50 == 0 else ""
        bus = draw.choice(("1b", "5d"))
        lines.append(f"{stamped(shape, at_s)} NVRM: Xid (PCI:0000:{bus}:00): {code}, pid={number}, name=x, Ch 1{cause}")
        if number % 100 == 0:
            lines.append(f"{stamped(shape, at_s)} an ordinary line, error timeout failed")
    log = "\n".join(lines).encode()
    by_lane, by_reader = grouped(log, by_lane=True), grouped(log, by_lane=False)
    assert by_lane[:3] == by_reader[:3]
    assert by_lane[3] > 1500
    assert len(by_lane[0]) > 10


def test_hosts_are_kept_apart() -> None:
    lines = [
        f"Mar  4 05:06:{n % 60:02d} {host} kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid={n}, name=x, MMU Fault"
        for n in range(50)
        for host in ("gpu-1", "gpu-17")
    ]
    rows, events, _, _ = grouped("\n".join(lines).encode(), by_lane=True)
    assert (events, sorted(row[0] for row in rows)) == (100, ["gpu-1", "gpu-17"])


def test_more_groups_than_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whichrank.diagnosis.kernel_log.findings.MOST_GROUPS", 3)
    lines = [
        f"[{n * 50:12.6f}] NVRM: Xid (PCI:0000:{n % 7:02x}:00): 31, pid={n}, name=x, MMU Fault" for n in range(100)
    ]
    rows, events, left_out, _ = grouped("\n".join(lines).encode(), by_lane=True)
    assert (len(rows), events) == (3, 100)
    assert left_out == 100 - sum(row[4] for row in rows)
