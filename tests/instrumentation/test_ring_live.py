"""A ring that is read while it is written, and after its writer was killed: what a reader may accept is always true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.instrumentation.ring_groups import Event, RingReader, kind_of
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import EventKind

SLOTS = 64
#: Every record carries its own check: bytes = 7 x sequence, peer = sequence mod 1000; loss = step.
WRITER = f"""
import sys
from pathlib import Path
from whichrank.instrumentation.ring_writer import open_ring_writer
writer = open_ring_writer(
    Path(sys.argv[2]), rank=0, local_rank=0, world_size=2, identity={{}}, slots={SLOTS}, native=sys.argv[1] == "c"
)
group = writer.define_group({{"name": "0", "size": 2}})
writer.track_completion(True)
print(writer.path, flush=True)
seq = 0
while True:
    seq = writer.enqueue(group, 1, 7 * (seq + 1), 7, (seq + 1) % 1000, 0)
    writer.complete(group, seq, 0, 0)
    if seq % 16 == 0:
        writer.set_phase(seq // 16 % 5)
        writer.end_step(float(seq // 16 - 1), None, 0)
"""


def start_writer(kind: str, directory: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(directory)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def check_event(event: Event) -> None:
    number = event[layout.E_SEQ]
    if kind_of(event) == EventKind.ENQUEUE:
        assert event[layout.E_VALUE] == 7 * number
        assert event[layout.E_EXTRA] == number % 1000 + 1
    elif kind_of(event) == EventKind.COMPLETE:
        assert event[layout.E_VALUE] <= event[layout.E_TIME_NS]
    elif kind_of(event) == EventKind.STEP:
        assert event[layout.E_STEP] <= event[layout.E_TIME_NS]


def check_rows(reader: RingReader) -> int:
    """Checks the group row if it can be read now; returns how many halves could."""
    whole = 0
    front = reader.row(layout.FIRST_GROUP_ROW)
    if front is not None:
        whole += 1
        enqueued = front[layout.G_ENQUEUED >> 3]
        assert front[layout.G_BYTES >> 3] == 7 * enqueued
        assert front[layout.G_PEER >> 3] == (enqueued % 1000 + 1 if enqueued else 0)
    back = reader.row(layout.FIRST_GROUP_ROW, layout.G_DONE_VERSION)
    if back is not None:
        whole += 1
        assert (back[layout.G_OPEN >> 3] == 0) == (back[layout.G_OLDEST_OPEN_NS >> 3] == 0)
    return whole


@pytest.fixture(params=["python", "c"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process, path = start_writer(request.param, tmp_path)
    yield process, path
    process.kill()
    process.wait()


def test_whatever_a_live_reader_accepts_is_whole(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = running
    reader = RingReader(path)
    accepted = rows = 0
    heads = []
    until = time.monotonic() + 1.5
    while time.monotonic() < until or accepted < 200:
        assert process.poll() is None
        head = reader.head
        heads.append(head)
        # The newest, the one being written, and the one about to be overwritten.
        for index in (head - 1, head, head + 1, head - SLOTS, head - SLOTS + 1):
            if index >= 0 and (event := reader.event(index)) is not None:
                check_event(event)
                accepted += 1
        rows += check_rows(reader)
    assert heads == sorted(heads)
    assert heads[-1] > 2 * SLOTS, "the ring never wrapped"
    assert rows > 100
    reader.close()


def test_a_killed_writer_leaves_all_but_the_last_event(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = running
    reader = RingReader(path)
    while reader.head < 3 * SLOTS:
        time.sleep(0.001)
    time.sleep(int.from_bytes(os.urandom(1), "big") / 10_000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    head = reader.head
    missing = [index for index in range(head - SLOTS + 1, head) if reader.event(index) is None]
    assert missing == []
    for event in reader.events():
        check_event(event)
    check_rows(reader)
    reader.close()
