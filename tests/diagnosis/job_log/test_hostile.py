"""Whatever stands in a log, reading it ends, raises nothing, and stays small."""

from __future__ import annotations

import io
import random
import time
import tracemalloc

import pytest

from tests.diagnosis.job_log.test_cases import CASES
from whichrank.diagnosis import alike
from whichrank.diagnosis.job_log import episodes, log_scan
from whichrank.diagnosis.job_log.job_log_reader import LogSource, read_job_logs
from whichrank.diagnosis.job_log.log_prefix import read_lines
from whichrank.diagnosis.job_log.ways import NOBODY_KNOWN


def read(raw: bytes) -> None:
    read_job_logs([LogSource(name="log", file=io.BytesIO(raw))])


@pytest.mark.parametrize("seed", range(40))
def test_damaged_logs_are_read(seed: int) -> None:
    """Real-shaped logs with bytes changed, lines cut, joined, doubled and put elsewhere."""
    draw = random.Random(seed)
    raw = bytearray()
    for case in draw.choices(CASES, k=6):
        raw += case["log"].encode()
    for _ in range(draw.randrange(200)):
        at = draw.randrange(len(raw))
        kind = draw.randrange(5)
        if kind == 0:
            raw[at] = draw.randrange(256)
        elif kind == 1:
            del raw[at : at + draw.randrange(200)]
        elif kind == 2:
            raw[at:at] = draw.choice(
                (b"\x00", b"\r", b"\n", b"\xff\xfe", b"\x1b[", b'{"', b"Traceback (most recent call last):")
            )
        elif kind == 3:
            raw[at:at] = raw[at : at + draw.randrange(400)]
        else:
            raw[at : at + 1] = b"\n"
        if len(raw) < 100:
            raw += CASES[0]["log"].encode()
    read(bytes(raw))


def test_noise_is_read() -> None:
    draw = random.Random(1)
    read(draw.randbytes(200_000))
    read(bytes(draw.choices(b"\n\r\x1b[]{}:| 019eErRoOtTraceback\x00\xff", k=200_000)))
    read(b"\x00" * 1_000_000)
    read(b"Traceback (most recent call last):\n" * 5_000)
    read(b'{"message": ' * 5_000 + b"error\n")
    read(b"[" * 100_000 + b" error\n")


def test_a_line_of_a_megabyte_ends_soon() -> None:
    for text in (
        b"error ",
        b"nan ",
        b"[rank1]: ",
        b"1: ",
        b"Killed ",
        b"\r error",
        b"'Traceback (most recent call last)' \\n ",
    ):
        began = time.perf_counter()
        read(text * (1_000_000 // len(text)) + b"\n")
        assert time.perf_counter() - began < 3.0, text


def test_memory_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(alike, "KINDS", 200)
    monkeypatch.setattr(episodes, "MOST_GROUPS", 100)
    monkeypatch.setattr(episodes, "MOST_RANKS", 1000)

    def log(lines: int) -> io.BytesIO:
        draw = random.Random(2)
        words = [f"[rank{draw.randrange(4096)}]: ValueError: w{draw.random()} {draw.random()}" for _ in range(lines)]
        return io.BytesIO("\n".join(words).encode())

    peaks = []
    for lines in (2_000, 8_000):
        file = log(lines)
        tracemalloc.start()
        read_job_logs([LogSource(name="log", file=file)])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 20_000_000


def test_carriers_can_be_nested_and_none_is_needed() -> None:
    raw = (
        b"2026-01-01T10:00:00.123456789Z stderr F \x1b[31m12: [rank12]: "
        b"[2026-01-01 10:00:01,500] [train] [ERROR] lost it"
    )
    (line,) = read_lines(NOBODY_KNOWN, 1, raw)
    assert (line.rank, line.level, line.text) == (12, "ERROR", "lost it")
    assert line.stamp is not None
    assert line.stamp.text == "2026-01-01T10:00:00.123456789"
    assert line.own_stamp is not None
    assert line.own_stamp.text == "2026-01-01 10:00:01,500"
    (line,) = read_lines(NOBODY_KNOWN, 1, b"Killed")
    assert (line.rank, line.node, line.text) == (None, None, "Killed")


@pytest.mark.parametrize(
    ("raw", "rank", "local_rank", "node", "text"),
    [
        (b"[default3]:ValueError: x", None, 3, None, "ValueError: x"),
        (b"  7: ValueError: x", 7, None, None, "ValueError: x"),
        (b"node-7: ValueError: x", None, None, "node-7", "ValueError: x"),
        (b"[1,5]<stderr>:ValueError: x", 5, None, None, "ValueError: x"),
        (b"(TrainWorker pid=99, ip=10.0.0.3) ValueError: x", None, None, "10.0.0.3", "ValueError: x"),
        (b"Jan  2 10:00:00 gpu7 python3[44]: ValueError: x", None, None, "gpu7", "ValueError: x"),
        (b"python3: can't open file", None, None, None, "python3: can't open file"),
        (b"urllib3.exceptions.MaxRetryError: x", None, None, None, "urllib3.exceptions.MaxRetryError: x"),
        (b'{"level": "error", "msg": "lost", "rank": 4, "host": "n9"}', 4, None, "n9", "lost"),
        (b"[pod/job-worker-3/main] [rank3]: ValueError: x", 3, None, "job-worker-3", "ValueError: x"),
    ],
)
def test_carriers_tell_who_wrote(
    raw: bytes, rank: int | None, local_rank: int | None, node: str | None, text: str
) -> None:
    (line,) = read_lines(NOBODY_KNOWN, 1, raw)
    assert (line.rank, line.local_rank, line.node, line.text) == (rank, local_rank, node, text)
