"""The kernel log is followed: the kernel's own ring, files over every kind of rotation, journald; in bounded memory."""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from whichrank.agents.collectors.base.collector import Collected, NodeEvent, Timestamps
from whichrank.agents.collectors.logs.followed_file import MAX_LINE_BYTES, FollowedFile
from whichrank.agents.collectors.logs.kernel_log_collector import KernelLogCollector, default_sources
from whichrank.agents.collectors.logs.kernel_log_sources import (
    JournalSource,
    KernelLine,
    KmsgSource,
    LogFileSource,
    SourceCounts,
    parse_journal,
    parse_kmsg,
)
from whichrank.agents.collectors.logs.log_clock import LogClock
from whichrank.telemetry.ring_layout import LONGEST_WORD
from whichrank.telemetry.trust import Trust
from whichrank.telemetry.vocabulary import EventName

S = 1_000_000_000
BOOT_NS = 1_000_000 * S


def at(seconds: float) -> Timestamps:
    """So long after the boot."""
    return Timestamps(wall_ns=BOOT_NS + int(seconds * S), mono_ns=int(seconds * S))


def parse(text: str, moment: Timestamps) -> Sequence[NodeEvent]:
    """Every line with "Xid" is one; a line may tell its own time (seconds after the boot)."""
    if "Xid" not in text:
        return ()
    time_ns = BOOT_NS + int(float(text.split("@")[1]) * S) if "@" in text else moment.wall_ns
    return (
        NodeEvent(
            name=EventName.KERNEL_EVENT, time_ns=time_ns, mono_ns=moment.mono_ns, attributes={"line": text, "code": 79}
        ),
    )


