"""The embedded bus: damage, a full disk, kill -9, replay."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichrank.transport.bus import TOPIC_BLOCKS, Message
from whichrank.transport.embedded import RETRY_NS, EmbeddedBus
from whichrank.transport.segments import HEADER, SYNC, list_segments


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages]


def read_all(bus: EmbeddedBus) -> list[Message]:
    messages: list[Message] = []
    while batch := bus.read(messages[-1].position if messages else 0, 100):
        messages.extend(batch)
    return messages


def write_capture(directory: Path, count: int = 10, segment_bytes: int = 1 << 20) -> Path:
    """A closed capture of messages b"0", b"1" …; the path of its first segment."""
    bus = EmbeddedBus(directory, segment_bytes=segment_bytes)
    for number in range(count):
        bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
    bus.close()
    return list_segments(directory)[0][1]


def read_capture(directory: Path) -> tuple[list[bytes], list[str]]:
    """Values in a capture, and what was said about it."""
    said: list[str] = []
    bus = EmbeddedBus(directory, read_only=True, report=said.append)
    messages = read_all(bus)
    bus.close()
    return values(messages), said


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def test_a_torn_last_frame_is_cut_and_said_in_one_line(tmp_path: Path) -> None:
    path = write_capture(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    found, said = read_capture(tmp_path)
    assert found == [b"%d" % number for number in range(9)]
    (line,) = said
    assert str(path) in line
    assert f"at byte {whole.rindex(SYNC)}" in line
    assert "no action is needed" in line
    assert path.read_bytes() == whole[:-3], "reading changes nothing"


def test_damage_in_the_middle_is_skipped_to_the_next_frame(tmp_path: Path) -> None:
    path = write_capture(tmp_path)
    data = bytearray(path.read_bytes())
    frame = data.index(SYNC, data.index(SYNC, data.index(SYNC) + 1) + 1)  # the third
    data[frame + 20] ^= 0xFF
    path.write_bytes(data)
    found, said = read_capture(tmp_path)
    assert found == [b"%d" % number for number in range(10) if number != 2]
    (line,) = said
    assert f"at byte {frame}" in line
    assert "checksum" in line


def test_a_length_that_reaches_past_the_end_costs_one_message_only(tmp_path: Path) -> None:
    path = write_capture(tmp_path)
    data = bytearray(path.read_bytes())
    frame = data.index(SYNC, data.index(SYNC) + 1)
    data[frame + 8 : frame + 12] = (1 << 20).to_bytes(4, "little")
    path.write_bytes(data)
    found, said = read_capture(tmp_path)
    assert found == [b"%d" % number for number in range(10) if number != 1]
    assert len(said) == 1
    assert "length is damaged" in said[0]


def test_reopening_after_damage_writes_a_new_segment_and_touches_no_old_one(tmp_path: Path) -> None:
    path = write_capture(tmp_path)
    path.write_bytes(path.read_bytes()[:-5] + b"garbage")
    before = path.read_bytes()
    bus = EmbeddedBus(tmp_path, report=lambda line: None)
    bus.append(TOPIC_BLOCKS, "k", b"new")
    bus.close()
    assert path.read_bytes() == before
    assert len(list_segments(tmp_path)) == 2
    found, _ = read_capture(tmp_path)
    assert found == [*(b"%d" % number for number in range(9)), b"new"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ""),
        (b"WHC", ""),
        (b"not a segment at all, but long enough for a header", "header is damaged"),
        (b"WHCHRKB1" + (99).to_bytes(4, "little") + bytes(40), "format 99"),
    ],
)
def test_a_file_that_is_no_segment_does_not_hide_the_others(tmp_path: Path, content: bytes, words: str) -> None:
    write_capture(tmp_path, 3)
    (tmp_path / "segment-000000.log").write_bytes(content)
    found, said = read_capture(tmp_path)
    assert found == [b"0", b"1", b"2"]
    assert not words or any(words in line for line in said)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=30)), min_size=1, max_size=3),
    st.floats(0, 1),
)
def test_any_damage_leaves_the_other_messages_readable(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[float, bytes]], cut: float
) -> None:
    directory = tmp_path_factory.mktemp("damage")
    path = write_capture(directory, 40)
    original = path.read_bytes()
    data = bytearray(original)
    touched: list[tuple[int, int]] = []
    for place, junk in edits:
        at = int(place * (len(data) - len(junk)))
        data[at : at + len(junk)] = junk
        touched.append((at, at + len(junk)))
    end = int((0.5 + cut / 2) * len(data))
    path.write_bytes(data[:end])
    found, _ = read_capture(directory)
    starts = [i for i in range(len(original)) if original.startswith(SYNC, i)]
    frames = list(zip(starts, [*starts[1:], len(original)], strict=True))
    whole = [
        b"%d" % number
        for number, (start, stop) in enumerate(frames)
        if stop <= end and all(b <= start or a >= stop for a, b in touched)
    ]
    header_whole = all(a >= HEADER.size or data[a:b] == original[a:b] for a, b in touched)
    assert set(whole) <= set(found) or not header_whole
    assert set(found) <= {b"%d" % number for number in range(40)}


def test_segments_roll_over_and_read_back_as_one(tmp_path: Path) -> None:
    write_capture(tmp_path, 200, segment_bytes=1000)
    assert len(list_segments(tmp_path)) > 5
    found, said = read_capture(tmp_path)
    assert found == [b"%d" % number for number in range(200)]
    assert said == []


def test_a_late_position_is_found_without_reading_the_whole_capture(tmp_path: Path) -> None:
    write_capture(tmp_path, 300, segment_bytes=1000)
    segments = list_segments(tmp_path)
    # Were an early segment read, its damage would be said.
    segments[2][1].write_bytes(b"\0" * 500)
    said: list[str] = []
    bus = EmbeddedBus(tmp_path, read_only=True, report=said.append)
    for after in (298, 250, 200, 299):
        assert values(list(bus.read(after, 3))) == [b"%d" % n for n in range(after, min(after + 3, 300))]
    assert said == []
    bus.close()


def test_a_bound_holds_at_every_moment_and_the_oldest_go(tmp_path: Path) -> None:
    said: list[str] = []
    bus = EmbeddedBus(tmp_path, segment_bytes=1000, retain_bytes=4000, report=said.append)
    assert bus.first_kept() is None
    largest = 0
    for number in range(300):
        bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
        largest = max(largest, sum(path.stat().st_size for _, path in list_segments(tmp_path)))
        assert values(list(bus.read(number, 1))) == [b"%d" % number], "a reader at the end misses nothing"
    assert bus.missed == 0
    kept, trimmed = bus.first_kept(), bus.trimmed
    bus.close()
    assert 3000 < largest <= 4000
    (line,) = said
    assert "its limit of 4000 bytes" in line
    found, _ = read_capture(tmp_path)
    assert found == [b"%d" % number for number in range(300 - len(found), 300)]
    assert kept is not None
    assert kept[0] == trimmed + 1 == 300 - len(found) + 1 > 1


def test_what_went_before_it_was_read_is_counted_once(tmp_path: Path) -> None:
    bus = EmbeddedBus(tmp_path, memory_bytes=1000, retain_bytes=4000, report=lambda line: None)
    for number in range(300):
        bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
    seen = len(read_all(bus))
    assert 0 < seen < 300
    assert bus.missed == 300 - seen
    read_all(bus)
    assert bus.missed == 300 - seen
    bus.close()


def test_segments_that_cannot_be_deleted_stop_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    bus = EmbeddedBus(tmp_path, retain_bytes=4000, report=said.append)
    bus.append(TOPIC_BLOCKS, "k", b"0")
    obstacle = tmp_path / "segment-000000.log"
    obstacle.mkdir()  # sorted first, and no file that can be unlinked
    for number in range(1, 300):
        bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
    assert bus.dropped == 0
    assert len(said) == 1
    assert "cannot be deleted" in said[0]
    bus.close()


def test_a_second_writer_is_refused_with_a_clear_line(tmp_path: Path) -> None:
    bus = EmbeddedBus(tmp_path)
    with pytest.raises(OSError, match="another process is writing"):
        EmbeddedBus(tmp_path)
    EmbeddedBus(tmp_path, read_only=True).close()
    bus.close()
    EmbeddedBus(tmp_path).close()


def test_read_only_needs_the_directory_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EmbeddedBus(tmp_path / "none", read_only=True)
    write_capture(tmp_path, 3)
    (tmp_path / "lock").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    bus = EmbeddedBus(tmp_path, read_only=True)
    last = read_all(bus)[-1]
    assert bus.now_ns() == last.stamp_ns + 1, "the clock of a replay stands at the end of the capture"
    bus.append(TOPIC_BLOCKS, "k", b"from a ring left behind")
    bus.advance_clock(last.stamp_ns + 5_000)
    bus.append(TOPIC_BLOCKS, "k", b"later")
    messages = read_all(bus)
    assert values(messages) == [b"0", b"1", b"2", b"from a ring left behind", b"later"]
    assert [m.stamp_ns - last.stamp_ns for m in messages[3:]] == [1, 5_000]
    bus.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_stamps_are_the_start_time_plus_the_monotonic_clock(tmp_path: Path) -> None:
    clock = Clock()
    bus = EmbeddedBus(tmp_path, start_wall_ns=1_000, monotonic_ns=clock)
    clock.ns = 50
    bus.append(TOPIC_BLOCKS, "k", b"a")
    bus.append(TOPIC_BLOCKS, "k", b"b")
    clock.ns = 70
    bus.append(TOPIC_BLOCKS, "k", b"c")
    assert [m.stamp_ns for m in read_all(bus)] == [1_050, 1_051, 1_070]
    bus.close()
    # A wall clock that was set back does not take stamps along.
    bus = EmbeddedBus(tmp_path, start_wall_ns=5, monotonic_ns=clock)
    bus.append(TOPIC_BLOCKS, "k", b"d")
    assert read_all(bus)[-1].stamp_ns > 1_070
    bus.close()


def test_memory_stays_bounded_and_what_left_it_comes_from_the_files(tmp_path: Path) -> None:
    bus = EmbeddedBus(tmp_path, memory_bytes=10_000)
    for number in range(500):
        bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
    assert values(read_all(bus)) == [b"%d" % number for number in range(500)]
    assert bus.dropped == bus.evicted == 0
    bus.close()


# A real full disk: the process's own file-size limit refuses writes exactly as a full file system does.
FULL_DISK_SCRIPT = """
import resource, signal, sys
from pathlib import Path
from whichrank.transport.embedded import EmbeddedBus, RETRY_NS
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
now = [0]
said = []
bus = EmbeddedBus(Path(sys.argv[1]), memory_bytes=40_000, report=said.append, monotonic_ns=lambda: now[0])
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))
errors = 0
for number in range(300):
    try:
        bus.append("whichrank.blocks", "k", b"%06d" % number)
    except OSError as error:
        errors += 1
        assert sys.argv[1] in str(error), error
