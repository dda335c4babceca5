"""Whatever stands in a log: no crash, no endless search, bounded memory, and blocks say what lines say."""

from __future__ import annotations

import io
import json
import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diagnosis.kernel_log.cases import WRAPPERS, cases
from tests.diagnosis.kernel_log.harmless import harmless_lines
from whichrank.diagnosis.kernel_log import KernelEvent, KernelLogReader
from whichrank.diagnosis.kernel_log import line_scan as scan_module
from whichrank.diagnosis.kernel_log.blocks import BLOCK_BYTES, read_log
from whichrank.diagnosis.kernel_log.line_folding import HEXADECIMAL, Fold
from whichrank.diagnosis.kernel_log.line_scan import LEAST, LineScan

WRAPPED = [wrapper.wrap(case.line) for wrapper in WRAPPERS.values() for case in cases()]


def by_line(log: bytes) -> list[KernelEvent]:
    reader = KernelLogReader()
    lines = log.decode("utf-8", "replace").split("\n")
    return [event for line in lines for event in reader.read(line.rstrip("\r"))] + list(reader.flush())


def by_block(log: bytes, size: int) -> list[KernelEvent]:
    class Pieces(io.BytesIO):
        def read(self, wanted: int | None = -1, /) -> bytes:
            return super().read(size)

    return list(read_log(KernelLogReader(), Pieces(log)))


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400), st.sampled_from(WRAPPED), st.integers(0, 400), st.integers(0, 400))
def test_a_line_with_anything_in_it_is_read(noise: str, line: str, at: int, cut: int) -> None:
    reader = KernelLogReader()
    for text in (noise, line[:at] + noise + line[at:], line[cut:], line[:cut]):
        for event in reader.read(text):
            assert event.text
            assert event.event
            json.dumps(dict(event.facts))
    reader.flush()


def test_mutated_lines_are_read_and_quickly() -> None:
    draw = random.Random(7)
    reader = KernelLogReader()
    began = time.process_time()
    for _ in range(4000):
        raw = bytearray(draw.choice(WRAPPED).encode())
        for _ in range(draw.randrange(1, 12)):
            at = draw.randrange(len(raw))
            raw[at : at + draw.randrange(3)] = bytes(draw.randrange(256) for _ in range(draw.randrange(4)))
        reader.read(bytes(raw).decode("utf-8", "replace"))
    reader.flush()
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "line",
    [
        "x" * 1_000_000,
        "NVRM: Xid (PCI:" + "0" * 1_000_000,
        "NVRM: Xid (PCI:0000:1b:00): 31, " + "a, " * 400_000,
        "oom-kill:constraint=CONSTRAINT_MEMCG," + "task=a,pid=1" * 100_000,
        '{"MESSAGE":"' + "\\" * 1_000_000,
        '{"MESSAGE":' + "[" * 200_000,
        "[" * 1_000_000 + " NVRM: Xid (",
        "INFO: task " + "a:1 " * 250_000 + "blocked for more than x",
        "\x00" * 1_000_000 + "EXT4-fs error (device sda1): x",
        "kern  :" * 150_000 + "VFS: file-max limit 1 reached",
        "Killed process 1 (" * 60_000,
    ],
    ids=lambda line: line[:20],
)
def test_a_long_line_takes_no_time(line: str) -> None:
    began = time.process_time()
    reader = KernelLogReader()
    reader.read(line)
    list(read_log(KernelLogReader(), io.BytesIO(line.encode())))
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("size", [97, 4096, BLOCK_BYTES])
def test_blocks_say_what_lines_say(size: int) -> None:
    draw = random.Random(11)
    lines = list(harmless_lines(2000)) + [draw.choice(WRAPPED) for _ in range(400)]
    lines += ["watchdog: BUG: soft lockup - CPU#7 stuck for 26s! [a:1]", " mlx5e_napi_poll+0x142/0x680 [mlx5_core]"]
    lines += ["Kernel panic - not syncing: x", "CPU: 4 PID: 112 Comm: khungtaskd Not tainted 6.1 #1"]
    draw.shuffle(lines)
    log = "\n".join(lines).encode()
    assert by_block(log, size) == by_line(log)
    assert len(by_line(log)) > 300


