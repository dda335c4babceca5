"""What is no fault is none: ordinary lines in every wrapper, and this machine's own logs."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from tests.diagnosis.kernel_log.cases import READ_S, WRAPPERS
from tests.diagnosis.kernel_log.harmless import SHAPES, harmless_lines
from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader
from whichrank.diagnosis.kernel_log.blocks import read_log
from whichrank.diagnosis.kernel_log.stamps import Calendar

LINES = 12_000
#: What the tests of this project do to this machine themselves, and is a fault indeed.
OWN = {"cgroup_oom_kill", "oom_kill", "segfault", "segfault_in_library", "pids_limit", "hung_task"}
#: A virtual machine whose host has no time for it says so; nobody's test can help that.
STARVED = {"soft_lockup", "rcu_stall"}


def test_no_positive_in_ordinary_lines_in_any_wrapper() -> None:
    wrappers = list(WRAPPERS.values())
    reader = KernelLogReader(calendar=Calendar(reference_s=READ_S))
    found: list[tuple[str, KernelEvent]] = []
    count = 0
    # A prime number of wrappers ahead, so that each shape meets each wrapper.
    for number, line in enumerate(harmless_lines(LINES)):
        wrapper = wrappers[(number + number // len(SHAPES)) % len(wrappers)]
        found += [(line, event) for event in reader.read(wrapper.wrap(line))]
        count += 1
    assert count == LINES
    assert found == []


def test_each_shape_alone_is_harmless() -> None:
    wrong = []
    for line in harmless_lines(len(SHAPES)):
        reader = KernelLogReader()
        wrong += [(line, event.event) for event in (*reader.read(line), *reader.flush())]
    assert wrong == []


def test_no_positive_in_this_machines_own_logs_but_what_tests_did() -> None:
    logs = [path.read_bytes() for path in sorted(Path("/var/log").glob("*.log")) if _is_readable(path)]
    dmesg = subprocess.run(["dmesg"], capture_output=True, check=False)
    if dmesg.returncode == 0:
        logs.append(dmesg.stdout)
    if not any(logs):
        pytest.skip("no log of this machine can be read")
    found = [event for log in logs for event in read_log(KernelLogReader(), io.BytesIO(log))]
    assert [event for event in found if event.event not in OWN | STARVED] == []


def _is_readable(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size < 50_000_000 and path.open("rb").read(1) is not None
    except OSError:
        return False