assert errors == 1, errors
assert bus.dropped > 100, bus.dropped
assert bus.evicted > 0
assert bus.missed == bus.trimmed == 0
# The newest are still there to be judged.
newest = bus.read(bus.last_position - 50, 100)
assert [m.value for m in newest] == [b"%06d" % n for n in range(250, 300)]
# What is gone from memory and was never saved is stepped over.
seen, after = [], 0
while batch := bus.read(after, 64):
    seen += [int(m.value) for m in batch]
    after = batch[-1].position
assert seen == sorted(set(seen)) and seen[0] == 0 and seen[-1] == 299, seen
assert len(seen) == 300 - bus.evicted == 300 - bus.missed
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
dropped = bus.dropped
bus.append("whichrank.blocks", "k", b"still closed")
assert bus.dropped == dropped + 1
now[0] += RETRY_NS
bus.append("whichrank.blocks", "k", b"back")
assert bus.dropped == dropped + 1
assert len(said) == 1 and "takes data again" in said[0], said
print(dropped + 1)
"""


def test_a_full_disk_is_said_once_and_judging_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_SCRIPT, str(tmp_path / "capture")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, said = read_capture(tmp_path / "capture")
    assert said == [], "the unfinished frame was taken back"
    assert len(found) == 302 - int(done.stdout)
    assert found[-1] == b"back"


def test_kill_9_loses_at_most_the_message_in_flight(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from whichrank.transport.embedded import EmbeddedBus
        bus = EmbeddedBus(Path(sys.argv[1]), segment_bytes=50_000)
        number = 0
        while True:
            bus.append("whichrank.blocks", "k", b"%d" % number)
            number += 1
            if number % 500 == 0:
                print(number, flush=True)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    confirmed = 0
    for line in child.stdout:
        confirmed = int(line)
        if confirmed >= 3000:
            child.send_signal(signal.SIGKILL)
            break
    child.wait()
    child.stdout.close()
    found, _ = read_capture(tmp_path)
    assert len(found) >= confirmed
    assert found == [b"%d" % number for number in range(len(found))]
    EmbeddedBus(tmp_path).close()  # the lock died with its holder


def test_a_directory_removed_under_the_writer_stops_nothing(tmp_path: Path) -> None:
    clock = Clock()
    bus = EmbeddedBus(tmp_path / "capture", segment_bytes=500, monotonic_ns=clock, report=lambda line: None)
    bus.append(TOPIC_BLOCKS, "k", b"0")
    shutil.rmtree(tmp_path / "capture")
    errors = 0
    for number in range(1, 50):
        try:
            bus.append(TOPIC_BLOCKS, "k", b"%d" % number)
        except OSError:
            errors += 1
    assert errors == 1
    assert values(read_all(bus)) == [b"%d" % number for number in range(50)]
    clock.ns += RETRY_NS
    bus.append(TOPIC_BLOCKS, "k", b"50")
    bus.close()


def test_a_message_that_no_frame_can_hold_is_refused_and_takes_no_position(tmp_path: Path) -> None:
    bus = EmbeddedBus(tmp_path)
    with pytest.raises(ValueError, match="too long"):
        bus.append("t" * 70_000, "k", b"")
    assert bus.append(TOPIC_BLOCKS, "k", b"") == 1
    bus.close()


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for number in range(20):
        write_capture(tmp_path / str(number), 50, segment_bytes=500)
        read_capture(tmp_path / str(number))
    assert count() == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before