class Ring:
    """A socket that keeps records apart, as /dev/kmsg does."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs.setblocking(False)
        self.sequence = 0

    def open(self, path: str) -> int:
        return os.dup(self._theirs.fileno())

    def write(self, text: str, mono_s: float) -> None:
        self._ours.send(f"4,{self.sequence},{int(mono_s * 1e6)},-;{text}\n".encode())
        self.sequence += 1

    def raw(self, record: bytes) -> None:
        self._ours.send(record)

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def ring() -> Ring:
    return Ring()


def kmsg_collector(ring: Ring, most_lines: int = 2000) -> KernelLogCollector:
    return KernelLogCollector(parse, {"ring": lambda: KmsgSource(7200, "ring", ring.open)}, most_lines=most_lines)


def lines_of(collected: Collected) -> list[str]:
    return [str(happening.attributes["line"]) for happening in collected.happenings]


def points_of(collected: Collected) -> dict[str, float]:
    return {point.name.removeprefix("whichrank.log."): point.value for point in collected.points}


# --- the kernel's ring ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"6,1990,42835236510,-;plain text\n", (1990, 42835236510000, ["plain text"])),
        (b"3,7,5,c,caller=T1;text; with, marks\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0\n", (7, 5000, None)),
        (b"6,1,2,-;two\\x0alines \\xe2\n", (1, 2000, ["two", "lines â"])),
        (b"6,1,2,-;\n", (1, 2000, [])),
        (b"no record at all", None),
        (b"6,x,2,-;text", None),
        (b"", None),
        (bytes(range(256)), None),
    ],
)
def test_a_record_of_the_kernel(record: bytes, expected: tuple[int, int, list[str] | None] | None) -> None:
    found = parse_kmsg(record)
    if expected is None or found is None:
        assert found is expected
    else:
        assert found == (*expected[:2], ["text; with, marks"] if expected[2] is None else expected[2])


def test_lines_come_with_the_time_of_their_record(ring: Ring) -> None:
    collector = kmsg_collector(ring)
    ring.write("Xid before", 9_990)
    ring.write("harmless", 9_991)
    first = collector.collect(at(10_000))
    assert lines_of(first) == ["Xid before"]
    assert first.happenings[0].time_ns == BOOT_NS + 9_990 * S
    assert first.happenings[0].mono_ns == 9_990 * S
    assert first.happenings[0].attributes["before_start"] is True
    assert "before_boot" not in first.happenings[0].attributes

    ring.write("Xid now", 10_000.5)
    second = collector.collect(at(10_001))
    assert [happening.time_ns for happening in second.happenings] == [BOOT_NS + int(10_000.5 * S)]
    assert all("before_start" not in happening.attributes for happening in second.happenings)
    assert collector.collect(at(10_002)) == Collected(points=[], happenings=[])
    collector.close()
    ring.close()


def test_it_looks_back_for_two_hours_only(ring: Ring) -> None:
    collector = kmsg_collector(ring)
    for mono_s in (10, 2_799, 2_801, 9_999):
        ring.write(f"Xid at {mono_s}", mono_s)
    assert lines_of(collector.collect(at(10_000))) == ["Xid at 2801", "Xid at 9999"]
    collector.close()
    ring.close()


def test_what_the_kernel_overwrote_is_counted(ring: Ring) -> None:
    collector = kmsg_collector(ring)
    ring.write("Xid 1", 1)
    ring.sequence += 40
    ring.write("Xid 2", 2)
    ring.raw(b"garbage \xff\x00")
    ring.write("Xid 3", 2)
    collected = collector.collect(at(3))
    assert lines_of(collected) == ["Xid 1", "Xid 2", "Xid 3"]
    assert points_of(collected) == {"lines": 3, "storms": 0, "lost.lines": 40, "lost.bytes": 0}
    collector.close()
    ring.close()


def test_a_log_that_cannot_be_read_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    collector = KernelLogCollector(lambda _text, _moment: [], default_sources(str(path)))
    for at_ns in (1, 2, 61_000_000_000):
        assert collector.collect(Timestamps(wall_ns=at_ns, mono_ns=at_ns)).blind
    path.write_text("")
    assert not collector.collect(Timestamps(wall_ns=1, mono_ns=200_000_000_000)).blind


def test_a_storm_is_taken_in_portions(ring: Ring) -> None:
    collector = kmsg_collector(ring, most_lines=20)
    for number in range(50):
        ring.write(f"Xid {number}", 1)
    portions = [collector.collect(at(2 + turn)) for turn in range(3)]
    assert [len(portion.happenings) for portion in portions] == [20, 20, 10]
    assert points_of(portions[-1])["storms"] == 2
    collector.close()
    ring.close()


def test_garbage_in_the_ring(ring: Ring) -> None:
    """Damaged records, 8-bit text, numbers without an end: each is a line or nothing, and the next is whole."""
    chance = random.Random(9)
    texts: list[str] = []

    def keep(text: str, moment: Timestamps) -> Sequence[NodeEvent]:
        assert 0 <= moment.mono_ns <= at(100_000).mono_ns
        texts.append(text)
        return ()

    collector = KernelLogCollector(keep, {"ring": lambda: KmsgSource(7200, "ring", ring.open)})
    whole = b"6,1990,42835236510,-;mlx5_core 0000:5e:00.0: Link down\n DEVICE=+pci:0000:5e:00.0\n"
    for turn in range(300):
        ring.raw(
            chance.choice(
                (
                    chance.randbytes(chance.randrange(1, 8000)),
                    whole[: chance.randrange(1, len(whole))],
                    bytes(byte ^ (chance.random() < 0.1) for byte in whole),
                    b"6," + b"9" * 5000 + b",1,-;x",
                    b"6,1," + b"9" * chance.randrange(1, 30) + b",-;x\\x0a\\xff\\xZZ",
                )
            )
        )
        collector.collect(at(50_000 + turn))
    ring.write("the last one", 50_300)
    collector.collect(at(50_301))
    assert texts[-1] == "the last one"
    collector.close()
    ring.close()


def test_the_parser_is_flushed_once_when_the_log_falls_silent(ring: Ring) -> None:
    flushed: list[Timestamps] = []

    def flush(now: Timestamps) -> Sequence[NodeEvent]:
        flushed.append(now)
        return parse("Xid held back", now)

    collector = KernelLogCollector(parse, {"ring": lambda: KmsgSource(7200, "ring", ring.open)}, flush=flush)
    collector.collect(at(1))
    assert flushed == []
    ring.write("the first of several lines", 1.5)
    assert collector.collect(at(2)).happenings == []
    assert lines_of(collector.collect(at(3))) == ["Xid held back"]
    collector.collect(at(4))
    assert flushed == [at(3)]
    collector.close()
    ring.close()


def test_a_log_clock_that_went_astray_is_put_right(ring: Ring) -> None:
    """After a month the log's clock is 40 s behind: the next line gets its true time, to the length of a look."""
    collector = kmsg_collector(ring)
    collector.collect(at(2_600_000))
    for look in range(1, 30):
        ring.write("Xid", 2_600_000 + look - 0.3 - 40)
        (happening,) = collector.collect(at(2_600_000 + look)).happenings
        assert happening.mono_ns / S == pytest.approx(2_600_000 + look - 0.3, abs=0.7)
    # A storm tells nothing more about the clock, and does not break it.
    for _ in range(100):
        ring.write("x", 2_600_029.5 - 40)
    collector.collect(at(2_600_030))
    ring.write("Xid", 2_600_030.5 - 40)
    (happening,) = collector.collect(at(2_600_031)).happenings
    assert happening.mono_ns / S == pytest.approx(2_600_030.5, abs=0.7)
    collector.close()
    ring.close()


