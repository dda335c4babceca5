"""What both ring writers promise, checked on both: one suite for Python and C."""

from __future__ import annotations

import fcntl
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.instrumentation.ring_contents import as_float, read_ring
from tests.instrumentation.ring_groups import RingReader, dtype_of, flags_of, group_of, kind_of, op_of
from whichrank.instrumentation.completion import CompletionTracker
from whichrank.instrumentation.ring_collectives import MAX_OPEN
from whichrank.instrumentation.ring_creation import RingGeometry, geometry_for, prepare_ring
from whichrank.instrumentation.ring_writer import RankRecorder, RingWriter, open_ring_writer
from whichrank.instrumentation.ring_writer_native import NativeRingWriter
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.vocabulary import EventFlag, EventKind, ExitState, HookState, Level, Op, Phase, StepFlag

P2P, POLLED, FAILED = int(EventFlag.P2P), int(EventFlag.POLLED), int(EventFlag.FAILED)
WRITERS = ("python", "c")


def open_writer(kind: str, directory: Path, **changes: Any) -> RankRecorder:
    arguments: dict[str, Any] = {"rank": 3, "local_rank": 1, "world_size": 8, "identity": {"job": "j"}}
    return open_ring_writer(directory, native=kind == "c", **{**arguments, **changes})


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def writer(kind: str, tmp_path: Path) -> Iterator[RankRecorder]:
    opened = open_writer(kind, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def reader(writer: RankRecorder) -> Iterator[RingReader]:
    opened = RingReader(writer.path)
    yield opened
    opened.close()


def last(reader: RingReader, count: int = 1) -> Any:
    return reader.events()[-count:] if count > 1 else reader.events()[-1]


def test_open_prefers_the_c_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"rank": 0, "local_rank": 0, "world_size": 1, "identity": {}}
    monkeypatch.delenv("WHICHRANK_NATIVE", raising=False)
    assert isinstance(open_ring_writer(tmp_path, **arguments), NativeRingWriter)
    monkeypatch.setenv("WHICHRANK_NATIVE", "0")
    assert isinstance(open_ring_writer(tmp_path, **arguments), RingWriter)


def test_header_says_who_writes(kind: str, writer: RankRecorder) -> None:
    data = writer.path.read_bytes()

    def word(offset: int) -> int:
        return int(struct.unpack_from("<Q", data, offset)[0])

    assert data[:8] == layout.MAGIC
    assert word(layout.H_LAYOUT) == layout.LAYOUT_VERSION
    assert (word(layout.H_RANK), word(layout.H_LOCAL_RANK), word(layout.H_WORLD_SIZE)) == (3, 1, 8)
    assert word(layout.H_PID) == os.getpid()
    assert word(layout.H_PROCESS_START_TICKS) == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert word(layout.H_WRITER) == (layout.WRITER_C if kind == "c" else layout.WRITER_PYTHON)
    assert word(layout.H_FILE_BYTES) == len(data)
    assert word(layout.H_CRASH_OFFSET) + word(layout.H_CRASH_BYTES) <= len(data)
    assert read_ring(writer.path).identity == {"job": "j"}
    name = layout.RING_NAME.format(rank=3, pid=os.getpid(), created_ns=word(layout.H_CREATED_MONO_NS))
    assert writer.path.name == name


def test_identity_that_is_too_long_stays_json(kind: str, tmp_path: Path) -> None:
    writer = open_writer(kind, tmp_path, identity={"job": "j", "huge": "x" * 5000, "run": "r"})
    assert read_ring(writer.path).identity == {"job": "j", "run": "r"}
    writer.close()


def test_the_lock_lives_as_long_as_the_writer(kind: str, tmp_path: Path) -> None:
    writer = open_writer(kind, tmp_path)
    ask = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\nexcept OSError: sys.exit(1)"
    )
    command = [sys.executable, "-c", ask, str(writer.path)]
    assert subprocess.run(command, check=False).returncode == 1
    writer.close()
    assert subprocess.run(command, check=False).returncode == 0


def test_nothing_is_visible_before_it_is_whole(tmp_path: Path) -> None:
    prepared = prepare_ring(
        tmp_path, rank=0, local_rank=0, world_size=1, identity={}, geometry=RingGeometry(), writer_kind=1
    )
    assert list(tmp_path.glob("*" + layout.RING_SUFFIX)) == []
    prepared.publish()
    assert list(tmp_path.glob("*" + layout.RING_SUFFIX)) == [prepared.path]
    fcntl.lockf(prepared.fd, fcntl.LOCK_UN, 1, 0)
    os.close(prepared.fd)


