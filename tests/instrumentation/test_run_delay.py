"""A step says for how long its thread had no CPU, in both writers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.instrumentation.ring_groups import RingReader, kind_of
from whichrank.instrumentation.ring_writer import RankRecorder, open_ring_writer
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import EventKind


@pytest.fixture(params=["python", "c"])
def open_writer(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], RankRecorder]:
    native = request.param == "c"
    return lambda: open_ring_writer(tmp_path, rank=0, local_rank=0, world_size=1, identity={}, native=native)


@pytest.fixture
def writer(open_writer: Callable[[], RankRecorder]) -> Iterator[RankRecorder]:
    opened = open_writer()
    yield opened
    opened.close()


def delays_us(writer: RankRecorder) -> list[int | None]:
    """What each STEP event says: microseconds without a CPU, None = not read."""
    reader = RingReader(writer.path)
    words = [event[layout.E_HEAD] >> 32 for event in reader.events() if kind_of(event) == EventKind.STEP]
    reader.close()
    return [word - 1 if word else None for word in words]


def schedstats() -> set[int]:
    """Descriptors of this process that read a schedstat file."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listed them
            if os.readlink(f"/proc/self/fd/{name}").endswith("schedstat"):
                found.add(int(name))
    return found


def test_a_step_says_for_how_long_its_thread_had_no_cpu(writer: RankRecorder) -> None:
    writer.end_step(None, None, 0)  # too soon for a reading of its own
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        os.sched_setaffinity(rival.pid, {min(allowed)})
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        writer.end_step(None, None, 0)
    finally:
        os.sched_setaffinity(0, allowed)
        rival.kill()
        rival.wait()
    soon, crowded = delays_us(writer)
    assert soon is None
    assert crowded is not None
    assert 50_000 < crowded < 450_000
    writer.close()


def test_a_descriptor_that_became_anothers_is_neither_believed_nor_closed(
    open_writer: Callable[[], RankRecorder], tmp_path: Path
) -> None:
    others = schedstats()  # of rings that other tests in this process have not let go yet
    writer = open_writer()
    (ours,) = schedstats() - others
    (tmp_path / "precious").write_text("99 5 1\n")
    foreign = os.open(tmp_path / "precious", os.O_RDWR)
    os.dup2(foreign, ours)
    time.sleep(0.06)
    writer.end_step(None, None, 0)
    assert delays_us(writer) in ([None], [0])
    os.ftruncate(foreign, 0)
    time.sleep(0.06)
    writer.end_step(None, None, 0)
    assert delays_us(writer)[1] is None
    writer.close()
    assert os.fstat(ours).st_ino == os.fstat(foreign).st_ino
    os.close(ours)
    os.close(foreign)