@pytest.mark.parametrize("gap_s", [0.0, 0.2, -0.2, 3.0, -3.0, 600.0])
@pytest.mark.parametrize("drift", [0.0, 50e-6])
def test_the_gap_of_a_clock_is_found_whatever_it_is(gap_s: float, drift: float) -> None:
    chance = random.Random(4)
    clock = LogClock()
    mono_s, last_s, error_s = 1000.0, 1000.0, 0.0
    for look in range(2000):
        last_s, mono_s = mono_s, mono_s + chance.choice((1.0, 1.0, 30.0))
        written_s = chance.uniform(last_s, mono_s + 0.1)  # some are written while the look is under way
        record_s = written_s - gap_s - drift * written_s
        clock.see(int(record_s * S), int(last_s * S), int(mono_s * S))
        error_s = max(error_s, abs(clock.mono_ns(int(record_s * S)) / S - written_s)) if look > 100 else 0.0
    assert error_s < 1.2


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="no right to read and write /dev/kmsg")
def test_the_real_kernel_log() -> None:
    def now() -> Timestamps:
        return Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())

    collector = KernelLogCollector(parse, look_back_s=5)
    for _ in range(1000):  # until all that was there before is read
        if not points_of(collector.collect(now())):
            break
    mark = f"whichrank test Xid {uuid.uuid4()}"
    before_ns = time.monotonic_ns()
    with open("/dev/kmsg", "wb", buffering=0) as kmsg:
        kmsg.write(f"{mark}\n".encode())  # without its end the kernel keeps it back until the next
    collected = collector.collect(now())
    assert mark in lines_of(collected)
    found = next(happening for happening in collected.happenings if happening.attributes["line"] == mark)
    assert abs(found.mono_ns - before_ns) < S
    collector.close()


# --- files ----------------------------------------------------------------------------------------------------------


def test_happenings_of_a_file_keep_the_time_of_their_line(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text("Xid @-50\nXid @-9000\nXid @10\nXid without\n")
    collector = KernelLogCollector(parse, {"file": lambda: LogFileSource(str(log))})
    collected = collector.collect(at(100))
    marks = [
        (happening.time_ns - BOOT_NS, happening.attributes.get("before_start"), happening.attributes.get("before_boot"))
        for happening in collected.happenings
    ]
    assert marks == [(-50 * S, True, True), (10 * S, True, None), (100 * S, None, None)]
    collector.close()


def follow(path: Path, look_back_bytes: int = -1) -> Callable[[], list[str]]:
    followed = FollowedFile(str(path), look_back_bytes=look_back_bytes)

    def read() -> list[str]:
        return [line.decode() for line in followed.read_lines(1000, 1 << 20)]

    read.followed = followed  # type: ignore[attr-defined]
    return read


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_rotation_by_rename_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\n")
    read = follow(log)
    assert read() == ["a"]
    log.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", "b: its writer has not noticed yet\nhalf")
    assert read() == ["b: its writer has not noticed yet"]
    log.write_text("c\n")
    append(tmp_path / "log.1", " done\n")
    assert read() == ["half done"]
    assert [*read(), *read()] == ["c"]
    append(log, "d\n")
    assert read() == ["d"]


def test_the_half_line_of_a_file_that_is_gone_is_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\nlast words")
    read = follow(log)
    assert read() == ["a"]
    log.unlink()
    log.write_text("c\n")
    assert [*read(), *read(), *read()] == ["last words", "c"]


@pytest.mark.parametrize("refill", ["b\n", "a much longer text than there was before\nb\n", ""])
def test_truncation_and_refilling(tmp_path: Path, refill: str) -> None:
    log = tmp_path / "log"
    log.write_text("first line\nsecond line\n")
    read = follow(log)
    assert len(read()) == 2
    with open(log, "r+") as file:
        file.truncate()
        file.write(refill)
    assert read() == refill.splitlines()
    append(log, "c\n")
    assert read() == ["c"]


def test_a_hole_before_the_next_line_costs_nothing(tmp_path: Path) -> None:
    """Copytruncate under a writer that does not append: it goes on at its old place, after a terabyte of nothing."""
    log = tmp_path / "log"
    log.write_text("a\n")
    read = follow(log)
    assert read() == ["a"]
    with open(log, "r+b") as file:
        file.truncate(0)
        file.seek(1 << 33)
        file.write(b"after the hole\n")
    begin_s = time.process_time()
    assert read() == ["after the hole"]
    assert time.process_time() - begin_s < 1


def test_a_file_system_that_knows_no_holes_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "lseek", refuse)
    log = tmp_path / "log"
    log.write_text("a\nb\n")
    assert follow(log)() == ["a", "b"]