def test_no_reservation_no_ring(kind: str, tmp_path: Path) -> None:
    script = (
        "import resource, sys\nfrom pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "from whichrank.instrumentation.ring_writer import open_ring_writer\n"
        "try: open_ring_writer(Path(sys.argv[1]), rank=0, local_rank=0, world_size=1, identity={}, "
        f"native={kind == 'c'})\n"
        "except OSError as error: print('no ring'); sys.exit(0)\nsys.exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "no ring\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_an_oserror(kind: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        open_writer(kind, tmp_path / "missing")


@pytest.mark.parametrize("slots", [0, 3, 100])
def test_slots_must_be_a_power_of_two(kind: str, tmp_path: Path, slots: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        open_writer(kind, tmp_path, slots=slots)


# --- groups and definitions -------------------------------------------------------------------------------------------
def test_a_group_gets_a_row_a_definition_and_an_event(writer: RankRecorder, reader: RingReader) -> None:
    definition = {"name": "0", "size": 8, "ranks": "0-7"}
    assert writer.define_group(definition) == 0
    assert writer.define_group({"name": "1", "size": 2}) == 1
    row = reader.group(0)
    assert row["in_use"] == 1
    assert row["started"] == layout.UNKNOWN_U64
    assert (layout.DEFINITION_GROUP, definition) in read_ring(writer.path).definitions
    assert kind_of(last(reader)) == EventKind.GROUP
    assert group_of(last(reader)) == 1
    assert last(reader)[layout.E_VALUE] == 2
    writer.drop_group(0)
    assert (reader.group(0)["in_use"], reader.group(1)["in_use"]) == (2, 1)


def test_groups_beyond_the_rows_are_blind_and_counted(kind: str, tmp_path: Path) -> None:
    writer = open_writer(kind, tmp_path, group_rows=2)
    rows = [writer.define_group({"name": str(number), "size": 2}) for number in range(4)]
    assert rows == [0, 1, -1, -1]
    assert (writer.groups_defined, writer.groups_blind) == (2, 2)
    writer.close()


def test_definitions_that_do_not_fit_are_left_out_whole(writer: RankRecorder) -> None:
    assert writer.define(layout.DEFINITION_NOTE, 0, {"text": "first"})
    assert not writer.define(layout.DEFINITION_NOTE, 0, {"text": "x" * 10**6})
    assert writer.define(layout.DEFINITION_ATTEMPT, 7, {"token": "t"})
    assert read_ring(writer.path).definitions == [
        (layout.DEFINITION_NOTE, {"text": "first"}),
        (layout.DEFINITION_ATTEMPT, {"token": "t"}),
    ]


def test_definitions_grow_with_the_world() -> None:
    strided = layout.format_ranks(list(range(0, 16384, 8)))
    assert geometry_for(16384).definitions_bytes > 10 * len(strided)


# --- collectives ------------------------------------------------------------------------------------------------------
def test_enqueue_is_an_event_and_a_row(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.set_phase(Phase.BACKWARD)
    assert writer.enqueue(group, Op.ALL_REDUCE, 4096, 7, -1, 0) == 1
    assert writer.enqueue(group, Op.BROADCAST, 16, 5, 3, int(EventFlag.NO_SIZE)) == 2
    assert writer.enqueue(group, Op.SEND, 8, 7, 6, P2P) == 1
    events = last(reader, 3)
    assert [op_of(event) for event in events] == [Op.ALL_REDUCE, Op.BROADCAST, Op.SEND]
    assert [event[layout.E_SEQ] for event in events] == [1, 2, 1]
    assert [event[layout.E_VALUE] for event in events] == [4096, 16, 8]
    assert [event[layout.E_EXTRA] for event in events] == [0, 4, 7]
    assert [dtype_of(event) for event in events] == [7, 5, 7]
    assert {event[layout.E_HEAD] >> 16 & 0xFF for event in events} == {Phase.BACKWARD}
    row = reader.group(group)
    assert (row["enqueued"], row["p2p_enqueued"]) == (2, 1)
    assert row["bytes"] == 8
    assert row["peer"] == 7
    assert row["signature"] == layout.pack_signature(Op.SEND, P2P, 7)
    assert row["enqueue_ns"] == events[-1][layout.E_TIME_NS]
    assert (writer.enqueued(group), writer.enqueued(group, P2P)) == (2, 1)


def test_without_completion_nothing_counts_as_open(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    seq = writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0)
    writer.complete(group, seq, 0, 0)
    row = reader.group(group)
    assert (row["open"], row["oldest_open_ns"], row["completed"]) == (0, 0, 0)


def test_completed_waits_for_the_oldest_open(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.track_completion(True)
    for _ in range(4):
        writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0)
    writer.enqueue(group, Op.SEND, 4, 7, 1, P2P)
    starts = [event[layout.E_TIME_NS] for event in last(reader, 5)]
    assert reader.group(group)["open"] == 5
    assert reader.group(group)["oldest_open_ns"] == starts[0]
    writer.complete(group, 2, 0, POLLED)
    assert reader.group(group)["completed"] == 0
    writer.complete(group, 1, 0, 0)
    row = reader.group(group)
    assert (row["completed"], row["open"], row["oldest_open_ns"]) == (2, 3, starts[2])
    writer.complete(group, 1, 0, P2P)
    assert reader.group(group)["p2p_completed"] == 1
    writer.complete(group, 4, 0, FAILED)
    writer.complete(group, 3, 0, 0)
    row = reader.group(group)
    assert (row["completed"], row["open"], row["oldest_open_ns"]) == (4, 0, 0)
    ends = last(reader, 5)
    assert [event[layout.E_SEQ] for event in ends] == [2, 1, 1, 4, 3]
    assert [flags_of(event) for event in ends] == [POLLED, 0, P2P, FAILED, 0]
    assert [event[layout.E_VALUE] for event in ends] == [starts[1], starts[0], starts[4], starts[3], starts[2]]
    assert row["complete_ns"] == ends[-1][layout.E_TIME_NS]


def test_a_second_end_and_an_unknown_one_are_ignored(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.track_completion(True)
    seq = writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0)
    writer.complete(group, seq, 123, 0)
    head = reader.head
    assert last(reader)[layout.E_VALUE] == 123
    for wrong in (seq, 0, 99, MAX_OPEN + seq):
        writer.complete(group, wrong, 0, 0)
    assert reader.head == head


def test_an_end_tells_since_when_it_was_waited_for(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.track_completion(True)
    for since in (0, 456):
        writer.complete(group, writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0), 0, 0, since)
        assert last(reader)[layout.E_EXTRA] == since


def test_complete_through_ends_everything_up_to_it(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.track_completion(True)
    for _ in range(5):
        writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0)
    writer.complete(group, 2, 0, 0)
    assert writer.complete_through(group, 3, POLLED) == 2
    assert writer.complete_through(group, 3, POLLED) == 0
    assert [event[layout.E_SEQ] for event in last(reader, 2)] == [1, 3]
    row = reader.group(group)
    assert (row["completed"], row["open"]) == (3, 2)


def test_started_is_told_once(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.track_completion(True)
    writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0)
    begin = last(reader)[layout.E_TIME_NS]
    writer.started_through(group, 1)
    writer.started_through(group, 1)
    assert reader.group(group)["started"] == 1
    assert (kind_of(last(reader)), last(reader)[layout.E_VALUE]) == (EventKind.STARTED, begin)
    assert [kind_of(event) for event in reader.events()].count(EventKind.STARTED) == 1


def test_counted_calls_keep_the_numbers(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    assert writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0) == 1
    head = reader.head
    assert [writer.skip(group, 0), writer.skip(group, 0), writer.skip(group, P2P)] == [2, 3, 1]
    assert reader.head == head
    assert writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0) == 4
    assert reader.group(group)["enqueued"] == 4


def test_an_operation_that_never_ends_is_given_up(writer: RankRecorder, reader: RingReader) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.track_completion(True)
    for _ in range(MAX_OPEN):
        writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0)
    assert reader.group(group)["open"] == MAX_OPEN
    for seq in range(2, MAX_OPEN + 1):
        writer.complete(group, seq, 0, 0)
    assert reader.group(group)["completed"] == 0
    writer.complete(group, writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0), 0, 0)
    row = reader.group(group)
    assert (row["completed"], row["open"]) == (MAX_OPEN + 1, 0)


@pytest.mark.parametrize("group", [-1, 62, 10**6])
def test_the_c_recorder_refuses_rows_that_do_not_exist(tmp_path: Path, group: int) -> None:
    writer = open_writer("c", tmp_path)
    for call in (
        lambda: writer.enqueue(group, 1, 4, 7, -1, 0),
        lambda: writer.complete(group, 1, 0, 0),
        lambda: writer.skip(group, 0),
        lambda: writer.started_through(group, 1),
    ):
        with pytest.raises(IndexError):
            call()
    writer.close()


# --- phases, steps, loss ----------------------------------------------------------------------------------------------
def test_phases(writer: RankRecorder, reader: RingReader) -> None:
    assert writer.set_phase(Phase.DATA) == Phase.INIT
    since = reader.rank()["phase_since_ns"]
    assert writer.set_phase(Phase.DATA) == Phase.DATA
    assert writer.set_phase(Phase.FORWARD) == Phase.DATA
    first, second = last(reader, 2)
    assert (first[layout.E_SEQ], second[layout.E_SEQ]) == (Phase.INIT, Phase.DATA)
    assert second[layout.E_HEAD] >> 16 & 0xFF == Phase.FORWARD
    assert second[layout.E_VALUE] == since == first[layout.E_TIME_NS]
    assert reader.rank()["phase"] == Phase.FORWARD
    assert reader.head == 2


def test_steps_carry_loss_and_norm(writer: RankRecorder, reader: RingReader) -> None:
    begin = reader.rank()["step_since_ns"]
    writer.set_loss(0.5)
    assert as_float(reader.rank()["loss"]) == 0.5
    writer.add_microstep()
    writer.add_microstep()
    assert writer.end_step(1.5, 2.5, StepFlag.SKIPPED) == 1
    assert writer.end_step(None, None, 0) == 2
    assert writer.end_step(math.nan, math.inf, 0) == 3
    first, second, third = last(reader, 3)
    assert [event[layout.E_SEQ] for event in (first, second, third)] == [0, 1, 2]
    assert first[layout.E_STEP] == begin
    assert (as_float(first[layout.E_VALUE]), as_float(first[layout.E_EXTRA])) == (1.5, 2.5)
    assert flags_of(first) == StepFlag.SKIPPED | StepFlag.HAS_LOSS | StepFlag.HAS_GRAD_NORM
    assert flags_of(second) == 0
    assert math.isnan(as_float(third[layout.E_VALUE]))
    row = reader.rank()
    assert (row["step"], row["loss_step"], row["microsteps"]) == (3, 2, 2)
    assert as_float(row["grad_norm"]) == math.inf
    assert row["step_since_ns"] == third[layout.E_TIME_NS]


def test_level_cost_and_exit(writer: RankRecorder, reader: RingReader) -> None:
    writer.set_level(Level.EVENTS, HookState.COLLECTIVES_HOOKED)
    writer.add_cost(1000, 2)
    writer.add_cost(500, 1)
    writer.record_exit(ExitState.NORMAL)
    row = reader.rank()
    assert (row["level"], row["hook_state"]) == (Level.EVENTS, HookState.COLLECTIVES_HOOKED)
    assert (row["cost_ns"], row["calls"]) == (1500, 3)
    assert row["exit_state"] == ExitState.NORMAL
    assert [kind_of(event) for event in last(reader, 2)] == [EventKind.LEVEL, EventKind.EXIT]


def test_heartbeat(writer: RankRecorder) -> None:
    writer.define_group({"name": "0", "size": 2})
    for _ in range(3):
        writer.beat(2, 4, layout.UNKNOWN_U64)
    ring = read_ring(writer.path)
    assert (ring.beats, ring.hook_errors) == (3, 2)
    reader = RingReader(writer.path)
    words = reader.row(layout.HEARTBEAT_ROW)
    assert words is not None
    assert words[layout.B_GROUPS_DEFINED >> 3] == 1
    assert words[layout.B_PENDING >> 3] == 4
    assert words[layout.B_FR_ENQUEUED >> 3] == layout.UNKNOWN_U64
    reader.close()


# --- crash area -------------------------------------------------------------------------------------------------------
def test_the_first_exception_is_kept(writer: RankRecorder, reader: RingReader) -> None:
    writer.end_step(None, None, 0)
    frames = [("a.py", 1, "outer"), ("tab\tin\nname.py", 2, "inner")]
    assert writer.record_exception("builtins.ValueError: é", frames, True)
    assert not writer.record_exception("builtins.KeyError: later", [], False)
    ring = read_ring(writer.path)
    assert ring.exception == "builtins.ValueError: é"
    assert ring.exception_in_main
    assert ring.exception_stack == ["a.py\t1\touter", "tab in name.py\t2\tinner"]
    assert kind_of(last(reader)) == EventKind.EXCEPTION


def test_the_main_threads_exception_replaces_a_worker_threads(writer: RankRecorder, reader: RingReader) -> None:
    assert writer.record_exception(
        "builtins.OSError: a worker, and quite a long text", [("worker.py", 7, "load")], False
    )
    assert not writer.record_exception("builtins.OSError: another worker", [], False)
    first = read_ring(writer.path)
    assert (first.exception_in_main, first.exception_stack) == (False, ["worker.py\t7\tload"])
    assert writer.record_exception("builtins.ValueError: main", [("train.py", 3, "main")], True)
    assert not writer.record_exception("builtins.KeyError: later", [], True)
    ring = read_ring(writer.path)
    assert (ring.exception, ring.exception_in_main) == ("builtins.ValueError: main", True)
    assert ring.exception_stack == ["train.py\t3\tmain"]
    assert (
        reader.word(writer.geometry.crash_offset + layout.C_EXC_VERSION) == 4
    )  # even, and another than before: that is how a reader learns of it
    assert [event.kind for event in ring.events].count(EventKind.EXCEPTION) == 2


def test_long_texts_are_cut_and_the_innermost_frames_stay(writer: RankRecorder) -> None:
    frames = [(f"/very/long/path/number/{number}.py", number, "function") for number in range(1000)]
    writer.record_exception("é" * 10_000 + "\udc80", frames, False)
    writer.record_stack(frames)
    ring = read_ring(writer.path)
    assert 4000 < len(ring.exception.encode()) <= layout.C_EXC_TEXT_MAX
    assert set(ring.exception) == {"é"}
    for stack in (ring.exception_stack, ring.stack):
        assert stack[-1].endswith("999.py\t999\tfunction")
        assert 50 < len(stack) < 1000


def test_each_stack_replaces_the_last(writer: RankRecorder) -> None:
    writer.record_stack([("a.py", 1, "f")] * 20)
    writer.record_stack([("b.py", 2, "g")])
    assert read_ring(writer.path).stack == ["b.py\t2\tg"]


# --- end --------------------------------------------------------------------------------------------------------------
def use_everything(writer: RankRecorder, group: int) -> None:
    writer.complete(group, writer.enqueue(group, Op.ALL_REDUCE, 4, 7, -1, 0), 0, 0)
    writer.skip(group, 0)
    writer.complete_through(group, 100, 0)
    writer.started_through(group, 1)
    writer.set_phase(Phase.CHECKPOINT)
    writer.set_loss(1.0)
    writer.end_step(1.0, 1.0, 0)
    writer.add_microstep()
    writer.set_level(Level.STATUS, 0)
    writer.add_cost(1, 1)
    writer.beat()
    writer.define(layout.DEFINITION_NOTE, 0, {"text": "nobody reads this"})
    writer.define_group({"name": "late", "size": 2})
    writer.record_exception("text", [("a.py", 1, "f")], True)
    writer.record_stack([("a.py", 1, "f")])
    writer.record_exit(ExitState.NORMAL)
    writer.append_event(EventKind.MARK, value=1)


def test_a_closed_writer_writes_nowhere(writer: RankRecorder) -> None:
    group = writer.define_group({"name": "0", "size": 8})
    writer.close()
    before = writer.path.read_bytes()
    use_everything(writer, group)
    writer.close()
    assert writer.path.read_bytes() == before


FORKING = """
import os, sys
from pathlib import Path
from tests.instrumentation.test_ring_writer import open_writer, use_everything
writer = open_writer(sys.argv[1], Path(sys.argv[2]))
group = writer.define_group({"name": "0", "size": 8})
writer.track_completion(True)
# Kept open: closing any descriptor of the file in the writer's process drops the writer's lock.
descriptor = os.open(writer.path, os.O_RDONLY)
read = lambda: os.pread(descriptor, 10**8, 0)
before = read()
child = os.fork()
if child == 0:
    status = 1
    try:
        use_everything(writer, group)
        grandchild = os.fork()
        if grandchild == 0:
            use_everything(writer, group)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert read() == before, "a forked child wrote"
import subprocess
ask = "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'r+b'), fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 0)"
assert subprocess.run([sys.executable, "-c", ask, str(writer.path)], stderr=subprocess.DEVNULL).returncode, "lock lost"
use_everything(writer, group)
assert read() != before
"""


def test_a_forked_child_never_writes(kind: str, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FORKING, kind, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr


# --- the two are the same ---------------------------------------------------------------------------------------------
def test_the_c_recorder_has_the_layout() -> None:
    from whichrank.instrumentation import _recorder

    assert len(_recorder.LAYOUT) > 30
    for name, value in _recorder.LAYOUT.items():
        expected = layout.EVENT_STRUCT.size if name == "EVENT_BYTES" else getattr(layout, name)
        assert value == expected, name
    assert _recorder.MAX_OPEN == MAX_OPEN


u64 = st.integers(0, 2**64 - 1)
floats = st.none() | st.floats()
flags = st.sampled_from([0, P2P, int(EventFlag.NO_SIZE), P2P | int(EventFlag.NO_SIZE)])
CALLS = st.one_of(
    st.tuples(st.just("enqueue"), st.integers(0, 2), st.sampled_from(list(Op)), u64, st.integers(0, 65535),
              st.integers(-1, 2**20), flags),
    st.tuples(st.just("skip"), st.integers(0, 2), flags),
    st.tuples(st.just("complete"), st.integers(0, 2), st.integers(0, 30), st.just(0) | u64,
              st.sampled_from([0, P2P, POLLED, FAILED | P2P])),
    st.tuples(st.just("complete_through"), st.integers(0, 2), st.integers(0, 30), st.sampled_from([POLLED, P2P])),
    st.tuples(st.just("started_through"), st.integers(0, 2), st.integers(0, 30)),
    st.tuples(st.just("track_completion"), st.booleans()),
    st.tuples(st.just("set_phase"), st.sampled_from(list(Phase))),
    st.tuples(st.just("end_step"), floats, floats, st.sampled_from([0, int(StepFlag.SKIPPED)])),
    st.tuples(st.just("add_microstep")),
    st.tuples(st.just("set_loss"), st.floats()),
    st.tuples(st.just("set_level"), st.sampled_from(list(Level)), st.sampled_from([0, int(HookState.DISABLED)])),
    st.tuples(st.just("add_cost"), st.integers(0, 1000), st.integers(0, 9)),
    st.tuples(st.just("drop_group"), st.integers(0, 3)),
    st.tuples(st.just("append_event"), st.sampled_from(list(EventKind)), st.integers(0, 9), u64, u64, u64),
    st.tuples(st.just("record_exit"), st.sampled_from(list(ExitState))),
)  # fmt: skip
TIMES = {
    EventKind.PHASE: (layout.E_TIME_NS, layout.E_VALUE),
    EventKind.STEP: (layout.E_TIME_NS, layout.E_STEP),
    EventKind.COMPLETE: (layout.E_TIME_NS,),
    EventKind.STARTED: (layout.E_TIME_NS,),
}


def picture(writer: RankRecorder) -> Any:
    """Everything in the ring but moments; a moment is replaced by the number of the event that had it."""
    reader = RingReader(writer.path)
    events = reader.events()
    moments = {0: "none"}
    for number, event in enumerate(events):
        moments.setdefault(event[layout.E_TIME_NS], f"event {number}")
    seen = []
    for event in events:
        words: list[Any] = list(event)
        if kind_of(event) == EventKind.STEP:
            words[layout.E_HEAD] &= 0xFFFFFFFF  # above: the run delay, read when enough time has passed
        words[layout.E_TIME_NS] = moments[event[layout.E_TIME_NS]]
        for place in (layout.E_VALUE, layout.E_STEP):
            if place in TIMES.get(EventKind(kind_of(event)), ()) or kind_of(event) in (
                EventKind.COMPLETE,
                EventKind.STARTED,
            ):
                words[place] = moments.get(event[place], event[place] if event[place] < 10**6 else "before")
        seen.append(tuple(words))
    groups = []
    for group in range(3):
        row = reader.group(group)
        for name in ("enqueue_ns", "complete_ns", "oldest_open_ns", "started_ns"):
            row[name] = moments.get(row[name], "unknown")  # type: ignore[assignment]
        groups.append(row)
    rank = reader.rank()
    for name in ("phase_since_ns", "step_since_ns"):
        rank[name] = moments.get(rank[name], "before")  # type: ignore[assignment]
    reader.close()
    return seen, groups, rank, read_ring(writer.path).definitions if len(events) < 64 else None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, max_size=50))