def test_a_line_longer_than_a_block_is_cut_and_the_next_is_read() -> None:
    fault = b"VFS: file-max limit 1 reached"
    log = fault + b" " + b"y" * (3 * BLOCK_BYTES) + b"\n" + fault + b"\n"
    assert [event.event for event in by_block(log, BLOCK_BYTES)] == ["vfs_file_max_limit_reached"] * 2


def test_memory_is_bounded() -> None:
    """By blocks, however long the log: 8 MB with a fault in every tenth line, on ever new devices."""

    class Endless:
        left = 8

        def read(self, size: int, /) -> bytes:
            self.left -= 1
            if self.left < 0:
                return b""
            filler = "ordinary line of a kernel that says nothing of interest at all\n" * 9
            one = "".join(
                f"{filler}NVRM: Xid (PCI:{self.left * 2000 + n:04x}:1b:00): 31, pid={n}, name=x, MMU Fault\n"
                for n in range(1600)
            )
            return one.encode()

    tracemalloc.start()
    try:
        count = sum(1 for _ in read_log(KernelLogReader(), Endless()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 8 * 1600
    assert peak < 60e6


LETTERS = "xyzXYZ (:12ab"
WORDS = st.text(LETTERS, min_size=4, max_size=9).filter(
    lambda word: len(word.encode().translate(None, HEXADECIMAL)) >= LEAST
)


@given(st.lists(WORDS, min_size=1, max_size=20), st.data())
@settings(max_examples=60, deadline=None)
def test_no_line_with_a_word_is_missed(words: list[str], data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.text(LETTERS, max_size=30), min_size=1, max_size=30))
    scan = LineScan(words, lambda word, line, fold: True)
    for _ in range(scan_module.OFTEN + 2):  # the second time the kinds of lines are known
        found = scan.kinds("\n".join(lines).encode())
        assert len(found) == len(lines)
        for line, kind in zip(lines, found, strict=True):
            held = {word for word in words if word in line}
            assert held <= {word for word, _ in kind.words}
            assert held <= {word for word, _ in scan.candidates_in(line.encode(), kind)}
            scan.said_nothing(line.encode(), kind)


def test_kinds_of_lines_that_say_nothing_are_asked_about_once() -> None:
    asked: list[tuple[str, str, Fold]] = []

    def may_match(word: str, line: str, fold: Fold) -> bool:
        asked.append((word, line, fold))
        return fold is Fold.COARSE and word == "xyz xyz"

    scan = LineScan(["xyz xyz", "(YZX"], may_match)
    for number in range(3 * scan_module.OFTEN):
        line = f"a{number % 10} xyz xyz (YZX".encode()
        (kind,) = scan.kinds(line)
        expected = ["xyz xyz", "(YZX"] if number < scan_module.OFTEN else []
        assert [word for word, _ in scan.candidates_in(line, kind)] == expected
        assert [word for word, _ in kind.words] == ["xyz xyz", "(YZX"]
        scan.said_nothing(line, kind)
    coarse, fine = " xyz xyz (YZX", "a0 xyz xyz (YZX"
    assert asked == [("xyz xyz", coarse, Fold.COARSE), ("(YZX", coarse, Fold.COARSE), ("xyz xyz", fine, Fold.FINE)]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_fault_is_read_after_lines_of_its_kind_that_said_nothing(ending: str) -> None:
    lines: list[str] = []
    for case in cases():
        silent = case.line.translate(str.maketrans("123456789", "0" * 9))
        lines += [silent] * (scan_module.OFTEN + 1) + [case.line]
    by_line = KernelLogReader()
    expected = [event for line in lines for event in by_line.read(line)] + list(by_line.flush())
    read = read_log(KernelLogReader(), io.BytesIO("".join(line + ending for line in lines).encode()))
    assert [event for event in read if event.event != "nic_link_stays_down"] == expected
    assert len(expected) > len(cases())


def test_of_lines_in_other_alphabets_nothing_is_supposed() -> None:
    scan = LineScan(["xyz xyz"], lambda word, line, fold: False)
    line = "xyz xyz \u0663".encode()
    for _ in range(2 * scan_module.OFTEN):
        (kind,) = scan.kinds(line)
        assert scan.candidates_in(line, kind)
        scan.said_nothing(line, kind)


def test_a_word_too_short_to_be_looked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        LineScan(["dead12xy"], lambda word, line, fold: True)