def test_half_lines_wait_for_their_end_but_not_forever(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("whole\nha")
    read = follow(log)
    assert read() == ["whole"]
    append(log, "lf\nRuntimeError: no end")
    assert read() == ["half"]
    assert read() == []
    assert read() == ["RuntimeError: no end"]
    append(log, " at all\n")
    assert read() == [" at all"]


def test_progress_bars_leave_what_a_terminal_would_show(tmp_path: Path) -> None:
    log = tmp_path / "log"
    read_bytes = "".join(f"\r{number}%|####    | {number}/10000 [00:01<00:02]" for number in range(10_000))
    log.write_text(read_bytes + "\rTraceback (most recent call last):\r\n")
    read = follow(log)
    assert read() == ["Traceback (most recent call last):"]
    assert read.followed.counts.cut_lines == 0  # type: ignore[attr-defined]


def test_a_long_line_is_cut_and_the_next_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"\nnext\n")
    read = follow(log)
    assert [len(line) for line in read()] == [MAX_LINE_BYTES - LONGEST_WORD, 4]  # it is all one word
    assert read.followed.counts.cut_lines == 1  # type: ignore[attr-defined]


def test_it_looks_back_from_the_end_of_the_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert follow(log, 20)() == ["line 998", "line 999"]
    assert follow(log, 18)() == ["line 998", "line 999"]
    assert follow(log, 17)() == ["line 999"]


def test_limits_per_read_lose_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    expected = [f"line {number}" for number in range(5000)]
    log.write_text("\n".join(expected) + "\n")
    followed = FollowedFile(str(log), look_back_bytes=-1)
    found: list[str] = []
    reads = 0
    while more := followed.read_lines(700, 1 << 20):
        assert len(more) <= 700
        found += [line.decode() for line in more]
        reads += 1
    assert found == expected
    assert reads == 8
    followed.close()


def test_only_regular_files_are_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("fifo", "link", "absent"):
        with pytest.raises((OSError, ValueError)):
            FollowedFile(str(tmp_path / name), look_back_bytes=-1)
    assert os.listdir("/proc/self/fd")  # and none of them stays open
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    assert not [target for target in held if str(tmp_path) in target]


def _is_link(fd: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(f"/proc/self/fd/{fd}").st_mode)
    except OSError:
        return False


def test_whatever_is_done_to_a_file_reading_goes_on(tmp_path: Path) -> None:
    """Garbage, zeros, long lines, rotation and truncation in any order: bounded, and the newest line arrives."""
    chance = random.Random(11)
    log = tmp_path / "log"
    log.write_bytes(b"")
    followed = FollowedFile(str(log), look_back_bytes=-1)
    begin_s = time.process_time()
    for _ in range(400):
        what = chance.randrange(7)
        if what == 0:
            log.rename(tmp_path / "log.1")
            log.write_bytes(b"")
        elif what == 1:
            os.truncate(log, chance.randrange(max(log.stat().st_size, 1)))
        elif what == 2:
            with open(log, "ab") as file:
                file.write(b"y" * chance.randrange(300_000))
        else:
            with open(log, "ab") as file:
                file.write(chance.randbytes(chance.randrange(2000)))
        lines = followed.read_lines(500, 1 << 20)
        assert all(len(line) <= MAX_LINE_BYTES and b"\n" not in line for line in lines)
    with open(log, "ab") as file:
        file.write(b"\nthe newest line\n")
    last = [line for _ in range(5) for line in followed.read_lines(100_000, 64 << 20)]
    assert b"the newest line" in last
    assert time.process_time() - begin_s < 5
    followed.close()


# --- journald -------------------------------------------------------------------------------------------------------

JOURNALCTL = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$*" in
  *"-n 1"*) cat {folder}/shown; exit 0;;