@example(calls=[("skip", 0, 0), ("enqueue", 0, Op.SEND, 0, 0, 0, P2P)])
def test_both_writers_write_the_same(tmp_path: Path, calls: list[Any]) -> None:
    pictures, answers = [], []
    for kind in WRITERS:
        writer = open_writer(kind, tmp_path, slots=128)
        for number in range(3):
            writer.define_group({"name": str(number), "size": 2})
        writer.track_completion(True)
        answers.append([getattr(writer, name)(*arguments) for name, *arguments in calls])
        pictures.append(picture(writer))
        writer.close()
        writer.path.unlink()
    assert json.dumps(pictures[0], default=str) == json.dumps(pictures[1], default=str)
    assert answers[0] == answers[1]


class Receive:
    """Gloo's Work of a receive: it completes in its own wait(), and a second wait() waits for a second message."""

    def __init__(self) -> None:
        self.waits = 0

    def is_completed(self) -> bool:
        return True

    def wait(self) -> bool:
        self.waits += 1
        return True


def test_a_receive_that_its_own_wait_has_just_ended_is_never_waited_for_again(kind: str, writer: RankRecorder) -> None:
    """Between the end of wait() in one thread and its stamp, the heartbeat thread looks."""
    group = writer.define_group({"name": "world", "ranks": "0-7", "size": 8})
    seq = writer.enqueue(group, int(Op.RECV), 4, 0, 1, P2P)
    work = Receive()
    open_work: Any
    recorder: Any = writer
    if kind == "c":
        from whichrank.instrumentation import _recorder

        open_work = _recorder.OpenWork(recorder, Receive.is_completed, Receive.wait)
    else:
        open_work = CompletionTracker(writer)
        open_work._original_wait = Receive.wait
    open_work.hold(work, group, seq, P2P, True)
    open_work.poll()
    assert work.waits == 0
    assert len(open_work) == 0
    open_work.hold(work, group, seq, 0, False)  # any other Work says by its wait() whether it failed
    open_work.poll()
    assert work.waits == 1