esac
cat {folder}/lines
echo "Failed to follow: {end}" >&2
{then}
"""


def record(text: object, mono_s: float, cursor: str) -> str:
    return json.dumps({"MESSAGE": text, "__CURSOR": cursor, "_SOURCE_MONOTONIC_TIMESTAMP": str(int(mono_s * 1e6))})


def journalctl(folder: Path, lines: str, then: str, shown: str = '{"MESSAGE": "Linux version 6"}') -> str:
    program = folder / "journalctl"
    program.write_text(JOURNALCTL.format(folder=folder, end="disk is gone", then=then))
    program.chmod(0o755)
    (folder / "lines").write_text(lines)
    (folder / "shown").write_text(shown)
    return str(program)


def read_until(source: JournalSource, now: Timestamps, count: int) -> list[KernelLine]:
    found: list[KernelLine] = []
    end_s = time.monotonic() + 20
    while len(found) < count and time.monotonic() < end_s:
        found += source.read(now, 100)
        time.sleep(0.01)
    return found


def test_a_line_of_journald_has_the_time_of_its_receipt_but_for_those_of_the_boot() -> None:
    def mono_s(source_s: int, received_s: int) -> float:
        fields = {
            "_SOURCE_MONOTONIC_TIMESTAMP": str(source_s * 10**6),
            "__MONOTONIC_TIMESTAMP": int(received_s * 1e6),
        }
        found = parse_journal(json.dumps({"MESSAGE": "x", **fields}).encode(), at(10_000))
        assert found is not None
        return found[1].moment.mono_ns / S

    assert mono_s(9_000, 9_040) == 9_040
    assert mono_s(2, 15) == 2


def test_journald_is_followed_by_a_child(tmp_path: Path) -> None:
    lines = "\n".join((record("Xid 79", 50, "c1"), "not json", record([255, 65], 51, "c2"), record(None, 52, "c3")))
    source = JournalSource(7200, journalctl(tmp_path, lines + "\n", "exec sleep 1000"))
    found = read_until(source, at(100), 3)
    assert [(line.text, line.moment.mono_ns // S) for line in found] == [("Xid 79", 50), ("\ufffdA", 51), ("None", 52)]
    assert source.read(at(101), 100) == []
    source.close()


def test_a_journalctl_that_ends_is_started_again_behind_the_last_line(tmp_path: Path) -> None:
    source = JournalSource(7200, journalctl(tmp_path, record("Xid 1", 50, "cursor-1") + "\n", "exit 1"))
    assert len(read_until(source, at(100), 1)) == 1
    with pytest.raises(OSError, match="disk is gone"):
        read_until(source, at(100), 1)
    calls = tmp_path / "calls"
    end_s = time.monotonic() + 20
    while calls.read_text().count("--no-tail") < 2 and time.monotonic() < end_s:
        time.sleep(0.01)
    assert "--since=-7200s" in calls.read_text().splitlines()[1]
    assert "--after-cursor=cursor-1" in calls.read_text().splitlines()[2]
    # The next end is told only after a while: no storm of children.
    assert read_until(source, at(101), 1)[0].text == "Xid 1"
    for _ in range(20):
        source.read(at(101), 100)
    assert calls.read_text().count("--no-tail") == 2
    source.close()


def test_a_journal_that_may_not_be_read_is_no_source(tmp_path: Path) -> None:
    program = journalctl(tmp_path, "", "exit 0", shown="")
    with pytest.raises(PermissionError, match="no right"):
        JournalSource(7200, program)


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"1", b'{"MESSAGE": [1, 999]}', b"[" * 100_000, b"\xff\x00"])
def test_what_is_no_record_of_journald(document: bytes) -> None:
    assert parse_journal(document, at(1)) is None


# --- no source ------------------------------------------------------------------------------------------------------


def test_without_a_source_it_says_once_why_and_tries_again(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    collector = KernelLogCollector(parse, default_sources(str(log)))
    (problem,) = collector.collect(at(1)).problems
    assert "kern.log: No such file" in problem
    assert "root" in problem
    assert collector.collect(at(2)) == Collected(blind=True)
    log.write_text("Xid\n")
    assert collector.collect(at(30)) == Collected(blind=True)
    assert len(collector.collect(at(62)).happenings) == 1
    collector.close()


def test_a_source_that_fails_is_a_problem_and_no_crash() -> None:
    class Failing:
        name = "failing"
        counts = SourceCounts()
        trust = Trust.KERNEL

        def read(self, now: Timestamps, most_lines: int) -> Sequence[KernelLine]:
            raise OSError(5, "Input/output error")

        def close(self) -> None:
            pass

    collector = KernelLogCollector(parse, {"failing": Failing})
    assert collector.collect(at(1)).problems == ("failing: Input/output error",)
    collector.close()


def test_sources_are_tried_in_order() -> None:
    assert list(default_sources()) == [
        "/dev/kmsg",
        "journalctl",
        "/var/log/kern.log",
        "/var/log/messages",
        "/var/log/syslog",
    ]