def test_what_was_only_counted_is_shown_once_the_level_is_back(writer: RankRecorder, reader: RingReader) -> None:
    writer.track_completion(True)
    group = writer.define_group({"name": "world", "ranks": "0-7", "size": 8})
    writer.set_level(Level.EVENTS, 1)
    still = writer.enqueue(group, int(Op.ALL_REDUCE), 4, 0, -1, 0)
    writer.set_level(Level.OFF, 1)
    before = len(reader.events())
    for _ in range(5):
        writer.skip(group, 0)
    writer.skip(group, P2P)
    writer.set_phase(Phase.BACKWARD)
    assert writer.end_step(None, None, 0) == 1
    assert len(reader.events()) == before
    assert reader.group(group)["enqueued"] == still
    writer.set_level(Level.EVENTS, 1)
    row = reader.group(group)
    assert (row["enqueued"], row["completed"], row["open"]) == (6, 0, 1)
    assert (row["p2p_enqueued"], row["p2p_completed"]) == (1, 1)
    writer.complete(group, still, 0, 0)
    assert reader.group(group)["completed"] == 6
    assert writer.enqueue(group, int(Op.ALL_REDUCE), 4, 0, -1, 0) == 7
    writer.end_step(None, None, 0)
    writer.end_step(None, None, 0)
    steps = [event for event in reader.events() if kind_of(event) == EventKind.STEP]
    assert [bool(flags_of(event) & StepFlag.PARTLY_SEEN) for event in steps] == [True, False]


def test_a_loss_that_is_not_finite_is_an_event_and_others_are_none(writer: RankRecorder, reader: RingReader) -> None:
    for loss in (1.5, math.nan, 2.0, -math.inf):
        writer.set_loss(loss)
    bad = [event for event in reader.events() if kind_of(event) == EventKind.BAD_LOSS]
    assert [str(as_float(event[layout.E_VALUE])) for event in bad] == ["nan", "-inf"]
    writer.set_level(Level.OFF, HookState.NONE)
    writer.set_loss(math.nan)
    assert sum(kind_of(event) == EventKind.BAD_LOSS for event in reader.events()) == 2
